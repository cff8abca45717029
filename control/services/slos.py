"""Objectives: those that the policy's service classes state, those that somebody set, and how each is kept."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlmodel import Session, select

from control.domain.burn_rate import (
    BUDGET_WINDOW_S,
    WINDOW_PAIRS,
    BurnState,
    PairBurn,
    Tally,
    budget_left,
    burn_rate,
    slo_state,
)
from control.domain.policy import parse_policy
from control.domain.policy_fields import is_member_name
from control.domain.rollups import MIDDLE, RequestKey, RequestSums
from control.domain.slo import Indicator, Slo, policy_slos, tally_events
from control.domain.versions import version_of
from control.errors import ConflictError, InvalidError, NotFoundError
from control.services.access import Principal, Role, require_role
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.services.policies import find_active_number, load_revision
from control.services.rollups import grouped, load_requests
from control.services.versions import check_version
from control.store.tables import SloRow

FIGURES = ("completed", "client_closed", "shed", "failed", "ttft", "tpot")
MAX_TARGET = 0.99999
MAX_THRESHOLD_S = 600.0

Groups = dict[tuple[str, str], RequestSums]


@dataclass(frozen=True, slots=True)
class StatedSlo:
    """An objective, and who set it when; `updated_at` is None where the policy states it."""

    slo: Slo
    description: str = ""
    updated_at: datetime | None = None
    updated_by: str = ""

    @property
    def version(self) -> str:
        """Version of its content."""
        return version_of(_values(self.slo, self.description))


@dataclass(frozen=True, slots=True)
class SloStatus:
    """How an objective is kept; `budget` counts the events of the budget's whole window."""

    state: BurnState
    pairs: tuple[PairBurn, ...]
    budget: Tally
    budget_left: float | None


@dataclass(frozen=True, slots=True)
class RecentRequests:
    """Requests by site and class, for each of the windows that burn rates are taken over."""

    by_window_s: Mapping[int, Groups]

    def tally(self, slo: Slo, window_s: int) -> Tally:
        """Events of an objective within one window."""
        return tally_groups(self.by_window_s[window_s], slo)


def load_slos(session: Session) -> list[StatedSlo]:
    """All objectives by name; a row takes the place of the policy's objective of the same name."""
    stated = {slo.name: StatedSlo(slo) for slo in _policy_slos(session)}
    for row in session.exec(select(SloRow)):
        stated[row.name] = _stated(row)
    return [stated[name] for name in sorted(stated)]


def load_slo(session: Session, name: str) -> StatedSlo:
    """One objective.

    Raises:
        NotFoundError: there is none of that name.
    """
    for stated in load_slos(session):
        if stated.slo.name == name:
            return stated
    raise NotFoundError(f"There is no objective {name}.")


def load_recent(session: Session, now_s: float) -> RecentRequests:
    """What the windows of all pairs hold: the shortest from spans of ten seconds, the others from five minutes."""
    longest_s = max(pair.long_s for pair in WINDOW_PAIRS)
    middle = load_requests(session, now_s, longest_s, lambda key: (key.at_s, key.site, key.service_class), *FIGURES)
    by_window_s: dict[int, Groups] = {}
    for window_s in {size for pair in WINDOW_PAIRS for size in (pair.long_s, pair.short_s)}:
        if window_s <= MIDDLE.span_s:
            by_window_s[window_s] = load_requests(session, now_s, window_s, _site_and_class, *FIGURES)
        else:
            since_s = MIDDLE.start_s(now_s - window_s)
            recent = {key: sums for key, sums in middle.items() if key[0] >= since_s}
            by_window_s[window_s] = grouped(recent, lambda key: key[1:])
    return RecentRequests(by_window_s)


def load_budgets(session: Session, now_s: float) -> Groups:
    """The requests that the budgets' window holds."""
    return load_requests(session, now_s, BUDGET_WINDOW_S, _site_and_class, *FIGURES)


def tally_groups(groups: Groups, slo: Slo) -> Tally:
    """Events of an objective among some requests."""
    covered = (sums for (site, service_class), sums in groups.items() if slo.covers(site, service_class))
    return sum((tally_events(sums, slo) for sums in covered), Tally())


def burns_of(slo: Slo, recent: RecentRequests) -> tuple[PairBurn, ...]:
    """The burn rates of every pair."""
    return tuple(
        PairBurn(
            pair,
            burn_rate(recent.tally(slo, pair.long_s), slo.target),
            burn_rate(recent.tally(slo, pair.short_s), slo.target),
        )
        for pair in WINDOW_PAIRS
    )


def slo_status(slo: Slo, recent: RecentRequests, budgets: Groups) -> SloStatus:
    """How an objective is kept, by what the windows hold."""
    pairs = burns_of(slo, recent)
    budget = tally_groups(budgets, slo)
    left = budget_left(budget, slo.target)
    return SloStatus(slo_state(pairs, left), pairs, budget, left)


def load_statuses(session: Session, slos: Iterable[Slo], now_s: float) -> dict[str, SloStatus]:
    """Status of each objective, by name."""
    recent, budgets = load_recent(session, now_s), load_budgets(session, now_s)
    return {slo.name: slo_status(slo, recent, budgets) for slo in slos}


def create_slo(plane: ControlPlane, principal: Principal, slo: Slo, description: str = "") -> StatedSlo:
    """Set an objective, also in place of one that the policy states.

    Raises:
        ForbiddenError: the principal is no operator.
        InvalidError: it cannot be kept or judged.
        ConflictError: somebody has set one of that name.
    """
    require_role(principal, Role.OPERATOR)
    check_slo(slo)
    with plane.database.unit_of_work(plane.send) as work:
        if work.session.get(SloRow, slo.name) is not None:
            raise ConflictError(f"There is an objective {slo.name} already.")
        row = SloRow(**_values(slo, description), updated_at=plane.now(), updated_by=principal.name)
        work.session.add(row)
        record_event(
            work.session, plane.now(), principal.name, "slo.create", f"slo/{slo.name}", after=_values(slo, description)
        )
    return _stated(row)


def replace_slo(
    plane: ControlPlane, principal: Principal, slo: Slo, description: str, expected: Collection[str] | None
) -> StatedSlo:
    """Change an objective that somebody set.

    Raises:
        ForbiddenError, InvalidError: as in `create_slo`.
        NotFoundError: nobody has set one of that name.
        PreconditionRequiredError, StaleRevisionError: see `check_version`.
    """
    require_role(principal, Role.OPERATOR)
    check_slo(slo)
    with plane.database.unit_of_work(plane.send) as work:
        row = _row(work.session, slo.name, expected)
        before = _values_of(row)
        after = _values(slo, description)
        for field, value in after.items():
            setattr(row, field, value)
        row.updated_at, row.updated_by = plane.now(), principal.name
        work.session.add(row)
        record_event(
            work.session, plane.now(), principal.name, "slo.replace", f"slo/{slo.name}", before=before, after=after
        )
    return _stated(row)


def delete_slo(plane: ControlPlane, principal: Principal, name: str, expected: Collection[str] | None) -> None:
    """Take back an objective that somebody set; the policy's of that name, if any, holds again.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is none of that name.
        ConflictError: it is the policy's.
        PreconditionRequiredError, StaleRevisionError: see `check_version`.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.unit_of_work(plane.send) as work:
        row = _row(work.session, name, expected)
        work.session.delete(row)
        record_event(work.session, plane.now(), principal.name, "slo.delete", f"slo/{name}", before=_values_of(row))


def check_slo(slo: Slo) -> None:
    """Refuse what cannot be kept or judged.

    Raises:
        InvalidError: with the reason.
    """
    if not is_member_name(slo.name):
        raise InvalidError("A name has lower-case letters, digits, `-` and `_`, and begins with a letter or digit.")
    if not 0 < slo.target <= MAX_TARGET:
        raise InvalidError(f"The target is above 0 and at most {MAX_TARGET}: 1 leaves no budget to burn.")
    if slo.indicator is Indicator.AVAILABILITY:
        if slo.threshold_s is not None:
            raise InvalidError("Availability has no threshold.")
    elif slo.threshold_s is None or not 0 < slo.threshold_s <= MAX_THRESHOLD_S:
        raise InvalidError(f"{slo.indicator} needs a threshold above 0 and up to {MAX_THRESHOLD_S:g} s.")


def _policy_slos(session: Session) -> list[Slo]:
    number = find_active_number(session)
    return [] if number is None else policy_slos(parse_policy(load_revision(session, number).document).classes)


def _row(session: Session, name: str, expected: Collection[str] | None) -> SloRow:
    row = session.get(SloRow, name, with_for_update=True)
    if row is None:
        if any(slo.name == name for slo in _policy_slos(session)):
            raise ConflictError(f"The policy states {name}: change its service class, or set one of that name.")
        raise NotFoundError(f"There is no objective {name}.")
    check_version(_stated(row).version, expected)
    return row


def _site_and_class(key: RequestKey) -> tuple[str, str]:
    return key.site, key.service_class


def _stated(row: SloRow) -> StatedSlo:
    slo = Slo(row.name, Indicator(row.indicator), row.target, row.threshold_s, row.service_class, row.site)
    return StatedSlo(slo, row.description, row.updated_at, row.updated_by)


def _values(slo: Slo, description: str) -> dict[str, Any]:
    return {
        "name": slo.name,
        "indicator": slo.indicator.value,
        "target": slo.target,
        "threshold_s": slo.threshold_s,
        "service_class": slo.service_class,
        "site": slo.site,
        "description": description,
    }


def _values_of(row: SloRow) -> dict[str, Any]:
    stated = _stated(row)
    return _values(stated.slo, stated.description)
