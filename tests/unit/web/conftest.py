import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from control.domain.policy import DEFAULT_POLICY_DOCUMENT
from control.domain.topology import FleetSnapshot, Gateway, Site
from control.services.access import sign_in_with_key
from control.services.credentials import ensure_admin, issue_login_key
from control.services.fleet import seed_fleet
from control.services.plane import ControlPlane
from control.services.policies import found_policy
from control.settings import Settings
from control.store.migrate import upgrade_schema
from control.store.session import open_database
from webapp.app import STATIC, create_app

FLEET = FleetSnapshot(
    sites=(Site("ams", "Amsterdam"),),
    gateways=(Gateway("ams-gw-01", "ams", "http://127.0.0.1:8000"),),
    model="smollm2-135m",
    kv_bytes_per_token=23_040,
    block_tokens=64,
    labels={},
)
PACKAGES = ("inter.woff2", "fonts.css", "htmx.js", "plotly.js")


@pytest.fixture
def static(tmp_path):
    """The page's own files beside empty packages, so that these tests need no npm."""
    folder = tmp_path / "static"
    folder.mkdir()
    for path in STATIC.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    vendor = folder / "vendor"
    vendor.mkdir()
    manifest = {}
    for name in PACKAGES:
        manifest[name] = f"{Path(name).stem}.0123{Path(name).suffix}"
        (vendor / manifest[name]).write_bytes(b"/* package */")
    (vendor / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def orders():
    """What was sent to the broker, in order."""
    return []


@pytest.fixture(scope="session")
def seeded_file(tmp_path_factory):
    """A database with a fleet, its first policy and an administrator; copying it is quicker than making it again."""
    path = tmp_path_factory.mktemp("seed") / "control.sqlite3"
    database = open_database(f"sqlite:///{path}")
    upgrade_schema(database)
    plane = ControlPlane(database, lambda _: None)
    seed_fleet(plane, FLEET, "test")
    found_policy(plane, "test", DEFAULT_POLICY_DOCUMENT, "First start")
    ensure_admin(plane)
    database.engine.dispose()
    return path


@pytest.fixture
def plane(tmp_path, seeded_file, orders):
    database = open_database(f"sqlite:///{shutil.copy(seeded_file, tmp_path)}")
    yield ControlPlane(database, orders.append, lambda: datetime.now(UTC))
    database.engine.dispose()


@pytest.fixture
def app(static, plane, tmp_path):
    """The true application; nothing listens at its Redis address."""
    settings = Settings(tmp_path, "sqlite://", "redis://127.0.0.1:1/0", "", "")
    return create_app(settings, plane, static)


@pytest.fixture
async def visitor(app):
    """A client that nobody has signed in."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture
async def admin(visitor, plane):
    """The same client, signed in; its unsafe requests carry the session's token."""
    signed_in = sign_in_with_key(plane, issue_login_key(plane))
    visitor.cookies.set("pdd_session", signed_in.secret)
    visitor.headers["X-CSRF-Token"] = signed_in.principal.csrf_token
    return visitor
