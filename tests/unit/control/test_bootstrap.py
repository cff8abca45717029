import pytest
from sqlmodel import select

from control.domain.policy import DEMO_POLICY_DOCUMENT
from control.services.access import Role, find_token, sign_in, sign_in_with_key
from control.services.bootstrap import prepare
from control.services.fleet import load_snapshot
from control.services.plane import ControlPlane
from control.services.policies import load_active
from control.settings import Settings
from control.store.session import open_database
from control.store.tables import PolicyRevisionRow


@pytest.fixture
def settings(tmp_path):
    return Settings.from_environment({"PDD_DATA_DIR": str(tmp_path / "fresh")})


@pytest.fixture
def opened(settings, orders):
    database = open_database(settings.database_url)
    yield ControlPlane(database, orders.append)
    database.engine.dispose()


def test_a_first_start_prepares_everything_and_a_second_keeps_it(settings, fleet, opened):
    first = prepare(settings, fleet.to_document(), "local secret")
    second = prepare(settings, fleet.to_document(), "local secret")
    assert second.admin_password is None
    assert sign_in(opened, "admin", first.admin_password, "127.0.0.1").principal.role is Role.ADMIN
    for key in (first.login_key, second.login_key):
        assert sign_in_with_key(opened, key).principal.name == "admin"
    with opened.database.reading() as session:
        assert find_token(session, "local secret", opened.now()).role is Role.OPERATOR
        assert load_snapshot(session) == fleet
        assert load_active(session).revision.document == DEMO_POLICY_DOCUMENT
        assert len(session.exec(select(PolicyRevisionRow)).all()) == 1


def test_a_fleet_document_that_lacks_a_part_is_refused(settings, fleet):
    document = fleet.to_document()
    del document["model"]
    with pytest.raises(KeyError, match="model"):
        prepare(settings, document)
