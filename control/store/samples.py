"""Requests kept for search, in SQL: added by the thousand, found by what they are, bounded by age and number."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import CursorResult, delete, insert
from sqlmodel import Session, col, func, or_, select

from control.store.tables.telemetry import RequestSampleRow

KEPT_S = 8 * 86_400
# Of each kind the newest stay: ordinary requests, and those that failed or were slow.
MAX_SAMPLES = {False: 40_000, True: 60_000}
_ROWS_PER_STATEMENT = 500

Sample = dict[str, Any]
"""The values of a row, by column."""


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests are wanted; None wants all. They ended within [since, until), Unix seconds."""

    since_s: float | None = None
    until_s: float | None = None
    request_id: str | None = None
    site: str | None = None
    node: str | None = None
    model: str | None = None
    pipeline: str | None = None
    reason: str | None = None
    hit_bucket: int | None = None
    service_class: str | None = None
    tenant: str | None = None
    traffic: str | None = None
    revision: int | None = None
    outcome: str | None = None
    handoff_mode: str | None = None
    min_ttft_s: float | None = None


class SortKey(StrEnum):
    """What requests can be sorted by."""

    AT = "at"
    TTFT = "ttft"
    TPOT = "tpot"
    MAX_ITL = "max_itl"
    E2E = "e2e"
    TRANSFER = "transfer"
    STALL = "stall"
    INPUT_TOKENS = "input_tokens"
    UNCACHED_TOKENS = "uncached_tokens"
    OUTPUT_TOKENS = "output_tokens"
    EAGER_TOKENS = "eager_tokens"
    HIT_RATE = "hit_rate"
    DRC_HIT_RATE = "drc_hit_rate"


_COLUMNS = {
    SortKey.AT: "at_s",
    SortKey.TTFT: "ttft_s",
    SortKey.TPOT: "tpot_s",
    SortKey.MAX_ITL: "max_itl_s",
    SortKey.E2E: "e2e_s",
    SortKey.TRANSFER: "transfer_s",
    SortKey.STALL: "handoff_stall_s",
}
_SAME = (
    *("site", "model", "pipeline", "reason", "hit_bucket", "service_class", "tenant", "traffic", "revision"),
    *("outcome", "handoff_mode", "request_id"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a list goes on: behind the row of this value and number."""

    value: float
    number: int


@dataclass(frozen=True, slots=True)
class Order:
    """How a list is sorted; what has no value of its key stands last when it falls, and first when it rises."""

    key: SortKey = SortKey.AT
    descending: bool = True

    def place_of(self, row: RequestSampleRow) -> Place:
        """The place of a row in this order."""
        value = getattr(row, _column(self.key))
        return Place(-1.0 if value is None else float(value), row.number or 0)


def add_samples(session: Session, samples: Sequence[Sample]) -> None:
    """Add requests."""
    connection = session.connection()
    for start in range(0, len(samples), _ROWS_PER_STATEMENT):
        connection.execute(insert(RequestSampleRow), list(samples[start : start + _ROWS_PER_STATEMENT]))


def delete_old_samples(session: Session, now_s: float) -> int:
    """Delete what is too old or too much; returns how many rows."""
    deleted = _delete(session, col(RequestSampleRow.at_s) < now_s - KEPT_S)
    for is_notable, kept in MAX_SAMPLES.items():
        kind = col(RequestSampleRow.is_notable).is_(is_notable)
        newest_first = select(RequestSampleRow.number).where(kind).order_by(col(RequestSampleRow.number).desc())
        last = session.exec(newest_first.offset(kept).limit(1)).first()
        if last is not None:
            deleted += _delete(session, kind, col(RequestSampleRow.number) <= last)
    return deleted


def load_samples(
    session: Session, wanted: RequestFilter, order: Order, limit: int, after: Place | None = None
) -> list[RequestSampleRow]:
    """Rows that meet all filters, in order, behind a place."""
    value = func.coalesce(getattr(RequestSampleRow, _column(order.key)), -1.0)
    number = col(RequestSampleRow.number)
    query = select(RequestSampleRow).where(*conditions_of(wanted))
    if after is not None:
        is_behind = value < after.value if order.descending else value > after.value
        is_behind_among_equals = number < after.number if order.descending else number > after.number
        query = query.where(or_(is_behind, (value == after.value) & is_behind_among_equals))
    directed = (value.desc(), number.desc()) if order.descending else (value.asc(), number.asc())
    return list(session.exec(query.order_by(*directed).limit(limit)))


def load_sample_columns(session: Session, columns: Sequence[str], *conditions: Any, limit: int) -> list[Sequence[Any]]:
    """Some columns of the newest rows that meet all conditions; an object per row would cost more than all the rest."""
    wanted: Any = [getattr(RequestSampleRow, name) for name in columns]
    query: Any = select(*wanted).where(*conditions).order_by(col(RequestSampleRow.number).desc()).limit(limit)
    return list(session.exec(query))


def conditions_of(wanted: RequestFilter) -> list[Any]:
    """What a row must meet."""
    row = RequestSampleRow
    conditions: list[Any] = [
        getattr(row, name) == value for name in _SAME if (value := getattr(wanted, name)) is not None
    ]
    if wanted.since_s is not None:
        conditions.append(col(row.at_s) >= wanted.since_s)
    if wanted.until_s is not None:
        conditions.append(col(row.at_s) < wanted.until_s)
    if wanted.node is not None:
        conditions.append(
            or_(row.prefill_node == wanted.node, row.relay_node == wanted.node, row.main_node == wanted.node)
        )
    if wanted.min_ttft_s is not None:
        conditions.append(col(row.ttft_s) >= wanted.min_ttft_s)
    return conditions


def _column(key: SortKey) -> str:
    return _COLUMNS.get(key, key.value)


def _delete(session: Session, *conditions: Any) -> int:
    result = session.exec(delete(RequestSampleRow).where(*conditions))
    return result.rowcount if isinstance(result, CursorResult) else 0
