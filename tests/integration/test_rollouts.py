"""Guarded roll-outs on a fleet of real processes, judged by the traffic that truly went through it."""

import pytest

from control.domain.rollout import Phase
from control.services.fleet_revision import load_fleet_revision
from control.services.policies import RevisionDraft, create_revision, load_active
from control.services.rollout_store import load_rollout
from control.services.rollouts import RolloutDraft, open_rollout
from control.store.tables import GatewayReportRow
from tests.operation_rig import OPERATOR, Traffic, operation_rig
from tests.processes import wait_until

pytestmark = pytest.mark.timeout(240)

DIRECT = {"routing.relay_when_transfer_exceeds_s": 600.0}
GUARD = {"guard.min_requests": 5, "guard.bake_s": 2.0, "guard.window_s": 120.0, "guard.suspect_s": 600.0}
# Processes share a busy machine here: time says nothing, shares do.
NO_TIMES = {"guard.ttft_p99_floor_s": 60.0, "guard.transfer_p99_floor_s": 60.0, "guard.cache_lag_floor_token_s": 1e6}
EVERYTHING_ENDS_ON_RLD = {"outlier.min_uncached_tokens": 1, "outlier.max_output_tokens": 500}


class FreshPrompts(Traffic):
    """Prompts of which hardly one comes twice."""

    PROMPTS = 1_000_000
    MAX_TOKENS = 12


class RolloutRig:
    """Roll-outs on the rig."""

    def __init__(self, rig):
        self.rig = rig
        self.plane = rig.plane

    def revise(self, changes, *, apply=False):
        draft = RevisionDraft("a try", self.active().number, changes=changes, apply=apply)
        return create_revision(self.plane, OPERATOR, draft).number

    def active(self):
        with self.plane.database.reading() as session:
            return load_active(session).revision

    def open(self, changes):
        draft = RolloutDraft(self.revise(changes), "a try", share=0.5)
        return open_rollout(self.plane, OPERATOR, draft).id

    def now(self, number):
        with self.plane.database.reading() as session:
            return load_rollout(session, number)

    def wait_for(self, number, *phases):
        try:
            wait_until(lambda: self.now(number).rollout.phase in phases, 100)
        except TimeoutError:
            stored = self.now(number)
            raise AssertionError(f"still {stored.rollout}: {stored.row.judgement}") from None
        return self.now(number)

    def gateway_runs(self, revision, canary):
        """Whether the gateway has said that it runs these, on the stored fleet."""
        with self.plane.database.reading() as session:
            report = session.get(GatewayReportRow, "ams-gw-01")
            fleet = load_fleet_revision(session)
        return (report.revision, report.canary_revision, report.fleet_revision) == (revision, canary, fleet)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with operation_rig(tmp_path_factory.mktemp("rollouts")) as rig:
        found = RolloutRig(rig)
        base = found.revise({**DIRECT, **GUARD, **NO_TIMES}, apply=True)
        wait_until(lambda: found.gateway_runs(base, None), 90)
        with FreshPrompts(rig.gateway_url, clients=2) as traffic:
            yield found
        assert traffic.faults == []


@pytest.mark.full
def test_a_harmless_revision_goes_from_its_canary_to_all(fleet):
    base = fleet.active().number
    number = fleet.open({"routing.affinity_weight": 2.0})
    stored = fleet.wait_for(number, Phase.CANARY, Phase.BAKING)
    wait_until(lambda: fleet.gateway_runs(base, stored.row.revision), 60)
    stored = fleet.wait_for(number, Phase.DONE, Phase.ABORTED)
    assert (stored.rollout.phase, fleet.active().number) == (Phase.DONE, stored.row.revision)
    assert min(stored.row.judgement["requests"].values()) >= 5
    assert fleet.gateway_runs(stored.row.revision, None)


@pytest.mark.full
def test_a_harmful_revision_is_taken_back_by_the_rld_share_that_it_makes(fleet):
    base = fleet.active().number
    number = fleet.open(EVERYTHING_ENDS_ON_RLD)
    stored = fleet.wait_for(number, Phase.DONE, Phase.ABORTED)
    assert (stored.rollout.phase, fleet.active().number) == (Phase.ABORTED, base)
    assert "rld_share" in stored.rollout.ending
    share = next(one for one in stored.row.judgement["readings"] if one["signal"] == "rld_share")
    assert share["canary"] > 0.9
    assert share["control"] < 0.1
    assert fleet.gateway_runs(base, None)


@pytest.mark.full
def test_with_telemetry_cut_it_holds_and_goes_on_once_it_is_back(fleet):
    base = fleet.active().number
    number = fleet.open({"routing.affinity_weight": 3.0})
    fleet.wait_for(number, Phase.CANARY)
    fleet.rig.consumer.kill()
    wait_until(lambda: "has not been summed up" in " ".join(fleet.now(number).rollout.waiting_for), 90)
    looked_at_s = fleet.now(number).rollout.looked_at_s
    wait_until(lambda: fleet.now(number).rollout.looked_at_s > looked_at_s + 10, 60)
    held = fleet.now(number).rollout
    assert held.phase in {Phase.CANARY, Phase.BAKING}
    assert held.baked_s < 2.0
    assert fleet.active().number == base
    fleet.rig.consumer.start()
    stored = fleet.wait_for(number, Phase.DONE, Phase.ABORTED)
    assert (stored.rollout.phase, fleet.active().number) == (Phase.DONE, stored.row.revision)
