"""Sums of telemetry in SQL, written together with how far the streams have been read."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import reduce
from itertools import islice
from operator import add
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import CursorResult, delete, update
from sqlmodel import Session, col, select

from control.domain.histogram import Histogram
from control.domain.rollups import (
    RESOLUTIONS,
    LinkClassKey,
    LinkClassSums,
    LinkKey,
    LinkSums,
    NodeKey,
    NodeSums,
    RequestKey,
    RequestSums,
    Resolution,
    Rollups,
    SiteKey,
    SiteSums,
    Sums,
)
from control.store.tables.base import Row
from control.store.tables.telemetry import (
    LinkClassRollupRow,
    LinkRollupRow,
    NodeRollupRow,
    RequestRollupRow,
    SiteRollupRow,
    StreamPositionRow,
    TelemetryCountRow,
    TelemetrySourceRow,
)

_ROWS_PER_STATEMENT = 400
NO_LIMITS: Mapping[str, object] = {}

_TABLES = (RequestRollupRow, LinkRollupRow, LinkClassRollupRow, NodeRollupRow, SiteRollupRow)
_Key = RequestKey | LinkKey | LinkClassKey | NodeKey | SiteKey
_Item = TypeVar("_Item")
_Group = TypeVar("_Group")


@dataclass(frozen=True, slots=True)
class Position:
    """How far one stream has been read: the id of the last entry, and how many entries were read or are gone."""

    last_id: str
    entries: int


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """A sender's row: when it last sent, and the consumer's own notes as JSON."""

    kind: str
    name: str
    site: str
    sent_at_s: float
    state: Any


class Spans(NamedTuple):
    """Spans of one length that begin within [since, until), Unix seconds."""

    resolution: Resolution
    since_s: float
    until_s: float


@dataclass(slots=True)
class Progress:
    """Where the consumer stands."""

    positions: dict[str, Position] = field(default_factory=dict)
    sources: list[SourceFacts] = field(default_factory=list)


def load_progress(session: Session) -> Progress:
    """What the last save left."""
    positions = {row.stream: Position(row.last_id, row.entries) for row in session.exec(select(StreamPositionRow))}
    sources = [
        SourceFacts(row.kind, row.name, row.site, row.sent_at_s, row.state)
        for row in session.exec(select(TelemetrySourceRow))
    ]
    return Progress(positions, sources)


def advance_positions(
    session: Session, before: Mapping[str, Position], after: Mapping[str, Position], at: datetime
) -> bool:
    """Take the streams from where this consumer found them to where it is, and hold them until the commit.

    Returns:
        False if another consumer has been at work; nothing may then be written.
    """
    for stream in sorted(after):
        position = after[stream]
        values: dict[str, Any] = {"last_id": position.last_id, "entries": position.entries, "saved_at": at}
        if stream not in before:
            if session.get(StreamPositionRow, stream) is not None:
                return False
            session.add(StreamPositionRow(stream=stream, **values))
            session.flush()
            continue
        same = update(StreamPositionRow).where(
            col(StreamPositionRow.stream) == stream, col(StreamPositionRow.last_id) == before[stream].last_id
        )
        if not _rowcount(session, same.values(**values)):
            return False
    return True


def add_rollups(session: Session, rollups: Rollups, now_s: float) -> None:
    """Add sums of ten seconds to what is stored, in spans of every length."""
    for resolution in RESOLUTIONS:
        folded = rollups.at(resolution, now_s)
        _add(session, resolution, RequestRollupRow, RequestKey, folded.requests)
        _add(session, resolution, LinkRollupRow, LinkKey, folded.links)
        _add(session, resolution, LinkClassRollupRow, LinkClassKey, folded.link_classes)
        _add(session, resolution, NodeRollupRow, NodeKey, folded.nodes)
        _add(session, resolution, SiteRollupRow, SiteKey, folded.sites)


def save_sources(session: Session, sources: Iterable[SourceFacts]) -> None:
    """Replace what is known of some senders."""
    for facts in sources:
        session.merge(
            TelemetrySourceRow(
                kind=facts.kind, name=facts.name, site=facts.site, sent_at_s=facts.sent_at_s, state=facts.state
            )
        )


def add_counts(session: Session, counts: Mapping[str, int]) -> None:
    """Count what was left out."""
    for reason, count in counts.items():
        row = session.get(TelemetryCountRow, reason) or TelemetryCountRow(reason=reason)
        row.count += count
        session.add(row)


def load_counts(session: Session) -> dict[str, int]:
    """What was left out so far, by reason."""
    return {row.reason: row.count for row in session.exec(select(TelemetryCountRow))}


def delete_old_rollups(session: Session, now_s: float) -> int:
    """Delete what is kept no longer; returns how many rows."""
    deleted = 0
    for resolution in RESOLUTIONS:
        oldest_s = resolution.start_s(now_s - resolution.kept_s)
        for table in _TABLES:
            old = delete(table).where(col(table.span_s) == resolution.span_s, col(table.at_s) < oldest_s)
            deleted += _rowcount(session, old)
    return deleted


def load_request_rollups(
    session: Session, resolution: Resolution, since_s: float, until_s: float
) -> dict[RequestKey, RequestSums]:
    """Sums of the spans that begin within [since, until), Unix seconds."""
    spans = Spans(resolution, since_s, until_s)
    return sum_request_rollups(session, spans, lambda key: key)


def sum_request_rollups(
    session: Session,
    spans: Spans,
    group: Callable[[RequestKey], _Group],
    figures: Sequence[str] = (),
    only: Mapping[str, object] = NO_LIMITS,
) -> dict[_Group, RequestSums]:
    """The same with fewer distinctions; only some figures, where these are named, as histograms are long.

    `only` says which parts of a key must have which value.
    """
    wanted = tuple(figures) or tuple(one.name for one in fields(RequestSums))
    rows = _load(session, RequestRollupRow, (*RequestKey._fields, *wanted), spans, only)
    width = len(RequestKey._fields)
    groups: dict[_Group, list[Sequence[Any]]] = {}
    for row in rows:
        groups.setdefault(group(RequestKey(*row[:width])), []).append(row[width:])
    return {name: RequestSums(**_added(wanted, rows)) for name, rows in groups.items()}


def load_link_rollups(
    session: Session, resolution: Resolution, since_s: float, until_s: float
) -> dict[LinkKey, LinkSums]:
    """Sums of the spans that begin within [since, until), Unix seconds."""
    return _load_sums(session, LinkRollupRow, (LinkKey, LinkSums), Spans(resolution, since_s, until_s))


def load_link_class_rollups(
    session: Session, resolution: Resolution, since_s: float, until_s: float
) -> dict[LinkClassKey, LinkClassSums]:
    """The same of links and service classes."""
    return _load_sums(session, LinkClassRollupRow, (LinkClassKey, LinkClassSums), Spans(resolution, since_s, until_s))


def load_node_rollups(
    session: Session, resolution: Resolution, since_s: float, until_s: float
) -> dict[NodeKey, NodeSums]:
    """The same of main nodes."""
    return _load_sums(session, NodeRollupRow, (NodeKey, NodeSums), Spans(resolution, since_s, until_s))


def load_site_rollups(
    session: Session, resolution: Resolution, since_s: float, until_s: float
) -> dict[SiteKey, SiteSums]:
    """The same of sites."""
    return _load_sums(session, SiteRollupRow, (SiteKey, SiteSums), Spans(resolution, since_s, until_s))


def _load_sums(session: Session, table: Any, kinds: tuple[Any, Any], spans: Spans) -> dict[Any, Any]:
    """Sums by key, of the two types that are given."""
    key_type, sums_type = kinds
    wanted = (*key_type._fields, *(one.name for one in fields(sums_type)))
    width = len(key_type._fields)
    return {key_type(*row[:width]): sums_type(*row[width:]) for row in _load(session, table, wanted, spans)}


def _load(
    session: Session, table: Any, columns: Sequence[str], spans: Spans, only: Mapping[str, object] = NO_LIMITS
) -> Iterable[Sequence[Any]]:
    """Columns instead of rows: an object per row would cost more than all the rest."""
    wanted: Any = [getattr(table, name) for name in columns]
    query: Any = select(*wanted).where(
        table.span_s == spans.resolution.span_s,
        table.at_s >= spans.since_s,
        table.at_s < spans.until_s,
        *(getattr(table, name) == value for name, value in only.items()),
    )
    found: Iterable[Sequence[Any]] = session.exec(query)
    return found


def _added(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Figures of some rows, column by column: numbers added, histograms merged at once."""
    columns = zip(*rows, strict=True)
    return {
        name: Histogram.from_bytes(*column) if isinstance(column[0], bytes) else reduce(add, column)
        for name, column in zip(names, columns, strict=True)
    }


def _add(session: Session, resolution: Resolution, table: Any, key_type: Any, added: Mapping[Any, Sums]) -> None:
    stored: dict[_Key, Row] = {}
    for starts in _batched(sorted({key.at_s for key in added}), _ROWS_PER_STATEMENT):
        found = select(table).where(table.span_s == resolution.span_s, table.at_s.in_(starts))
        stored.update({_key_of(row, key_type): row for row in session.exec(found)})
    for key, sums in added.items():
        row = stored.get(key)
        if row is None:
            row = table(span_s=resolution.span_s, **key._asdict())
        _include(row, sums)
        session.add(row)


def _include(row: Row, sums: Sums) -> None:
    for one in fields(sums):
        value = getattr(sums, one.name)
        stored = getattr(row, one.name)
        if isinstance(value, Histogram):
            if value.count:
                setattr(row, one.name, Histogram.from_bytes(stored, value.to_bytes()).to_bytes())
        elif value:
            setattr(row, one.name, stored + value)


def _key_of(row: Row, key: Any) -> Any:
    return key(*(getattr(row, name) for name in key._fields))


def _batched(items: Sequence[_Item], count: int) -> Iterator[list[_Item]]:
    rest = iter(items)
    while batch := list(islice(rest, count)):
        yield batch


def _rowcount(session: Session, statement: Any) -> int:
    result = session.exec(statement)
    return result.rowcount if isinstance(result, CursorResult) else 0
