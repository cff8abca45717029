"""What is seen of a roll-out: who runs what, what the groups' sums say, and whether they are fresh enough."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlmodel import Session, func, select

from control.domain.guard_rules import GroupFigures, Groups, Guard, judge_canary
from control.domain.rollout import Phase, Sight
from control.domain.rollups import RequestKey, RequestSums
from control.services.fleet import load_gateways
from control.services.fleet_revision import load_fleet_revision
from control.services.policies import find_active_number
from control.services.rollout import STALE_AFTER, RolloutState
from control.services.rollout_store import StoredRollout
from control.services.rollups import load_requests
from control.store.tables import GatewayReportRow, StreamPositionRow, TelemetrySourceRow

# Sums are saved every five seconds, and a gateway without requests still says once a second that it lives.
BLIND_AFTER = timedelta(seconds=30)
_FIGURES = (
    *("requests", "completed", "client_closed", "shed", "failed"),
    *("output_tokens", "eager_tokens", "lag_token_s", "ttft", "transfer"),
)
_CANARY, _CONTROL, _NEITHER = "canary", "control", ""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a roll-out; `before` is the time before as it is now, for one that has not begun."""

    sight: Sight
    groups: Groups
    before: GroupFigures


def look_at(session: Session, stored: StoredRollout, now: datetime) -> Look:
    """All that decides how a roll-out goes on."""
    row, guard = stored.row, stored.guard
    known_until_s, blind = _known_until(session, now)
    before = stored.before
    if before is None:
        before = load_before(session, guard, row.base_revision, row.canary_site, now)
    groups = _load_groups(session, stored, guard, now)
    lacks = (*blind, *_lacks(guard, before)) if stored.rollout.phase is Phase.DRAFT else ()
    judgement = judge_canary(guard, groups, blind)
    sight = Sight(now.timestamp(), known_until_s, tuple(_behind(session, stored, now)), judgement, lacks)
    return Look(sight, groups, before)


def load_before(session: Session, guard: Guard, base_revision: int, site: str | None, now: datetime) -> GroupFigures:
    """What the requests that would be the canary's were like under the active revision, up to now."""
    sums = load_requests(
        session,
        now.timestamp(),
        guard.window_s,
        lambda key: key.revision == base_revision and site in {None, key.site},
        *_FIGURES,
    )
    return GroupFigures.of_sums(sums.get(True))


def why_not_begun(session: Session, guard: Guard, before: GroupFigures, now: datetime) -> list[str]:
    """What a roll-out would wait for before its canary begins, as far as telemetry goes."""
    _, blind = _known_until(session, now)
    return [*blind, *_lacks(guard, before)]


def _lacks(guard: Guard, before: GroupFigures) -> Iterator[str]:
    if before.requests < guard.min_requests:
        yield (
            f"the last {guard.window_s:.0f} s have {before.requests} requests of the"
            f" {guard.min_requests} that the canary is compared with"
        )


def _load_groups(session: Session, stored: StoredRollout, guard: Guard, now: datetime) -> Groups:
    row = stored.row
    if row.canary_at is None:
        return Groups(GroupFigures(), GroupFigures(), stored.before)

    def group_of(key: RequestKey) -> str:
        if key.revision == row.revision:
            return _CANARY
        is_control = key.revision == row.base_revision and (row.canary_site is None or key.site != row.canary_site)
        return _CONTROL if is_control else _NEITHER

    window_s = min(guard.window_s, max((now - row.canary_at).total_seconds(), 0.0))
    sums: dict[str, RequestSums] = load_requests(session, now.timestamp(), window_s, group_of, *_FIGURES)
    canary, control = (GroupFigures.of_sums(sums.get(name)) for name in (_CANARY, _CONTROL))
    return Groups(canary, control, stored.before)


def _known_until(session: Session, now: datetime) -> tuple[float | None, list[str]]:
    """Up to which moment the sums hold what all gateways have sent, Unix seconds; and why they cannot be trusted."""
    saved_at = session.exec(select(func.max(StreamPositionRow.saved_at))).one()
    if saved_at is None:
        return None, ["no telemetry has ever been summed up"]
    blind, known_until_s = [], saved_at.timestamp()
    if now - saved_at > BLIND_AFTER:
        blind.append(f"telemetry has not been summed up for {(now - saved_at).total_seconds():.0f} s")
    sources = session.exec(select(TelemetrySourceRow).where(TelemetrySourceRow.kind == "gateway"))
    heard = {source.name: source.sent_at_s for source in sources}
    for gateway in load_gateways(session):
        if gateway.name not in heard:
            return None, [*blind, f"gateway {gateway.name} has never sent telemetry"]
        known_until_s = min(known_until_s, heard[gateway.name])
        silent_s = now.timestamp() - heard[gateway.name]
        if silent_s > BLIND_AFTER.total_seconds():
            blind.append(f"gateway {gateway.name} has sent no telemetry for {silent_s:.0f} s")
    return known_until_s, blind


def _behind(session: Session, stored: StoredRollout, now: datetime) -> Iterator[str]:
    """Gateways that are not known to run what they should in this phase."""
    revision = find_active_number(session) or 0
    canary = stored.row.revision if stored.rollout.has_canary else None
    fleet_revision = load_fleet_revision(session)
    reports = {row.gateway: row for row in session.exec(select(GatewayReportRow))}
    gateways = load_gateways(session)
    if not gateways:
        yield "there is no gateway"
    for gateway in gateways:
        report = reports.get(gateway.name)
        if report is None:
            yield f"gateway {gateway.name} has not been heard"
        elif report.state == RolloutState.FAILED:
            yield f"gateway {gateway.name}: {report.error}"
        elif now - report.received_at > STALE_AFTER:
            yield f"gateway {gateway.name} has not been heard for {(now - report.received_at).total_seconds():.0f} s"
        elif (report.revision, report.canary_revision) != (revision, canary):
            yield (
                f"gateway {gateway.name} runs r{report.revision} with {_named(report.canary_revision)},"
                f" not r{revision} with {_named(canary)}"
            )
        elif (report.fleet_revision or 0) < fleet_revision:
            yield f"gateway {gateway.name} runs fleet {report.fleet_revision}, not {fleet_revision}"


def _named(canary: int | None) -> str:
    return "no canary" if canary is None else f"canary r{canary}"
