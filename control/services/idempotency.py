"""The same POST asked twice is one: its first answer is kept for a day and given again."""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlmodel import col, delete, update

from control.errors import AnswerLostError, IdempotencyKeyReusedError, RequestInProgressError
from control.services.plane import ControlPlane
from control.store.idempotency import Claim, is_claimed_by
from control.store.named_lock import lock_name
from control.store.tables import IdempotencyRow

KEPT = timedelta(hours=24)
# Longer than any request takes; a claim that is older belongs to a process that died.
CLAIM_LIFETIME = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered; the body is text."""

    status: int
    headers: Mapping[str, str]
    body: str


def claim_request(plane: ControlPlane, actor: str, key: str, request: bytes) -> Claim | Answer:
    """Begin a request, or find its answer.

    Args:
        plane: the edges.
        actor: whose key it is; another actor's equal key is another key.
        key: as the caller sent it; only its hash is kept.
        request: all that makes the request what it is; only its hash is kept.

    Raises:
        IdempotencyKeyReusedError: the key belongs to another request.
        RequestInProgressError: the same request is being carried out.
        AnswerLostError: it was carried out, and its answer was never stored.
    """
    key_hash, request_hash = (hashlib.sha256(part).hexdigest() for part in (key.encode(), request))
    claim = Claim(actor, key_hash, secrets.token_urlsafe(16))
    with plane.database.unit_of_work(plane.send) as work:
        now = plane.now()
        work.session.exec(delete(IdempotencyRow).where(col(IdempotencyRow.expires_at) <= now))
        lock_name(work.session, f"idempotency {actor} {key_hash}")
        row = work.session.get(IdempotencyRow, (actor, key_hash))
        if row is None:
            work.session.add(
                IdempotencyRow(
                    actor=actor,
                    key_hash=key_hash,
                    request_hash=request_hash,
                    claim=claim.token,
                    claimed_at=now,
                    headers={},
                    expires_at=now + KEPT,
                )
            )
            return claim
        if row.request_hash != request_hash:
            raise IdempotencyKeyReusedError
        if row.status is not None:
            return Answer(row.status, row.headers, row.body)
        if row.claimed_at > now - CLAIM_LIFETIME:
            raise RequestInProgressError
        if row.has_effect:
            raise AnswerLostError
        row.claim, row.claimed_at = claim.token, now
    return claim


def keep_answer(plane: ControlPlane, claim: Claim, answer: Answer) -> None:
    """Store what the request was answered; nothing where the claim was lost."""
    values = {"status": answer.status, "headers": dict(answer.headers), "body": answer.body}
    with plane.database.unit_of_work(plane.send) as work:
        work.session.exec(update(IdempotencyRow).where(is_claimed_by(claim)).values(**values))


def release_claim(plane: ControlPlane, claim: Claim, *, refused: bool) -> None:
    """Let the key be used again, as nothing was changed: the request was refused, or failed before any change."""
    condition = is_claimed_by(claim)
    if not refused:
        condition &= col(IdempotencyRow.has_effect).is_(False)
    with plane.database.unit_of_work(plane.send) as work:
        work.session.exec(delete(IdempotencyRow).where(condition))
