import pytest

from control.domain.alert_rules import AlertRule, rule_problems
from control.domain.demo_scenes import SCENES, FleetPicture, SceneError, dead_url, plan_scene, values_before
from control.domain.policy import DEMO_POLICY_DOCUMENT, apply_changes

NODES = [{"name": f"n-{role}", "role": role, "state": "ready"} for role in ("prefill", "relay", "main")]
FLEET = FleetPicture(NODES, [{"name": "ams-fra", "admin_url": "http://127.0.0.1:1"}], DEMO_POLICY_DOCUMENT)
NOTHING = FleetPicture([], [], {})


@pytest.mark.parametrize("name", SCENES)
def test_every_scene_has_a_rule_that_can_fire_and_a_policy_that_can_be_obeyed(name):
    plan = plan_scene(name, FLEET)
    assert rule_problems(AlertRule(**plan.rule)) == []
    assert plan.rule["name"] == f"scene-{name}"
    apply_changes(DEMO_POLICY_DOCUMENT, plan.policy)
    assert plan.policy or plan.drain or plan.kill or plan.storm


def test_a_scene_that_the_fleet_cannot_play_says_what_it_lacks():
    for name in ("link-squeeze", "cache-lag", "relay-loss", "node-death"):
        with pytest.raises(SceneError, match=r"No link|no ready"):
            plan_scene(name, NOTHING)
    with pytest.raises(SceneError, match="there are link-squeeze"):
        plan_scene("flood", FLEET)


def test_what_was_there_before_comes_back_to_the_letter():
    plan = plan_scene("cache-lag", FLEET)
    held, absent = values_before(DEMO_POLICY_DOCUMENT, list(plan.policy))
    changed = apply_changes(DEMO_POLICY_DOCUMENT, plan.policy)
    assert apply_changes(changed, held, absent) == DEMO_POLICY_DOCUMENT
    assert absent == ["link.ams-fra.rate_cap_bytes_per_s"]


def test_a_dead_address_differs_in_its_port_only():
    assert dead_url("http://127.0.0.1:8101/nodes/a") == "http://127.0.0.1:9/nodes/a"
    assert dead_url("http://127.0.0.1:8101") == "http://127.0.0.1:9"
