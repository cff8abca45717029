"""The inventory's migrations with data in the tables, both ways."""

import json

import pytest
from alembic import command
from sqlalchemy import text

from control.domain.topology import NodeState
from control.services.fleet import load_snapshot
from control.services.inventory_rows import load_inventory
from control.store.migrate import alembic_config, upgrade_schema
from control.store.session import open_database

BEFORE = "0004"
FACTS = {"model": "m", "kv_bytes_per_token": 23_040, "block_tokens": 32, "labels": {"tool_parser": "hermes"}}


@pytest.fixture
def database(new_database_url):
    opened = open_database(new_database_url())
    yield opened
    opened.engine.dispose()


def run(database, statement, **values):
    with database.engine.begin() as connection:
        return connection.execute(text(statement), values)


def fill(database):
    """Rows as the release before has written them."""
    upgrade_schema(database, BEFORE)
    for name in ("ams", "fra"):
        run(database, "insert into site (name, label) values (:name, '')", name=name)
    node = "insert into node values (:name, :site, 'prefill', :url, 'vllm', :model, 4, 'draining')"
    run(database, node, name="a", site="ams", url="http://10.1.0.7:8000", model="m")
    run(database, node, name="b", site="fra", url="http://127.0.0.1:8000", model="other")
    run(database, "insert into gateway values ('g', 'ams', :url)", url="http://gateway.example:80")
    link = "insert into link values ('l', 'ams', 'fra', 5e6, 0.03, null, '10.1.0.9', 9, :admin)"
    run(database, link, admin="http://[fd00::9]:10")
    setting = "insert into setting values ('fleet.model', :value, '2030-01-01 00:00:00', 'test')"
    run(database, setting, value=json.dumps(FACTS))


def test_one_model_becomes_profiles_and_known_addresses_stay_allowed(database):
    fill(database)
    upgrade_schema(database)
    with database.reading() as session:
        inventory, snapshot = load_inventory(session), load_snapshot(session)
    assert (snapshot.model, snapshot.kv_bytes_per_token, snapshot.block_tokens) == ("m", 23_040, 32)
    assert snapshot.labels == FACTS["labels"]
    assert [(model.name, model.labels) for model in inventory.models] == [("m", FACTS["labels"]), ("other", {})]
    assert [site.networks for site in inventory.sites] == [
        ("127.0.0.0/8", "::1/128", "10.1.0.7/32", "10.1.0.9/32", "fd00::9/128"),
        ("127.0.0.0/8", "::1/128"),
    ]
    assert [(node.chip, node.labels, node.state) for node in inventory.nodes] == [("", {}, NodeState.DRAINING)] * 2


def test_going_back_restores_the_setting(database):
    fill(database)
    upgrade_schema(database)
    with database.engine.begin() as connection:
        command.downgrade(alembic_config(connection), BEFORE)
    stored = run(database, "select value from setting where key = 'fleet.model'").scalar()
    assert (json.loads(stored) if isinstance(stored, str) else stored) == FACTS
    assert run(database, "select count(*) from node").scalar() == 2
    upgrade_schema(database)
    with database.reading() as session:
        assert load_snapshot(session).labels == FACTS["labels"]
