import gzip
import json
import re

import pytest

from webapp.app import STATIC
from webapp.assets import Assets, AssetsNotBuiltError


async def test_own_files_are_compressed_and_kept_for_ever(visitor, static):
    reply = await visitor.get(Assets(static).url("app.css"), headers={"Accept-Encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"
    assert reply.headers["cache-control"].endswith("immutable")
    assert reply.text == (STATIC / "app.css").read_text()


async def test_a_client_that_takes_no_coding_gets_the_plain_file(visitor, static):
    reply = await visitor.get(Assets(static).url("app.css"), headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in reply.headers
    assert reply.text == (STATIC / "app.css").read_text()


async def test_the_smallest_twin_of_a_package_is_served(visitor, static):
    packed = gzip.compress(b"/* package */")
    (static / "vendor" / "htmx.0123.js.gz").write_bytes(packed)
    asset = Assets(static)._files["vendor/htmx.0123.js"]
    assert asset.best("gzip, br") == ("gzip", packed)
    assert asset.best("") == ("", b"/* package */")


@pytest.mark.parametrize("path", ["../pyproject.toml", "vendor/manifest.json", "build.mjs", "vendor/../app.css", ""])
async def test_nothing_but_listed_files_can_be_asked_for(visitor, path):
    assert (await visitor.get(f"/static/{path}")).status_code == 404


def test_the_address_changes_with_the_content(static):
    before = Assets(static).url("live.js")
    (static / "live.js").write_text("// other")
    assert Assets(static).url("live.js") != before


def test_missing_packages_are_named_with_the_remedy(tmp_path):
    with pytest.raises(AssetsNotBuiltError, match="npm ci && npm run build"):
        Assets(tmp_path)


def test_package_versions_are_exact_and_the_lock_names_no_host():
    root = STATIC.parent
    package = json.loads((root / "package.json").read_text())
    pinned = {**package["dependencies"], **package["devDependencies"]}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in pinned.values())
    assert "http" not in (root / "package-lock.json").read_text()


def test_modules_import_only_their_neighbours():
    for path in STATIC.glob("*.js"):
        for target in re.findall(r'^import .* from "(.+)";', path.read_text(), re.MULTILINE):
            assert (STATIC / target).is_file(), f"{path.name} imports {target}"
