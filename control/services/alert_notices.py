"""Decides who is to be told of which alerts, and puts the messages in line, in the transaction that found them."""

from collections.abc import Sequence
from datetime import datetime

from sqlmodel import Session, col, func, or_, select

from control.domain.alert_messages import AlertFacts, all_labels, message_body
from control.domain.alerts import AlertEvent, AlertState, Notice, Told, due_notice, fingerprint
from control.domain.silences import Matcher, match_all
from control.services.silences import load_silences_at, matchers_of
from control.store.tables import AlertEventRow, AlertRow, WebhookDeliveryRow, WebhookRow

MAX_WAITING = 1000
WAITING = "waiting"


def queue_notices(session: Session, now: datetime) -> int:
    """Put in line what receivers are to be told now, and note what was told; returns how many messages."""
    receivers = session.exec(select(WebhookRow).where(col(WebhookRow.enabled)).order_by(WebhookRow.name)).all()
    if not receivers:
        return 0
    silences = [matchers_of(row.matchers) for row in load_silences_at(session, now)]
    due = _due(session, now, silences)
    messages, told = 0, set()
    for rule in dict.fromkeys(row.rule for row, _ in due):
        facts = [alert_facts(row, notice) for row, notice in due if row.rule == rule]
        for receiver in receivers:
            matchers = matchers_of(receiver.matchers)
            mine = [one for one in facts if match_all(matchers, one.labels)]
            if mine:
                messages += _put_in_line(session, receiver, message_body(receiver.name, rule, mine), now)
                told |= {one.id for one in mine}
    for row, notice in due:
        if row.id in told:
            _note(session, row, notice, now)
    return messages


def is_silenced(row: AlertRow, silences: Sequence[Sequence[Matcher]]) -> bool:
    """Whether any of these silences is about an alert."""
    labels = all_labels(row.rule, row.severity, row.labels)
    return any(match_all(matchers, labels) for matchers in silences)


def alert_facts(row: AlertRow, status: Notice) -> AlertFacts:
    """A stored alert as it is told."""
    return AlertFacts(
        id=row.id or 0,
        status=status,
        labels=all_labels(row.rule, row.severity, row.labels),
        summary=row.summary,
        value=row.value,
        threshold=row.threshold,
        fired_at=row.fired_at or row.pending_at,
        resolved_at=row.resolved_at,
        fingerprint=fingerprint(row.rule, row.labels),
    )


def _due(session: Session, now: datetime, silences: Sequence[Sequence[Matcher]]) -> list[tuple[AlertRow, Notice]]:
    untold_ends = (col(AlertRow.state) == AlertState.RESOLVED.value) & (col(AlertRow.notified_state) == Notice.FIRING)
    is_candidate = or_(col(AlertRow.state) == AlertState.FIRING.value, untold_ends)
    due = []
    for row in session.exec(select(AlertRow).where(is_candidate).order_by(col(AlertRow.id))):
        notice = due_notice(
            AlertState(row.state),
            Told(row.notified_state, row.notified_at),
            now,
            is_silenced=is_silenced(row, silences),
            is_acknowledged=row.acknowledged_at is not None,
        )
        if notice is not None:
            due.append((row, notice))
    return due


def _note(session: Session, row: AlertRow, notice: Notice, now: datetime) -> None:
    row.notified_state, row.notified_at = notice.value, now
    session.add(row)
    event = AlertEventRow(alert_id=row.id or 0, at=now, kind=AlertEvent.NOTIFIED.value, comment=notice.value)
    session.add(event)


def _put_in_line(session: Session, receiver: WebhookRow, body: dict[str, object], now: datetime) -> int:
    """One more message; where very many wait, the receiver has been gone for long, and this one counts as dropped."""
    waiting = session.exec(
        select(func.count()).where(WebhookDeliveryRow.webhook == receiver.name, WebhookDeliveryRow.state == WAITING)
    ).one()
    if waiting >= MAX_WAITING:
        receiver.dropped += 1
        session.add(receiver)
        return 0
    session.add(WebhookDeliveryRow(webhook=receiver.name, state=WAITING, body=body, created_at=now))
    return 1
