"""Finds requests that were kept whole, shows one beside others of its kind, and says what tells some from the rest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import msgspec
from sqlmodel import Session, col, not_

from control.domain.differences import Difference, Facts, find_differences, prompt_band
from control.domain.slo import HIT_RATE_BUCKET_EDGES
from control.domain.waterfall import StageSpan, critical_path, median_stages
from control.errors import NotFoundError
from control.services.plane import ControlPlane
from control.store.samples import (
    Order,
    Place,
    RequestFilter,
    SortKey,
    conditions_of,
    load_sample_columns,
    load_samples,
)
from control.store.tables import RequestSampleRow
from control.telemetry.records import RequestRecord
from control.telemetry.request_slots import request_row

__all__ = ("Order", "Place", "RequestFilter", "SortKey")  # what a list is asked for with

SAME_BUCKET_WITHIN_S = 1800.0
MAX_SAME_BUCKET = 200
REFERENCE_S = 3600.0
MAX_COMPARED = 20_000
MAX_EXPORTED = 50_000
_PAGE = 1000

_COMPARED = (
    *("weight", "site", "model", "traffic", "tenant", "service_class", "pipeline", "reason", "revision", "outcome"),
    *("hit_bucket", "prefill_node", "relay_node", "main_node", "handoff_mode", "input_tokens"),
)
_decoder = msgspec.msgpack.Decoder(RequestRecord)


@dataclass(frozen=True, slots=True)
class SameBucket:
    """What requests of the same bucket and pipeline went through, in the middle; seconds."""

    requests: int
    ttft_s: float | None
    e2e_s: float | None
    stages: tuple[StageSpan, ...]


@dataclass(frozen=True, slots=True)
class RequestStory:
    """One request as a whole."""

    row: RequestSampleRow
    record: RequestRecord
    stages: tuple[StageSpan, ...]
    critical_path: tuple[StageSpan, ...]
    same_bucket: SameBucket


@dataclass(frozen=True, slots=True)
class Comparison:
    """What tells the selected requests from the rest; counts are estimates where not all requests were kept."""

    since_s: float
    until_s: float
    selected: float
    rest: float
    differences: tuple[Difference, ...]


def find_requests(
    session: Session, wanted: RequestFilter, order: Order, limit: int, after: Place | None = None
) -> list[RequestSampleRow]:
    """Requests that meet all filters, in order, behind a place."""
    return load_samples(session, wanted, order, limit, after)


def export_requests(plane: ControlPlane, wanted: RequestFilter, order: Order) -> Iterator[list[RequestSampleRow]]:
    """The same by the thousand, up to `MAX_EXPORTED`; no session is held between two parts."""
    after: Place | None = None
    for _ in range(MAX_EXPORTED // _PAGE):
        with plane.database.reading() as session:
            rows = load_samples(session, wanted, order, _PAGE, after)
        yield rows
        if len(rows) < _PAGE:
            return
        after = order.place_of(rows[-1])


def load_request(session: Session, request_id: str) -> RequestStory:
    """The newest request of that id.

    Raises:
        NotFoundError: none was kept.
    """
    rows = load_samples(session, RequestFilter(request_id=request_id), Order(), 1)
    if not rows:
        raise NotFoundError("No request of that id is kept: it may be too old, or one of those that are not sampled.")
    row = rows[0]
    record = _decoder.decode(row.record)
    stages = _stages(record)
    until_s = record.e2e_s if record.ttft_s is None else record.ttft_s
    return RequestStory(row, record, stages, critical_path(stages, until_s), _same_bucket(session, row))


def rows_of(rows: Sequence[RequestSampleRow]) -> list[dict[str, Any]]:
    """Kept requests as rows of the live table."""
    return [request_row(_decoder.decode(row.record)) for row in rows]


def compare_requests(session: Session, wanted: RequestFilter, now_s: float) -> Comparison:
    """What tells the requests that meet the filters from all others of the time around them.

    The rest ended within the selection's time as well, or up to an hour before it.
    """
    until_s = now_s if wanted.until_s is None else wanted.until_s
    since_s = (until_s if wanted.since_s is None else min(wanted.since_s, until_s)) - REFERENCE_S
    around = conditions_of(RequestFilter(since_s=since_s, until_s=until_s))
    chosen = conditions_of(replace(wanted, since_s=wanted.since_s, until_s=until_s))
    if wanted.since_s is None:
        chosen.append(col(RequestSampleRow.at_s) >= since_s)
    numbers = {row[0] for row in load_sample_columns(session, ("number", "weight"), *chosen, limit=MAX_COMPARED)}
    columns = ("number", *_COMPARED)
    rows = load_sample_columns(session, columns, *around, limit=2 * MAX_COMPARED)
    selected = [(_facts(row[1:]), float(row[1])) for row in rows if row[0] in numbers and row[1]]
    rest = [(_facts(row[1:]), float(row[1])) for row in rows if row[0] not in numbers and row[1]]
    found = find_differences(selected, rest)
    fixed = {dimension for dimension, value in _fixed(wanted).items() if value is not None}
    return Comparison(
        since_s,
        until_s,
        sum(weight for _, weight in selected),
        sum(weight for _, weight in rest),
        tuple(one for one in found if one.dimension not in fixed),
    )


def _same_bucket(session: Session, row: RequestSampleRow) -> SameBucket:
    others: tuple[Any, ...] = (
        col(RequestSampleRow.hit_bucket) == row.hit_bucket,
        col(RequestSampleRow.pipeline) == row.pipeline,
        col(RequestSampleRow.at_s).between(row.at_s - SAME_BUCKET_WITHIN_S, row.at_s + SAME_BUCKET_WITHIN_S),
        col(RequestSampleRow.outcome) == "completed",
        not_(col(RequestSampleRow.number) == row.number),
    )
    found = load_sample_columns(session, ("ttft_s", "e2e_s", "record"), *others, limit=MAX_SAME_BUCKET)
    first_tokens_s = [one[0] for one in found if one[0] is not None]
    return SameBucket(
        requests=len(found),
        ttft_s=median(first_tokens_s) if first_tokens_s else None,
        e2e_s=median(one[1] for one in found) if found else None,
        stages=median_stages(_stages(_decoder.decode(one[2])) for one in found),
    )


def _stages(record: RequestRecord) -> tuple[StageSpan, ...]:
    return tuple(StageSpan(stage.name, stage.start_s, stage.end_s) for stage in record.stages)


def _facts(values: Sequence[Any]) -> Facts:
    row = dict(zip(_COMPARED, values, strict=True))
    bucket = row["hit_bucket"]
    return {
        "site": row["site"],
        "model": row["model"],
        "traffic": row["traffic"],
        "tenant": row["tenant"],
        "service_class": row["service_class"],
        "pipeline": row["pipeline"],
        "reason": row["reason"],
        "revision": f"r{row['revision']}" if row["revision"] else "",
        "outcome": row["outcome"],
        "hit_bucket": bucket_name(bucket) if bucket >= 0 else "",
        "prefill_node": row["prefill_node"],
        "relay_node": row["relay_node"],
        "main_node": row["main_node"],
        "handoff_mode": row["handoff_mode"],
        "prompt_length": prompt_band(row["input_tokens"]),
    }


def bucket_name(bucket: int) -> str:
    """A hit-rate bucket by its edges, such as `97-98`, in percent."""
    low, high = HIT_RATE_BUCKET_EDGES[bucket : bucket + 2]
    return f"{round(low * 100)}-{round(high * 100)}"


def _fixed(wanted: RequestFilter) -> dict[str, object]:
    """Dimensions that the selection itself pins, which therefore tell nothing."""
    names = ("site", "model", "traffic", "tenant", "service_class", "pipeline", "reason", "revision", "outcome")
    return {name: getattr(wanted, name) for name in (*names, "hit_bucket", "handoff_mode")}
