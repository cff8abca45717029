"""A fleet under a roll-out without its processes: gateways that report, requests that are summed up, and looks."""

from control.services.access import Principal, Role
from control.services.canaries import load_canary
from control.services.fleet_revision import load_fleet_revision
from control.services.policies import RevisionDraft, create_revision, load_active
from control.services.rollout import Report, record_report
from control.services.rollout_engine import sweep_rollouts
from control.services.rollout_store import load_rollout
from control.services.rollouts import ChangeWish, RolloutDraft, open_rollout
from control.store.tables import GatewayRow
from tests.unit.control.rollup_writers import hear, write_requests

OLGA = Principal("olga", Role.OPERATOR)
RELAY = "routing.relay_when_transfer_exceeds_s"
# So small that a minute of requests is a verdict.
GUARD = {"guard.min_requests": 20, "guard.bake_s": 20.0, "guard.suspect_s": 30.0, "guard.window_s": 300.0}
GATEWAYS = {"ams-gw-01": "ams", "fra-gw-01": "fra"}


class RolloutDays:
    """Five seconds at a time; revision 2 is active, with a quick guard, and 3 is to be rolled out."""

    def __init__(self, plane, clock, changes=None):
        self.plane = plane
        self.clock = clock
        self.obedient = set(GATEWAYS)
        with plane.database.unit_of_work(plane.send) as work:
            work.session.add(GatewayRow(name="fra-gw-01", site="fra", url="http://127.0.0.1:8001"))
        self.base = self.revise(GUARD, apply=True)
        self.candidate = self.revise(changes or {RELAY: 2.0})
        self.report()

    def revise(self, changes, *, apply=False):
        with self.plane.database.reading() as session:
            active = load_active(session).revision.number
        return create_revision(self.plane, OLGA, RevisionDraft("a try", active, changes=changes, apply=apply)).number

    def open(self, **wish):
        return open_rollout(
            self.plane, OLGA, RolloutDraft(**{"revision": self.candidate, "reason": "a try", **wish})
        ).id

    def wanted(self):
        """What gateways should run: the active revision, the canary's, the fleet's."""
        with self.plane.database.reading() as session:
            canary = load_canary(session)
            revision = load_active(session).revision.number
            return revision, canary.canary.revision if canary else None, load_fleet_revision(session)

    def report(self):
        """Every obedient gateway says that it runs what it should."""
        revision, canary, fleet = self.wanted()
        for name in self.obedient:
            record_report(
                self.plane,
                Report("o", name, GATEWAYS[name], revision, "applied", "", self.clock.now, fleet, canary),
            )

    def requests(self, revision, count=10, **fields):
        write_requests(self.plane, count, age_s=0.5, policy_revision=revision, **fields)

    def pass_(self, *, rounds=1, canary=None, control=None, heard=tuple(GATEWAYS), sweep=None):
        """Time passes: gateways report, each group has ten requests, and the sweep looks.

        `canary` and `control` are fields of their requests; `heard` are the gateways whose telemetry arrives; `sweep`
        looks instead of one control worker.
        """
        for _ in range(rounds):
            self.clock.advance(seconds=5)
            self.report()
            for name in heard:
                hear(self.plane, name=name, site=GATEWAYS[name])
            if heard:
                self.requests(self.base, **(control or {}))
                if self.wanted()[1] is not None:
                    self.requests(self.candidate, **(canary or {}))
            if sweep is None:
                sweep_rollouts(self.plane)
            else:
                sweep()

    def now(self, number):
        with self.plane.database.reading() as session:
            return load_rollout(session, number)

    def phase(self, number):
        return self.now(number).rollout.phase.value

    def wish(self, number, **more):
        return ChangeWish(number, "because", **more)
