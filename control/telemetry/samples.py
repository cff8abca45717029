"""Chooses the requests that are kept whole, and makes rows of them."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from control.domain.rollups import Exemplar, RequestKey
from control.domain.sampling import Sampler, is_notable
from control.domain.slo import Objectives
from control.store.samples import Sample
from control.telemetry.checks import MAX_TOKENS, ended_at_s
from control.telemetry.records import RequestRecord

MAX_TEXT_CHARS = 200
_TEXTS = (
    *("request_id", "gateway", "model", "traffic", "tenant", "reason", "outcome"),
    *("prefill_node", "relay_node", "main_node", "handoff_mode", "link", "output_bound_source", "trace_id"),
)
_SAME = (
    *("request_id", "gateway", "model", "traffic", "tenant", "reason", "outcome"),
    *("prefill_node", "relay_node", "main_node", "handoff_mode"),
    *("input_tokens", "output_tokens", "eager_tokens", "uncached_tokens", "resumes"),
    *("ttft_s", "ttst_s", "tpot_s", "max_itl_s", "e2e_s", "transfer_s", "handoff_stall_s", "drc_hit_rate"),
)


class _Slowest(NamedTuple):
    """The slowest request of a cell; `record` is None where it is kept anyway."""

    exemplar: Exemplar
    record: RequestRecord | None
    is_notable: bool


def is_storable(record: RequestRecord) -> bool:
    """Whether a record's texts and small numbers fit a row of any database."""
    texts = (getattr(record, name) for name in _TEXTS)
    return (
        all(len(text) <= MAX_TEXT_CHARS and (not text or text.isprintable()) for text in texts)
        and 0 <= record.resumes <= MAX_TOKENS
        and all(math.isfinite(stage.start_s) and math.isfinite(stage.end_s) for stage in record.stages)
    )


def exemplar_of(record: RequestRecord) -> Exemplar:
    """A request as the slowest so far; none without a first token, or with an id that cannot be stored."""
    if record.ttft_s is None or not is_storable(record):
        return Exemplar()
    return Exemplar(record.ttft_s, record.request_id)


def sample_of(record: RequestRecord, key: RequestKey, weight: int, *, notable: bool) -> Sample:
    """A request as a row."""
    row: Sample = {name: getattr(record, name) for name in _SAME}
    return row | {
        "at_s": ended_at_s(record),
        "weight": weight,
        "is_notable": notable,
        "site": key.site,
        "service_class": key.service_class,
        "pipeline": key.pipeline,
        "revision": key.revision,
        "hit_bucket": key.hit_bucket,
        "hit_rate": record.prefix_hit_rate,
        "record": msgspec.msgpack.encode(record),
    }


@dataclass(slots=True)
class SampleBuffer:
    """Requests to be kept since the last save. The slowest of each cell is kept always: charts point to it."""

    sampler: Sampler = field(default_factory=Sampler)
    rows: list[Sample] = field(default_factory=list)
    _slowest: dict[RequestKey, _Slowest] = field(default_factory=dict)

    def take(self, record: RequestRecord, key: RequestKey, objectives: Objectives) -> bool:
        """Keep a request or let it go; False if it can be stored nowhere."""
        if not is_storable(record):
            return False
        notable = is_notable(record.outcome, record.ttft_s, record.tpot_s, objectives)
        weight = self.sampler.weight(record.request_id, (key.at_s, key.site, notable))
        if weight:
            self.rows.append(sample_of(record, key, weight, notable=notable))
        exemplar = exemplar_of(record)
        known = self._slowest.get(key)
        if exemplar.request_id and (known is None or exemplar > known.exemplar):
            self._slowest[key] = _Slowest(exemplar, None if weight else record, notable)
        return True

    def drain(self) -> list[Sample]:
        """All rows so far; begins anew."""
        rows, self.rows = self.rows, []
        for key, slowest in self._slowest.items():
            if slowest.record is not None:
                rows.append(sample_of(slowest.record, key, 0, notable=slowest.is_notable))
        self._slowest = {}
        self.sampler.forget()
        return rows
