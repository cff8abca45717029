"""The running configuration: replaced as a whole, kept on disk, never by an older one unasked."""

import pytest

from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from control.domain.topology import FleetSnapshot, Node, Role, Site
from engine_agents.gateway.config import ConfigDocument, ConfigError, ConfigStore, StaleRevisionError, parse_document

FLEET = FleetSnapshot(
    sites=(Site("ams"),),
    nodes=(Node("p", "ams", Role.PREFILL, "http://127.0.0.1:1", "emulated", "m"),),
    model="m",
    kv_bytes_per_token=64,
)


def document(revision, fleet=FLEET, policy=DEFAULT_POLICY_DOCUMENT):
    return ConfigDocument(revision, policy, fleet.to_document())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "gateway" / "config.json"


def test_starts_from_what_was_applied_before(path):
    applied = ConfigStore(path).apply(document(3))
    later = ConfigStore(path)
    later.load()
    assert later.running == applied


def test_starts_without_a_file(path):
    store = ConfigStore(path)
    store.load()
    assert store.running is None


def test_the_same_content_twice_is_one_change(path):
    store = ConfigStore(path)
    first = store.apply(document(3))
    assert store.apply(document(3)) is first


def test_a_fleet_may_change_under_the_same_revision(path):
    store = ConfigStore(path)
    store.apply(document(3))
    assert store.apply(document(3, FleetSnapshot(model="other"))).fleet.model == "other"


def test_refuses_an_older_revision_unless_forced(path):
    store = ConfigStore(path)
    store.apply(document(3))
    with pytest.raises(StaleRevisionError):
        store.apply(document(2))
    assert store.running.revision == 3
    assert store.apply(document(2), force=True).revision == 2


def test_keeps_running_on_the_old_one_when_the_new_one_is_wrong(path):
    store = ConfigStore(path)
    store.apply(document(3))
    written = path.read_bytes()
    wrong_policy = {"routing": {"relay_load_ceiling": 7}}
    for wrong in (document(4, policy=wrong_policy), ConfigDocument(4, {}, {"nodes": 3})):
        with pytest.raises(ConfigError):
            store.apply(wrong)
    assert store.running.revision == 3
    assert path.read_bytes() == written


def test_says_so_when_the_file_is_damaged(path):
    path.parent.mkdir()
    path.write_bytes(b'{"revision": 3, ')
    with pytest.raises(ConfigError):
        ConfigStore(path).load()


def test_unknown_fields_of_a_newer_control_are_tolerated():
    assert parse_document(b'{"revision":1,"policy":{},"fleet":{},"new":1}').revision == 1


def test_leaves_no_half_written_file_behind(path):
    ConfigStore(path).apply(document(1))
    assert [entry.name for entry in path.parent.iterdir()] == ["config.json"]


def test_a_model_has_its_own_policy_where_the_document_says_so(path):
    policy = apply_changes(DEFAULT_POLICY_DOCUMENT, {"overrides.models.m.routing.relay_when_transfer_exceeds_s": 9})
    running = ConfigStore(path).apply(document(3, policy=policy))
    assert running.for_model("m").policy.routing.relay_when_transfer_exceeds_s == 9
    assert running.for_model("m").fleet is running.fleet
    assert running.for_model("m") is running.for_model("m")
    assert running.for_model("other") is running
