"""Revisions, differences and what runs where, as the Policies page shows them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from control.domain.policy import FieldChange
from control.domain.policy_scopes import OVERRIDES, find_scoped_field, split_path
from control.services.policy_scopes import EffectiveField
from control.services.rollout import GatewayStatus, RolloutState
from control.store.tables import LinkReportRow, PolicyActivationRow, PolicyRevisionRow
from webapp.policy_form import label_key
from webapp.policy_units import show_value, shown_unit

ROLLOUT_TONES: Mapping[RolloutState, str] = {
    RolloutState.APPLIED: "ok",
    RolloutState.PENDING: "accent",
    RolloutState.FAILED: "bad",
    RolloutState.STALE: "warn",
    RolloutState.UNKNOWN: "",
}


@dataclass(frozen=True, slots=True)
class RevisionView:
    """A revision in the list. `state` is `live`, `superseded` or `never`; who and when are of its last application."""

    number: int
    state: str
    actor: str
    at: datetime
    reason: str
    base_number: int | None


@dataclass(frozen=True, slots=True)
class ChangeView:
    """One difference; `label_key` is empty for a path that no field has, `scope` for the general part."""

    path: str
    label_key: str
    scope: str
    before: str
    after: str
    unit: str


@dataclass(frozen=True, slots=True)
class RunnerView:
    """A gateway or WAN relay, and what it was last seen to run."""

    name: str
    kind: str
    revision: int | None
    state: str
    tone: str
    age_s: float | None
    error: str


@dataclass(frozen=True, slots=True)
class MergedView:
    """What holds for one field, and where it comes from."""

    path: str
    label_key: str
    member: str
    value: str
    unit: str
    origin: str
    is_override: bool


def revision_views(
    revisions: Iterable[PolicyRevisionRow], activations: Sequence[PolicyActivationRow], active: int
) -> list[RevisionView]:
    """The list, in the order given; `activations` are newest first."""
    applied: dict[int, PolicyActivationRow] = {}
    for activation in activations:
        applied.setdefault(activation.revision, activation)
    views = []
    for row in revisions:
        last = applied.get(row.number)
        state = "live" if row.number == active else "superseded" if last or row.number < active else "never"
        at, actor = (last.activated_at, last.actor) if last else (row.created_at, row.actor)
        views.append(RevisionView(row.number, state, actor, at, row.reason, row.base_number))
    return views


def change_views(changes: Iterable[FieldChange]) -> list[ChangeView]:
    """Differences in the units of the form."""
    return [change_view(change.path, change.before, change.after) for change in changes]


def change_view(path: str, before: Any, after: Any) -> ChangeView:
    """One difference in the units of the form."""
    field = find_scoped_field(path)
    keys = split_path(path)
    scope = keys[2] if keys[0] == OVERRIDES and len(keys) > 2 else ""
    if field is None:
        return ChangeView(path, "", scope, _plain(before), _plain(after), "")
    first, second = show_value(field, before), show_value(field, after)
    return ChangeView(path, label_key(field.path), scope or _member(field.path), first, second, shown_unit(field).name)


def runner_views(
    statuses: Iterable[GatewayStatus], links: Iterable[str], reports: Mapping[str, LinkReportRow], active: int
) -> list[RunnerView]:
    """Every gateway, and every relay that shapes a link."""
    gateways = [
        RunnerView(
            one.gateway, "gateway", one.revision, one.state.value, ROLLOUT_TONES[one.state], one.age_s, one.error
        )
        for one in statuses
    ]
    return gateways + [_relay(name, reports.get(name), active) for name in links]


def merged_views(fields: Iterable[EffectiveField]) -> list[MergedView]:
    """What holds at a site, for a model or both, overrides first."""
    views = []
    for one in fields:
        field = find_scoped_field(one.path)
        if field is None:
            continue
        is_override = one.origin not in {"general", "default"}
        text = show_value(field, one.value)
        unit = shown_unit(field).name
        key, member = label_key(one.path), _member(one.path)
        views.append(MergedView(one.path, key, member, text, unit, one.origin, is_override))
    return sorted(views, key=lambda view: not view.is_override)


def _relay(name: str, report: LinkReportRow | None, active: int) -> RunnerView:
    if report is None:
        state = RolloutState.UNKNOWN
    elif report.state == RolloutState.FAILED:
        state = RolloutState.FAILED
    else:
        state = RolloutState.APPLIED if report.revision == active else RolloutState.PENDING
    revision, error = (report.revision, report.error) if report else (None, "")
    return RunnerView(name, "relay", revision, state.value, ROLLOUT_TONES[state], None, error)


def _member(path: str) -> str:
    parts = path.split(".")
    return parts[1] if parts[0] in {"classes", "link", "pools"} else ""


def _plain(value: Any) -> str:
    return "" if value is None else str(value)
