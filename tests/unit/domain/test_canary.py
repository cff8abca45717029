"""Which requests are a canary, and what of a revision they can try."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.canary import Canary, is_canary, plan_trial
from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes, diff_policies, effective_values

SHARE = Canary(4, None, 0.2, "rollout-1-r4")
RELAY = "routing.relay_when_transfer_exceeds_s"


def test_a_share_of_the_keys_is_the_canary_and_stays_so():
    keys = [f"tenant/session-{number}" for number in range(5000)]
    chosen = [key for key in keys if is_canary(SHARE, "ams", key)]
    assert 0.17 < len(chosen) / len(keys) < 0.23
    assert all(is_canary(SHARE, "fra", key) for key in chosen)


def test_another_rollout_draws_others():
    other = Canary(4, None, 0.2, "rollout-2-r4")
    keys = [str(number) for number in range(2000)]
    both = sum(is_canary(SHARE, "ams", key) and is_canary(other, "ams", key) for key in keys)
    assert both / len(keys) < 0.1


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_keeps_whoever_was_in_the_smaller_one(key, one, other):
    small, large = sorted((one, other))
    if is_canary(Canary(4, None, small, "s"), "ams", key):
        assert is_canary(Canary(4, None, large, "s"), "ams", key)


@given(st.text())
def test_nobody_is_in_a_share_of_zero_and_everybody_in_one_of_one(key):
    assert not is_canary(Canary(4, None, 0.0, "s"), "ams", key)
    assert is_canary(Canary(4, None, 1.0, "s"), "ams", key)


@given(st.text())
def test_a_site_is_all_of_its_requests_and_none_of_others(key):
    canary = Canary(4, "ams", 1.0, "s")
    assert is_canary(canary, "ams", key)
    assert not is_canary(canary, "fra", key)


def test_a_canary_survives_its_way_through_json():
    for canary in (SHARE, Canary(4, "ams", 1.0, "s")):
        assert Canary.from_document(canary.to_document()) == canary
    with pytest.raises(ValueError, match="between 0 and 1"):
        Canary.from_document({**SHARE.to_document(), "share": 2.0})


def test_what_a_gateway_decides_is_tried_and_the_rest_waits_for_all():
    base = apply_changes(DEFAULT_POLICY_DOCUMENT, {"link.ams-fra.rate_cap_bytes_per_s": 1e6})
    candidate = apply_changes(
        base,
        {
            RELAY: 2.0,
            "link.ams-fra.rate_cap_bytes_per_s": 2e6,
            "cache.tenant_salt": True,
            "guard.bake_s": 1.0,
            "pools.ams.prefill.target": 3,
            "overrides.sites.fra.routing.direct_hit_rate": None,
        },
    )
    trial = plan_trial(base, candidate)
    assert [change.path for change in trial.tried] == [RELAY, "overrides.sites.fra.routing.direct_hit_rate"]
    assert [change.path for change in trial.held_back] == [
        "cache.tenant_salt",
        "guard.bake_s",
        "link.ams-fra.rate_cap_bytes_per_s",
        "pools.ams.prefill.target",
    ]
    wanted = apply_changes(base, {RELAY: 2.0, "overrides.sites.fra.routing.direct_hit_rate": None})
    assert diff_policies(wanted, trial.document) == []


def test_a_new_class_is_tried_with_its_objectives():
    candidate = apply_changes(DEFAULT_POLICY_DOCUMENT, {"classes.gold.ttft_p99_s": 20.0})
    trial = plan_trial(DEFAULT_POLICY_DOCUMENT, candidate)
    assert "classes.gold.ttft_p99_s" in [change.path for change in trial.tried]
    assert effective_values(trial.document)["classes.gold.ttft_p99_s"] == 20.0


def test_the_same_policy_has_nothing_to_try():
    trial = plan_trial({}, DEFAULT_POLICY_DOCUMENT)
    assert (trial.tried, trial.held_back) == ((), ())
