"""Silences: for a time, nobody is told of some alerts."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select

from control.domain.policy import FieldProblem
from control.domain.silences import MAX_MATCHERS, MAX_SILENCE, Matcher
from control.domain.versions import version_of
from control.errors import ConflictError, InvalidError, NotFoundError
from control.services.access import Principal, Role, require_role
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.services.versions import check_version
from control.store.tables import SilenceRow


def load_silences(session: Session, limit: int, before_id: int | None = None) -> list[SilenceRow]:
    """Silences, newest first, those that are over included."""
    query = select(SilenceRow).order_by(col(SilenceRow.id).desc()).limit(limit)
    if before_id is not None:
        query = query.where(col(SilenceRow.id) < before_id)
    return list(session.exec(query))


def load_silences_at(session: Session, at: datetime) -> list[SilenceRow]:
    """The silences that hold at a moment."""
    return list(session.exec(select(SilenceRow).where(SilenceRow.starts_at <= at, SilenceRow.ends_at > at)))


def load_silence(session: Session, silence_id: int) -> SilenceRow:
    """One silence.

    Raises:
        NotFoundError: there is no such silence.
    """
    row = session.get(SilenceRow, silence_id)
    if row is None:
        raise NotFoundError(f"There is no silence {silence_id}.")
    return row


def silence_version(row: SilenceRow) -> str:
    """Version of a silence's content."""
    return version_of(_facts(row))


def create_silence(
    plane: ControlPlane,
    principal: Principal,
    matchers: Sequence[Matcher],
    *,
    ends_at: datetime,
    comment: str,
    starts_at: datetime | None = None,
) -> SilenceRow:
    """Silence the alerts that meet every matcher until a moment, from a later one on or at once.

    Raises:
        ForbiddenError: the principal is no operator.
        InvalidError: it would match everything, never end, or be over already.
    """
    require_role(principal, Role.OPERATOR)
    at = plane.now()
    starts_at = at if starts_at is None else max(starts_at, at)
    _check(matchers, starts_at, ends_at, at)
    with plane.database.unit_of_work(plane.send) as work:
        row = SilenceRow(
            matchers=[matcher.to_document() for matcher in matchers],
            starts_at=starts_at,
            ends_at=ends_at,
            comment=comment,
            created_by=principal.name,
            created_at=at,
        )
        work.session.add(row)
        work.session.flush()
        record_event(
            work.session, at, principal.name, "silence.create", f"silence/{row.id}", after=_facts(row), reason=comment
        )
    return row


def replace_silence(
    plane: ControlPlane,
    principal: Principal,
    silence_id: int,
    matchers: Sequence[Matcher],
    *,
    ends_at: datetime,
    comment: str,
    expected: Collection[str] | None,
) -> SilenceRow:
    """Change what a silence is about, or when it ends.

    Raises:
        ForbiddenError, InvalidError: as in `create_silence`.
        NotFoundError: there is no such silence.
        ConflictError: it is over.
        PreconditionRequiredError, StaleRevisionError: see `check_version`.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.unit_of_work(plane.send) as work:
        row = _open_row(work.session, silence_id, plane.now(), expected)
        _check(matchers, row.starts_at, ends_at, plane.now())
        before = _facts(row)
        row.matchers = [matcher.to_document() for matcher in matchers]
        row.ends_at, row.comment = ends_at, comment
        work.session.add(row)
        record_event(
            work.session,
            plane.now(),
            principal.name,
            "silence.replace",
            f"silence/{row.id}",
            before=before,
            after=_facts(row),
            reason=comment,
        )
    return row


def end_silence(plane: ControlPlane, principal: Principal, silence_id: int, expected: Collection[str] | None) -> None:
    """Let a silence end now; it stays in the list.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is no such silence.
        ConflictError: it is over already.
        PreconditionRequiredError, StaleRevisionError: see `check_version`.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.unit_of_work(plane.send) as work:
        row = _open_row(work.session, silence_id, plane.now(), expected)
        before = _facts(row)
        row.ends_at = plane.now()
        work.session.add(row)
        record_event(
            work.session,
            plane.now(),
            principal.name,
            "silence.end",
            f"silence/{row.id}",
            before=before,
            after=_facts(row),
        )


def matchers_of(documents: Sequence[dict[str, str]]) -> list[Matcher]:
    """Matchers as they are stored."""
    return [Matcher.from_document(document) for document in documents]


def _open_row(session: Session, silence_id: int, now: datetime, expected: Collection[str] | None) -> SilenceRow:
    row = load_silence(session, silence_id)
    check_version(silence_version(row), expected)
    if row.ends_at <= now:
        raise ConflictError("The silence is over; make a new one.")
    return row


def _check(matchers: Sequence[Matcher], starts_at: datetime, ends_at: datetime, now: datetime) -> None:
    problems = []
    if not 1 <= len(matchers) <= MAX_MATCHERS:
        problems.append(FieldProblem("matchers", f"Between 1 and {MAX_MATCHERS}: a silence must not hide everything."))
    if ends_at <= max(starts_at, now):
        problems.append(FieldProblem("ends_at", "It lies after the beginning, and in the future."))
    elif ends_at - max(starts_at, now) > MAX_SILENCE or starts_at - now > MAX_SILENCE:
        problems.append(FieldProblem("ends_at", f"A silence lasts at most {MAX_SILENCE.days} days."))
    if problems:
        raise InvalidError("Some fields are not valid.", problems)


def _facts(row: SilenceRow) -> dict[str, Any]:
    return {
        "matchers": row.matchers,
        "starts_at": row.starts_at.isoformat(),
        "ends_at": row.ends_at.isoformat(),
        "comment": row.comment,
    }
