import stat

import pytest

from control.cli.data_folder import DataFolder, Running, write_private
from control.cli.errors import CommandError


@pytest.fixture
def folder(tmp_path):
    made = DataFolder(tmp_path / "data")
    yield made
    made.release()


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_enter_the_folder_and_read_its_secrets(folder):
    folder.acquire()
    folder.secrets()
    assert mode(folder.path) == 0o700
    assert mode(folder.path / "secrets.json") == 0o600
    assert mode(folder.operator_token) == 0o600


def test_secrets_are_made_once(tmp_path):
    first, second = DataFolder(tmp_path), DataFolder(tmp_path)
    known = first.secrets()
    assert second.secrets() == known
    assert first.operator_token.read_text().strip() == known.operator_token
    assert len({known.site_secret, known.session_secret, known.redis_password, known.operator_token}) == 4


def test_a_second_fleet_is_told_who_runs_and_where(folder):
    second = DataFolder(folder.path)
    folder.acquire()
    with pytest.raises(CommandError, match="already starting"):
        second.acquire()
    folder.announce(Running(4242, "http://127.0.0.1:1", "http://127.0.0.1:2"))
    with pytest.raises(CommandError, match=r"process 4242.*127\.0\.0\.1:1.*127\.0\.0\.1:2"):
        second.acquire()


def test_an_old_announcement_ends_when_the_folder_is_taken(folder):
    folder.path.mkdir()
    folder.announce(Running(1, "a", "b"))
    folder.acquire()
    assert folder.running() is None


def test_ports_are_remembered(tmp_path):
    folder = DataFolder(tmp_path)
    assert folder.remembered_ports() == {}
    folder.remember_ports({"valkey": 4000})
    assert folder.remembered_ports() == {"valkey": 4000}


def test_replacing_a_private_file_keeps_it_private(tmp_path):
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert (path.read_text(), mode(path)) == ("new", 0o600)
