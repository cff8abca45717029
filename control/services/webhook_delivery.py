"""Delivers messages that wait: in order for each receiver, again after growing pauses, given up after some attempts.

A receiver is leased to one worker at a time, and what came of a message is written under that lease.
"""

import logging
import secrets
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import CursorResult
from sqlmodel import Session, col, delete, or_, select, update

from control.services.alert_notices import WAITING
from control.services.plane import ControlPlane
from control.services.webhook_sending import Message, Post, Receipt, post_message
from control.store.tables import WebhookDeliveryRow, WebhookRow

DELIVERED = "delivered"
DEAD = "dead"
MAX_ATTEMPTS = 8
MAX_DEAD = 100
KEPT_DELIVERED = timedelta(days=7)
FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 900.0
LEASE = timedelta(seconds=30)
BUDGET_S = 5.0

log = logging.getLogger(__name__)


def pause_s(failures: int) -> float:
    """How long a receiver is left alone after so many failures in a row, seconds."""
    return min(FIRST_PAUSE_S * 2.0 ** (min(failures, 20) - 1), MAX_PAUSE_S)


def deliver_waiting(
    plane: ControlPlane, post: Post | None = None, elapsed: Callable[[], float] = time.monotonic
) -> list[tuple[str, Receipt]]:
    """Send what is due, for a few seconds at most; what is left is found by the next run.

    Returns:
        Receiver and receipt of every attempt.
    """
    send = post or (lambda message: post_message(message, plane.webhook_networks, plane.now().timestamp()))
    began_s, attempts = elapsed(), []
    for name in _due_receivers(plane):
        token = secrets.token_hex(16)
        if not _lease(plane, name, token):
            continue
        is_in_time = partial(_is_in_time, elapsed, began_s)
        attempts += [(name, receipt) for receipt in _deliver_to(plane, name, token, send, is_in_time)]
        if not is_in_time():
            break
    return attempts


def _is_in_time(elapsed: Callable[[], float], began_s: float) -> bool:
    return elapsed() - began_s < BUDGET_S


def _deliver_to(
    plane: ControlPlane, name: str, token: str, send: Post, is_in_time: Callable[[], bool]
) -> list[Receipt]:
    """Send one receiver's messages in order until one fails, none is left, or time is up; then let go of it."""
    receipts: list[Receipt] = []
    while is_in_time():
        found = _next_message(plane, name, token)
        if found is None:
            break
        delivery_id, message = found
        receipt = send(message)
        if not _write_receipt(plane, name, token, delivery_id, receipt):
            log.info("dropped the receipt of delivery %d: another worker has the receiver", delivery_id)
            return receipts
        receipts.append(receipt)
        if not receipt.is_delivered:
            log.warning("webhook %s did not take delivery %d: %s", name, delivery_id, receipt.error)
            break
    _release(plane, name, token)
    return receipts


def _due_receivers(plane: ControlPlane) -> list[str]:
    with plane.database.reading() as session:
        waiting = select(WebhookDeliveryRow.webhook).where(WebhookDeliveryRow.state == WAITING)
        due = select(WebhookRow.name).where(
            col(WebhookRow.name).in_(waiting), col(WebhookRow.enabled), WebhookRow.next_attempt_at <= plane.now()
        )
        return list(session.exec(due.order_by(col(WebhookRow.next_attempt_at))))


def _lease(plane: ControlPlane, name: str, token: str) -> bool:
    now = plane.now()
    is_free = or_(col(WebhookRow.leased_until).is_(None), col(WebhookRow.leased_until) <= now)
    with plane.database.unit_of_work(plane.send) as work:
        claim = update(WebhookRow).where(col(WebhookRow.name) == name, is_free)
        return _changed(work.session, claim.values(lease_token=token, leased_until=now + LEASE))


def _next_message(plane: ControlPlane, name: str, token: str) -> tuple[int, Message] | None:
    with plane.database.reading() as session:
        receiver = session.get(WebhookRow, name)
        if receiver is None or receiver.lease_token != token or not receiver.enabled:
            return None
        waiting = select(WebhookDeliveryRow).where(
            WebhookDeliveryRow.webhook == name, WebhookDeliveryRow.state == WAITING
        )
        row = session.exec(waiting.order_by(col(WebhookDeliveryRow.id))).first()
    if row is None or row.id is None:
        return None
    return row.id, Message(receiver.url, receiver.secret, str(row.id), row.body)


def _write_receipt(plane: ControlPlane, name: str, token: str, delivery_id: int, receipt: Receipt) -> bool:
    """Write under the lease; False if it is somebody else's by now."""
    now = plane.now()
    with plane.database.unit_of_work(plane.send) as work:
        session = work.session
        receiver = session.get(WebhookRow, name, with_for_update=True)
        row = session.get(WebhookDeliveryRow, delivery_id)
        if receiver is None or row is None or receiver.lease_token != token:
            return False
        row.attempts += 1
        row.error = receipt.error
        if receipt.is_delivered:
            row.state, row.finished_at, receiver.failures = DELIVERED, now, 0
        else:
            receiver.failures += 1
            receiver.next_attempt_at = now + timedelta(seconds=pause_s(receiver.failures))
            if row.attempts >= MAX_ATTEMPTS:
                row.state, row.finished_at = DEAD, now
        receiver.leased_until = now + LEASE
        session.add_all([receiver, row])
        session.flush()
        _forget(session, name, now)
    return True


def _forget(session: Session, name: str, now: datetime) -> None:
    """Keep what was delivered for a week, and the newest of what was given up."""
    mine = col(WebhookDeliveryRow.webhook) == name
    old = (col(WebhookDeliveryRow.state) == DELIVERED) & (col(WebhookDeliveryRow.finished_at) < now - KEPT_DELIVERED)
    session.exec(delete(WebhookDeliveryRow).where(mine, old))
    dead = select(WebhookDeliveryRow.id).where(mine, WebhookDeliveryRow.state == DEAD)
    too_many = list(session.exec(dead.order_by(col(WebhookDeliveryRow.id).desc()).offset(MAX_DEAD)))
    if too_many:
        session.exec(delete(WebhookDeliveryRow).where(col(WebhookDeliveryRow.id).in_(too_many)))


def _release(plane: ControlPlane, name: str, token: str) -> None:
    with plane.database.unit_of_work(plane.send) as work:
        mine = update(WebhookRow).where(col(WebhookRow.name) == name, col(WebhookRow.lease_token) == token)
        work.session.exec(mine.values(lease_token=None, leased_until=None))


def _changed(session: Session, statement: object) -> bool:
    result = session.exec(statement)  # type: ignore[call-overload] # an update, for which there is no overload
    return isinstance(result, CursorResult) and bool(result.rowcount)
