"""`pdd rollout` against a control plane that answers over HTTP."""

import json

import pytest

from control.cli.rollout_client import exit_code, follow
from tests.unit.control.rollout_days import RELAY, RolloutDays
from tests.unit.control.served_plane import pdd_on


@pytest.fixture
def days(seeded, clock):
    return RolloutDays(seeded, clock)


@pytest.fixture
def pdd(days, tmp_path):
    with pdd_on(days.plane, tmp_path / "data") as run:
        yield run


def test_a_rollout_is_planned_started_shown_paused_and_aborted(pdd, days):
    planned = pdd("rollout", "start", "3", "--share", "0.25", "--dry-run")
    assert "r3 would be tried by 25.0% of the requests instead of r2" in planned
    assert f"{RELAY}: 0.3 → 2.0" in planned
    started = pdd("rollout", "start", "3", "--share", "0.25", "--reason", "quicker")
    assert "roll-out 1 of r3 (25.0% of the requests): draft, waiting: " in started
    days.pass_(rounds=5)
    shown = pdd("rollout", "show", "1")
    assert "baking, 5 of 20 s within bounds" in shown
    assert "ttft_p99" in shown
    assert "30 canary" in shown
    assert "runs 2, canary 3 (applied" in pdd("policy", "show")
    assert json.loads(pdd("rollout", "pause", "1", "--json"))["phase"] == "paused"
    assert "paused" in pdd("rollout", "list", "--phase", "paused")
    assert "baking" in pdd("rollout", "resume", "1")
    assert "because it is slow" in pdd("rollout", "abort", "1", "--reason", "because it is slow")
    days.pass_()
    assert "aborted: because it is slow" in pdd("rollout", "watch", "1", fails=3)


def test_a_revision_can_be_stored_on_the_way(pdd, days):
    started = json.loads(pdd("rollout", "start", "--set", f"{RELAY}=4.5", "--bake", "7", "--json"))
    assert (started["revision"], started["bake_s"]) == (4, 7.0)
    days.pass_(rounds=2)
    assert "requests of the 20" in pdd("rollout", "promote", "1", fails=1)
    assert "promoting" in pdd("rollout", "promote", "1", "--force", "--reason", "we know why")
    days.pass_()
    assert "done" in pdd("rollout", "watch", "1")


@pytest.mark.parametrize(
    "words", [["start"], ["start", "3", "--set", f"{RELAY}=1"], ["start", "--set", f"{RELAY}=1", "--dry-run"]]
)
def test_what_makes_no_sense_is_refused(pdd, words):
    assert pdd("rollout", *words, fails=1)


def test_following_says_each_change_once_and_ends_with_the_rollout(monkeypatch):
    base = {"id": 1, "revision": 3, "canary": {"site": "fra", "share": 1.0}, "bake_s": 20.0, "ending": ""}
    states = [
        {"phase": "canary", "progress": 0.0, "baked_s": 0.0, "waiting_for": ["few requests"]},
        {"phase": "canary", "progress": 0.0, "baked_s": 0.0, "waiting_for": ["more requests"]},
        {"phase": "baking", "progress": 0.5, "baked_s": 10.0, "waiting_for": []},
        {"phase": "done", "progress": 1.0, "baked_s": 20.0, "waiting_for": []},
    ]
    answers = iter(states[1:])
    monkeypatch.setattr("control.cli.rollout_client.call_api", lambda *_: {**base, **next(answers)})
    said = []
    over = follow(None, {**base, **states[0]}, said.append, sleep=lambda _: None)
    assert exit_code(over) == 0
    assert said == [
        "roll-out 1 of r3 (site fra): canary, waiting: few requests",
        "roll-out 1 of r3 (site fra): baking, 10 of 20 s within bounds",
        "roll-out 1 of r3 (site fra): done",
    ]
