"""Evaluates all alert rules and writes what comes of it; of several replicas one does it at a time.

Reading is done before the transaction and is short of nothing but the newest seconds; writing begins by moving the
clock from an earlier moment to that of the reading, so that what an overtaken replica has read is dropped.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import CursorResult, or_
from sqlmodel import Session, col, delete, select, update

from control.domain.alert_metrics import METRICS_BY_NAME, Reading
from control.domain.alert_rules import AlertRule
from control.domain.alerts import FLAP_WINDOW, AlertEvent, AlertState, Step, Track, fingerprint, next_step
from control.orders import CONTROL_QUEUE, DELIVER_WEBHOOKS, Order
from control.services.alert_notices import queue_notices
from control.services.alert_readings import MetricReader
from control.services.alert_rules import load_rules
from control.services.plane import ControlPlane
from control.store.tables import AlertClockRow, AlertEventRow, AlertRow

MIN_GAP = timedelta(seconds=5)
MAX_AHEAD = timedelta(minutes=1)
KEPT = timedelta(days=396)
CLEARED = "cleared"
RULE_GONE = "the rule was deleted or switched off"
SUBJECT_GONE = "what it was about is no longer in the inventory"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Observed:
    """All that an evaluation has read: every enabled rule with its series, and what the inventory holds."""

    at: datetime
    readings: Mapping[str, tuple[AlertRule, list[Reading]]]
    sites: frozenset[str]
    links: frozenset[str]

    def still_has(self, labels: Mapping[str, str]) -> bool:
        """Whether what an alert is about is still in the inventory."""
        return labels.get("site") in {None, *self.sites} and labels.get("link") in {None, *self.links}


@dataclass(slots=True)
class Evaluation:
    """The moment of an evaluation, and what it has changed, by ids."""

    at: datetime
    fired: list[int] = field(default_factory=list)
    resolved: list[int] = field(default_factory=list)


def evaluate_alerts(plane: ControlPlane) -> Evaluation | None:
    """Take every alert one evaluation further.

    Returns:
        What has fired and what was resolved; None where another replica has just done it.
    """
    observed = _observe(plane)
    with plane.database.unit_of_work(plane.send) as work:
        session = work.session
        if not _claim(session, observed.at):
            return None
        evaluation = _apply(session, observed)
        delete_old_alerts(session, observed.at)
        if queue_notices(session, observed.at):
            work.enqueue(Order(DELIVER_WEBHOOKS, CONTROL_QUEUE, {}))
    if evaluation.fired or evaluation.resolved:
        log.info("alerts: %d fired, %d resolved", len(evaluation.fired), len(evaluation.resolved))
    return evaluation


def delete_old_alerts(session: Session, now: datetime) -> None:
    """Forget alerts that ended more than 13 months ago, with all that happened to them."""
    old = select(AlertRow.id).where(col(AlertRow.resolved_at) < now - KEPT)
    session.exec(delete(AlertEventRow).where(col(AlertEventRow.alert_id).in_(old)))
    session.exec(delete(AlertRow).where(col(AlertRow.resolved_at) < now - KEPT))


def _observe(plane: ControlPlane) -> Observed:
    at = plane.now()
    readings = {}
    with plane.database.reading() as session:
        reader = MetricReader(session, at)
        for stated in load_rules(session):
            rule = stated.rule
            if rule.enabled and rule.metric in METRICS_BY_NAME:
                series = [one for one in reader.read(rule.metric, rule.window_s) if rule.covers(one.labels)]
                readings[rule.name] = (rule, series)
    return Observed(at, readings, frozenset(reader.sites), frozenset(reader.links))


def _claim(session: Session, at: datetime) -> bool:
    is_due = col(AlertClockRow.evaluated_at) <= at - MIN_GAP
    was_set_back = col(AlertClockRow.evaluated_at) > at + MAX_AHEAD  # the system's clock
    moved = session.exec(update(AlertClockRow).where(or_(is_due, was_set_back)).values(evaluated_at=at))
    return isinstance(moved, CursorResult) and bool(moved.rowcount)


def _apply(session: Session, observed: Observed) -> Evaluation:
    evaluation = Evaluation(observed.at)
    is_open = select(AlertRow).where(col(AlertRow.open_key).is_not(None)).with_for_update()
    open_rows = {row.open_key: row for row in session.exec(is_open)}
    for rule, series in observed.readings.values():
        for reading in series:
            row = open_rows.pop(fingerprint(rule.name, reading.labels), None)
            _advance(session, row, reading, rule, evaluation)
    for row in open_rows.values():
        _advance_orphan(session, row, observed, evaluation)
    return evaluation


def _advance_orphan(session: Session, row: AlertRow, observed: Observed, evaluation: Evaluation) -> None:
    """An open alert that no reading is about: its rule or its subject is gone, or nothing is known of it now."""
    known = observed.readings.get(row.rule)
    if known is None or not known[0].covers(row.labels):
        _end(session, row, RULE_GONE, evaluation)
    elif not observed.still_has(row.labels):
        _end(session, row, SUBJECT_GONE, evaluation)
    else:
        _advance(session, row, Reading(row.labels), known[0], evaluation)


def _advance(session: Session, row: AlertRow | None, reading: Reading, rule: AlertRule, evaluation: Evaluation) -> None:
    at = evaluation.at
    track = None if row is None else _track(row)
    is_pending = row is None or row.state == AlertState.PENDING
    firings = _recent_firings(session, rule, reading, at) if is_pending and _may_fire(reading, rule) else 0
    step = next_step(track, reading, rule, at, firings)
    if step.track is None:
        if row is not None:
            session.delete(row)  # it never fired: nothing happened to it
        return
    if row is None:
        row = _new_row(rule, reading, step.track)
    _write(row, step.track, rule, at)
    session.add(row)
    session.flush()
    _record(session, row, step, evaluation)


def _may_fire(reading: Reading, rule: AlertRule) -> bool:
    return reading.value is not None and rule.is_breach(reading.value)


def _recent_firings(session: Session, rule: AlertRule, reading: Reading, at: datetime) -> int:
    recent = select(AlertRow.labels).where(AlertRow.rule == rule.name, col(AlertRow.fired_at) > at - FLAP_WINDOW)
    return sum(labels == dict(reading.labels) for labels in session.exec(recent))


def _new_row(rule: AlertRule, reading: Reading, track: Track) -> AlertRow:
    return AlertRow(
        rule=rule.name,
        open_key=fingerprint(rule.name, reading.labels),
        labels=dict(reading.labels),
        severity=rule.severity.value,
        summary=rule.summary,
        state=track.state.value,
        threshold=rule.threshold,
        pending_at=track.pending_at,
        evaluated_at=track.pending_at,
    )


def _write(row: AlertRow, track: Track, rule: AlertRule, at: datetime) -> None:
    row.state = track.state.value
    row.pending_at, row.fired_at, row.clear_since = track.pending_at, track.fired_at, track.clear_since
    row.value, row.is_unknown, row.is_flapping = track.value, track.is_unknown, track.is_flapping
    row.severity, row.threshold, row.evaluated_at = rule.severity.value, rule.threshold, at
    row.summary = rule.summary
    if track.state is AlertState.RESOLVED:
        row.open_key, row.resolved_at, row.resolution = None, at, CLEARED


def _record(session: Session, row: AlertRow, step: Step, evaluation: Evaluation) -> None:
    if row.id is None:
        raise RuntimeError("the row was flushed and has an id")
    for event in step.events:
        session.add(AlertEventRow(alert_id=row.id, at=evaluation.at, kind=event.value, value=row.value))
    if AlertEvent.FIRED in step.events:
        evaluation.fired.append(row.id)
    if AlertEvent.RESOLVED in step.events:
        evaluation.resolved.append(row.id)


def _end(session: Session, row: AlertRow, resolution: str, evaluation: Evaluation) -> None:
    at = evaluation.at
    if row.state == AlertState.PENDING or row.id is None:
        session.delete(row)
        return
    row.state, row.open_key = AlertState.RESOLVED.value, None
    row.resolved_at, row.resolution, row.evaluated_at = at, resolution, at
    session.add(row)
    session.add(AlertEventRow(alert_id=row.id, at=at, kind=AlertEvent.RESOLVED.value, comment=resolution))
    evaluation.resolved.append(row.id)


def _track(row: AlertRow) -> Track:
    return Track(
        state=AlertState(row.state),
        pending_at=row.pending_at,
        fired_at=row.fired_at,
        clear_since=row.clear_since,
        value=row.value,
        is_unknown=row.is_unknown,
        is_flapping=row.is_flapping,
    )
