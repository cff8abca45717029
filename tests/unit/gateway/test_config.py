"""The running configuration: replaced as a whole, kept on disk, never by an older one unasked."""

from dataclasses import replace

import pytest

from control.domain.answer_parser import AnswerFormat
from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from control.domain.topology import FleetSnapshot, Node, Role, Site
from engine_agents.gateway.config import (
    CanaryDocument,
    ConfigDocument,
    ConfigError,
    ConfigStore,
    StaleRevisionError,
    parse_document,
)

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


RELAY = "routing.relay_when_transfer_exceeds_s"


def with_canary(revision, share, fleet=FLEET, site=None):
    overridden = {RELAY: 2.0, "overrides.models.m.routing.relay_when_transfer_exceeds_s": 3.0}
    policy = apply_changes(DEFAULT_POLICY_DOCUMENT, overridden)
    canary = CanaryDocument(revision + 1, policy, site, share, "rollout-1")
    return ConfigDocument(revision, DEFAULT_POLICY_DOCUMENT, fleet.to_document(), canary=canary)


def test_a_canary_runs_beside_the_main_policy_for_the_requests_it_names_and_survives_a_restart(path):
    ConfigStore(path).apply(with_canary(3, 0.3))
    store = ConfigStore(path)
    store.load()
    running = store.running
    chosen = {running.for_request("ams", str(key)).revision for key in range(200)}
    assert (running.revision, running.canary.revision, chosen) == (3, 4, {3, 4})
    key = next(str(key) for key in range(200) if running.for_request("ams", str(key)).revision == 4)
    candidate = running.for_request("ams", key)
    assert candidate is running.for_request("fra", key)
    assert candidate.policy.routing.relay_when_transfer_exceeds_s == 2.0
    assert candidate.for_model("m").policy.routing.relay_when_transfer_exceeds_s == 3.0
    assert (candidate.for_model("m").revision, candidate.fleet) == (4, running.fleet)


def test_a_canary_of_a_site_is_all_of_its_requests(path):
    running = ConfigStore(path).apply(with_canary(3, 1.0, site="fra"))
    assert (running.for_request("fra", "k").revision, running.for_request("ams", "k").revision) == (4, 3)


def test_a_canary_ends_with_a_newer_fleet_and_a_late_order_does_not_bring_it_back(path):
    store = ConfigStore(path)
    store.apply(with_canary(3, 1.0))
    newer = replace(FLEET, revision=1)
    assert store.apply(document(3, newer)).for_request("ams", "k").revision == 3
    with pytest.raises(StaleRevisionError):
        store.apply(with_canary(3, 1.0))
    assert store.running.canary is None


def test_a_canary_that_cannot_be_obeyed_is_refused_and_the_main_policy_stays(path):
    store = ConfigStore(path)
    store.apply(document(3))
    broken = CanaryDocument(4, {"routing": {"direct_hit_rate": 7}}, None, 0.1, "s")
    with pytest.raises(ConfigError, match=r"canary: routing\.direct_hit_rate"):
        store.apply(ConfigDocument(3, DEFAULT_POLICY_DOCUMENT, FLEET.to_document(), canary=broken))
    assert store.running.canary is None


def test_each_models_profile_names_its_own_parsers(path):
    labels = {"other": {"reasoning_parser": "think"}, "newer": {"tool_parser": "one of another age"}}
    fleet = replace(FLEET, labels={"tool_parser": "hermes"}, model_labels=labels)
    running = ConfigStore(path).apply(document(3, fleet))
    assert running.answer_format("m") == AnswerFormat("hermes", "")
    assert running.answer_format("other") == AnswerFormat("", "think")
    assert running.answer_format("newer") == running.answer_format("unnamed") == AnswerFormat()
