"""The control plane while its PostgreSQL goes away and comes back."""

import pytest
from fastapi.testclient import TestClient

from control.api.app import create_api
from control.domain.policy import DEFAULT_POLICY_DOCUMENT
from control.services.access import Role
from control.services.credentials import ensure_token
from control.services.plane import ControlPlane
from control.services.policies import found_policy
from control.settings import Settings
from control.store.session import open_database
from tests.postgresql import running_postgresql

ACTIVE = "/api/v1/policies/active"
REVISIONS = "/api/v1/policies/revisions"


@pytest.fixture
def server():
    with running_postgresql() as started:
        yield started


@pytest.fixture
def client(server):
    plane = ControlPlane(open_database(server.new_migrated_database()), lambda _: None)
    found_policy(plane, "test", DEFAULT_POLICY_DOCUMENT, "First start")
    ensure_token(plane, "operator", Role.OPERATOR, "operator secret")
    headers = {"Authorization": "Bearer operator secret"}
    with TestClient(create_api(Settings.from_environment({}), plane), headers=headers) as opened:
        yield opened
    plane.database.engine.dispose()


def change(base):
    return {
        "changes": {"routing.direct_hit_rate": 0.8 + base / 100},
        "reason": "slow link",
        "base_revision": base,
        "apply": True,
    }


@pytest.mark.full
def test_a_lost_database_is_said_and_service_goes_on_when_it_is_back(server, client):
    assert client.post(REVISIONS, json=change(1)).status_code == 201
    server.stop()
    for refused in (client.get(ACTIVE), client.post(REVISIONS, json=change(2))):
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:pdd:problem:database-unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        assert str(server.folder) not in refused.text
    server.start()
    assert client.get(ACTIVE).json()["revision"] == 2
    assert client.post(REVISIONS, json=change(2)).status_code == 201
    assert [item["number"] for item in client.get(REVISIONS).json()["items"]] == [3, 2, 1]
