"""Guarded roll-outs against the store: what is sent, activated, taken back and written down, on every way through."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlmodel import select

from control.domain.inventory import ItemRef, Kind
from control.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    RolloutOpenError,
    StaleRevisionError,
)
from control.orders import PUSH_POLICY
from control.services import rollout_engine
from control.services.access import Principal, Role
from control.services.audit import load_events
from control.services.inventory_users import outside_users
from control.services.operations import open_operation
from control.services.plane import ControlPlane
from control.services.policies import (
    apply_revision,
    load_activations,
    load_active,
    load_revision,
    load_revisions,
    revert_revision,
)
from control.services.rollout import Report, RolloutState, load_statuses, record_report, sweep_gateways
from control.services.rollout_engine import advance_rollout, sweep_rollouts
from control.services.rollouts import (
    RolloutDraft,
    abort_rollout,
    open_rollout,
    pause_rollout,
    plan_rollout,
    promote_rollout,
    resume_rollout,
    version_of,
)
from control.store.session import open_database
from control.store.tables import AnnotationRow, GatewayRow
from tests.unit.control.rollout_days import GATEWAYS, OLGA, RELAY, RolloutDays

SLOW = {"ttft_s": 9.0}
VERA = Principal("vera", Role.VIEWER)


@pytest.fixture
def days(seeded, clock):
    return RolloutDays(seeded, clock)


def active(days):
    with days.plane.database.reading() as session:
        return load_active(session).revision


def pushes(orders):
    """The newest order to each gateway."""
    return {one.arguments["gateway"]["name"]: one.arguments for one in orders if one.task == PUSH_POLICY}


def actions(days):
    with days.plane.database.reading() as session:
        events = load_events(session, 200)
    return [event.action for event in reversed(events) if event.target.startswith("rollout/")]


def test_a_harmless_revision_goes_through_its_canary_to_all(days, orders):
    number = days.open(share=0.25)
    assert days.phase(number) == "draft"
    days.pass_(rounds=2)  # twenty requests to compare with
    assert days.phase(number) == "canary"
    for name, pushed in pushes(orders).items():
        canary = pushed["canary"]
        assert (pushed["revision"], canary["revision"], canary["share"]) == (days.base, days.candidate, 0.25), name
        assert (pushed["policy"]["routing"][RELAY.partition(".")[2]], canary["policy"]["routing"]) != (2.0, None)
        assert canary["policy"]["routing"][RELAY.partition(".")[2]] == 2.0
    assert active(days).number == days.base
    days.pass_(rounds=2)
    assert days.phase(number) == "baking"
    days.pass_(rounds=3)
    assert (days.phase(number), active(days).number) == ("baking", days.base)
    days.pass_()
    assert (days.phase(number), active(days).number) == ("promoting", days.candidate)
    assert all("canary" not in pushed for pushed in pushes(orders).values())
    days.pass_()
    assert days.phase(number) == "done"
    assert actions(days) == [f"rollout.{name}" for name in ("open", "canary", "baking", "promoting", "done")]
    with days.plane.database.reading() as session:
        marks = session.exec(select(AnnotationRow.text)).all()
    assert marks == [f"Roll-out {number} of r3 canary began", f"Roll-out {number} of r3 goes to all"]
    assert sweep_rollouts(days.plane) is None


@pytest.mark.parametrize(
    ("harm", "signal"),
    [
        (SLOW, "ttft_p99"),
        ({"outcome": "failed"}, "error_rate"),
        ({"eager_tokens": 90}, "rld_share"),
        ({"transfer_s": 30.0}, "transfer_p99"),
    ],
)
def test_a_harmful_revision_is_taken_back_by_its_guard(days, orders, harm, signal):
    number = days.open()
    days.pass_(rounds=3, canary=harm)
    assert days.phase(number) == "canary"  # ten requests are no verdict
    days.pass_(canary=harm)
    stored = days.now(number)
    assert (stored.rollout.phase.value, active(days).number) == ("aborting", days.base)
    assert signal in stored.rollout.ending
    [worst] = [one for one in stored.row.judgement["readings"] if one["verdict"] == "breach"]
    assert worst["signal"] == signal
    assert worst["canary"] > worst["bound"]
    assert all("canary" not in pushed for pushed in pushes(orders).values())
    days.pass_()
    assert days.phase(number) == "aborted"
    assert actions(days)[-2:] == ["rollout.aborting", "rollout.aborted"]
    days.revise({RELAY: 3.0}, apply=True)  # another one may come now


def test_an_order_from_the_canary_cannot_bring_it_back(days, orders):
    number = days.open()
    days.pass_(rounds=2)
    begun = pushes(orders)["ams-gw-01"]["fleet"]["revision"]
    abort_rollout(days.plane, OLGA, days.wish(number))
    assert pushes(orders)["ams-gw-01"]["fleet"]["revision"] > begun


def test_without_telemetry_it_holds_and_goes_on_when_it_is_back(days):
    number = days.open()
    days.pass_(rounds=5)
    assert (days.phase(number), days.now(number).rollout.baked_s) == ("baking", 5.0)
    days.pass_(rounds=30, heard=())
    stored = days.now(number)
    assert (stored.rollout.phase.value, stored.rollout.baked_s) == ("baking", 5.0)
    assert stored.rollout.waiting_for[0] == "telemetry has not been summed up for 150 s"
    assert active(days).number == days.base
    days.pass_(rounds=3)
    assert days.phase(number) == "baking"
    days.pass_(rounds=5)
    assert active(days).number == days.candidate


def test_without_telemetry_no_canary_begins_and_none_is_aborted(days):
    number = days.open()
    days.pass_(rounds=20, heard=())
    assert (days.phase(number), days.wanted()[1]) == ("draft", None)
    days.pass_(rounds=3)
    assert days.phase(number) == "canary"
    days.requests(days.candidate, 500, **SLOW)
    days.clock.advance(seconds=60)
    days.pass_(rounds=3, heard=())
    assert days.phase(number) == "canary"


def test_a_gateway_that_is_silent_in_telemetry_alone_holds_it(days):
    number = days.open()
    days.pass_(rounds=5)
    days.pass_(rounds=20, heard=["ams-gw-01"])
    assert (days.phase(number), days.now(number).rollout.baked_s) == ("baking", 5.0)
    assert any("fra-gw-01 has sent no telemetry" in words for words in days.now(number).rollout.waiting_for)


def test_a_gateway_that_is_behind_holds_it_shows_as_drift_and_is_repaired(days, orders, clock):
    number = days.open()
    days.pass_(rounds=3)
    orders.clear()
    clock.advance(seconds=1)
    revision, canary, fleet = days.wanted()
    assert canary == days.candidate
    record_report(days.plane, Report("o", "ams-gw-01", "ams", revision, "applied", "", clock.now, fleet, None))
    assert sweep_gateways(days.plane, lambda _: 0) == ["ams-gw-01"]
    assert pushes(orders)["ams-gw-01"]["canary"]["revision"] == canary
    with days.plane.database.reading() as session:
        statuses = {one.gateway: one for one in load_statuses(session, days.base, days.plane.now())}
    assert (statuses["ams-gw-01"].state, statuses["ams-gw-01"].canary_revision) == (RolloutState.PENDING, None)
    assert (statuses["fra-gw-01"].state, statuses["fra-gw-01"].canary_revision) == (RolloutState.APPLIED, canary)
    days.requests(days.candidate, 100)
    sweep_rollouts(days.plane)
    assert days.phase(number) == "canary"
    assert "ams-gw-01 runs r2 with no canary, not r2 with canary r3" in days.now(number).rollout.waiting_for[0]


def test_while_it_is_open_no_other_revision_is_applied(days):
    number = days.open()
    other = days.revise({RELAY: 5.0})
    for refused in (
        lambda: days.revise({RELAY: 6.0}, apply=True),
        lambda: apply_revision(days.plane, OLGA, other, "x"),
        lambda: revert_revision(days.plane, OLGA, 1, "x"),
        days.open,
        lambda: open_operation(days.plane, OLGA, "apply_policy", {"revision": other}, "x"),
    ):
        with pytest.raises(RolloutOpenError, match=f"Roll-out {number} of r3 is draft"):
            refused()
    assert active(days).number == days.base


def test_a_site_is_compared_with_its_own_time_before_and_the_other_sites(days):
    number = days.open(site="fra")
    days.pass_(rounds=3, control={"ttft_s": 0.5})
    assert days.phase(number) == "draft"  # nothing of fra is known
    days.requests(days.base, 30, site="fra", ttft_s=8.0)
    days.pass_()
    assert days.phase(number) == "canary"
    # Slow, but no slower than fra was before.
    days.pass_(rounds=3, canary={"site": "fra", "ttft_s": 8.0})
    readings = {one["signal"]: one for one in days.now(number).row.judgement["readings"]}
    assert readings["ttft_p99"]["before"] == pytest.approx(8.0, rel=0.02)
    assert readings["ttft_p99"]["control"] == pytest.approx(0.5, rel=0.02)
    assert readings["ttft_p99"]["verdict"] == "suspect"
    days.pass_(rounds=8, canary={"site": "fra", "ttft_s": 8.0})
    assert days.phase(number) in {"aborting", "aborted"}


def test_by_hand_it_is_paused_resumed_promoted_and_aborted(days):
    number = days.open()
    days.pass_(rounds=3)
    pause_rollout(days.plane, OLGA, days.wish(number))
    days.pass_(rounds=20)
    assert (days.phase(number), days.wanted()[1]) == ("paused", days.candidate)
    resume_rollout(days.plane, OLGA, days.wish(number))
    assert days.phase(number) == "canary"
    promote_rollout(days.plane, OLGA, days.wish(number))
    assert (days.phase(number), active(days).number) == ("promoting", days.candidate)
    abort_rollout(days.plane, OLGA, days.wish(number))
    reverted = active(days)
    with days.plane.database.reading() as session:
        base = load_revision(session, days.base).document
    assert (days.phase(number), reverted.document) == ("aborting", base)
    assert reverted.number == days.now(number).row.reverted_to > days.candidate
    days.pass_()
    assert days.phase(number) == "aborted"


def test_promoting_on_missing_data_needs_force(days):
    number = days.open()
    days.pass_(rounds=2)
    with pytest.raises(ConflictError, match="requests of the 20"):
        promote_rollout(days.plane, OLGA, days.wish(number))
    promote_rollout(days.plane, OLGA, days.wish(number), force=True)
    assert active(days).number == days.candidate


def test_changes_need_an_operator_a_reason_and_the_phase_they_were_made_for(days):
    number = days.open()
    seen = version_of(days.now(number))
    with pytest.raises(ForbiddenError):
        pause_rollout(days.plane, VERA, days.wish(number))
    with pytest.raises(ForbiddenError):
        open_rollout(days.plane, VERA, RolloutDraft(days.candidate, "x"))
    with pytest.raises(InvalidError):
        abort_rollout(days.plane, OLGA, replace(days.wish(number), reason=" "))
    with pytest.raises(NotFoundError):
        abort_rollout(days.plane, OLGA, days.wish(number + 1))
    with pytest.raises(ConflictError, match="not paused"):
        resume_rollout(days.plane, OLGA, days.wish(number))
    days.pass_(rounds=2)
    with pytest.raises(StaleRevisionError, match="is canary now"):
        abort_rollout(days.plane, OLGA, days.wish(number, expected={seen}))


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"revision": 99}, "no policy revision 99"),
        ({"revision": 2}, "active already"),
        ({"site": "par"}, "par"),
        ({"site": "ams", "share": 0.1}, "either a site or a share"),
        ({"base_revision": 1}, "2 is active now"),
    ],
)
def test_a_wish_that_cannot_be_obeyed_is_refused(days, wish, message):
    with pytest.raises((InvalidError, NotFoundError, StaleRevisionError), match=message):
        days.open(**wish)


def test_what_no_gateway_can_try_is_refused(days):
    shaped = days.revise({"link.ams-fra.rate_cap_bytes_per_s": 1e6})
    with pytest.raises(InvalidError, match=r"link\.ams-fra\.rate_cap_bytes_per_s.*Apply it instead"):
        days.open(revision=shaped)


def test_a_site_with_all_the_gateways_has_no_control_group(days):
    with days.plane.database.unit_of_work(days.plane.send) as work:
        work.session.get(GatewayRow, "fra-gw-01").site = "ams"
    with pytest.raises(InvalidError, match="no control group"):
        days.open(site="ams")
    with pytest.raises(InvalidError, match="no gateway"):
        days.open(site="fra")


def test_an_older_revision_goes_out_as_a_copy(days):
    newer = days.revise({RELAY: 7.0}, apply=True)
    number = days.open()
    stored = days.now(number)
    assert stored.row.base_revision == newer
    assert stored.row.revision > newer
    with days.plane.database.reading() as session:
        assert load_revision(session, stored.row.revision).document["routing"][RELAY.partition(".")[2]] == 2.0


def test_a_plan_shows_what_is_tried_what_waits_and_writes_nothing(days):
    mixed = days.revise({RELAY: 2.0, "guard.bake_s": 99.0})
    with days.plane.database.reading() as session:
        plan = plan_rollout(session, RolloutDraft(mixed, "x"), days.plane.now())
        revisions = len(load_revisions(session, 50))
    assert [change.path for change in plan.trial.tried] == [RELAY]
    assert [change.path for change in plan.trial.held_back] == ["guard.bake_s"]
    assert (plan.guard.bake_s, plan.share) == (20.0, 0.1)
    assert plan.waiting_for
    assert revisions == mixed
    assert actions(days) == []


def test_an_overtaken_look_changes_nothing(days, monkeypatch):
    number = days.open()
    days.pass_(rounds=3)
    look_at = rollout_engine.look_at

    def overtaken(session, stored, now):
        seen = look_at(session, stored, now)
        monkeypatch.setattr(rollout_engine, "look_at", look_at)
        days.clock.advance(seconds=1)
        assert advance_rollout(days.plane, number)  # another replica, on a newer look
        return seen

    monkeypatch.setattr(rollout_engine, "look_at", overtaken)
    before = len(actions(days))
    assert advance_rollout(days.plane, number)
    assert len(actions(days)) <= before + 1
    assert days.now(number).rollout.looked_at_s == days.plane.now().timestamp()


def test_one_that_waits_for_a_gateway_that_is_gone_stands_in_no_other_policys_way(days):
    number = days.open()
    days.pass_(rounds=3)
    days.obedient = {"ams-gw-01"}
    promote_rollout(days.plane, OLGA, days.wish(number), force=True)
    days.pass_(rounds=3)
    assert (days.phase(number), active(days).number) == ("promoting", days.candidate)
    newer = days.revise({RELAY: 6.0}, apply=True)
    with pytest.raises(ConflictError, match=f"r{newer} has been applied since"):
        abort_rollout(days.plane, OLGA, days.wish(number))
    with pytest.raises(RolloutOpenError):
        days.open(revision=days.revise({RELAY: 7.0}))
    assert active(days).number == newer
    days.obedient = set(GATEWAYS)
    days.pass_()
    assert days.phase(number) == "done"


def test_a_site_that_is_a_canary_is_in_use(days):
    number = days.open(site="fra")
    with days.plane.database.reading() as session:
        users = outside_users(session, ItemRef(Kind.SITE, "fra"))
        assert outside_users(session, ItemRef(Kind.SITE, "ams")) == []
    assert [(user.path, user.message) for user in users] == [
        (f"rollouts.{number}", f"The site fra is the canary of roll-out {number}.")
    ]


def test_replicas_that_look_at_once_change_a_phase_once(days, database_url, clock):
    databases = [open_database(database_url) for _ in range(4)]
    planes = [ControlPlane(database, days.plane.send, clock) for database in databases]
    number = days.open()
    with ThreadPoolExecutor(len(planes)) as workers:
        for _ in range(10):
            days.pass_(sweep=lambda: list(workers.map(sweep_rollouts, planes)))
    for database in databases:
        database.engine.dispose()
    assert days.phase(number) == "done"
    assert actions(days) == [f"rollout.{name}" for name in ("open", "canary", "baking", "promoting", "done")]
    with days.plane.database.reading() as session:
        applied = [row.revision for row in load_activations(session, 50)]
    assert applied.count(days.candidate) == 1
