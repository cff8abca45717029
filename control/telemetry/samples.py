"""Chooses the requests that are kept whole, and makes rows of them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from control.domain.rollups import Exemplar, RequestKey
from control.domain.sampling import Sampler
from control.store.samples import Sample
from control.telemetry.checks import MAX_TOKENS
from control.telemetry.columns import RequestColumns
from control.telemetry.folding import Group, is_storable
from control.telemetry.received import whole
from control.telemetry.records import RequestRecord

_SAME = (
    *("request_id", "gateway", "model", "traffic", "tenant", "reason", "outcome"),
    *("prefill_node", "relay_node", "main_node", "handoff_mode"),
    *("input_tokens", "output_tokens", "eager_tokens", "uncached_tokens", "resumes"),
    *("ttft_s", "ttst_s", "tpot_s", "max_itl_s", "e2e_s", "transfer_s", "handoff_stall_s", "drc_hit_rate"),
)


class _Slowest(NamedTuple):
    """The slowest request of a cell."""

    exemplar: Exemplar
    record: RequestRecord
    is_notable: bool


def sample_of(record: RequestRecord, key: RequestKey, weight: int, *, is_notable: bool) -> Sample:
    """A request as a row."""
    row: Sample = {name: getattr(record, name) for name in _SAME}
    return row | {
        "at_s": record.received_at_s + record.e2e_s,
        "weight": weight,
        "is_notable": is_notable,
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

    def take(self, columns: RequestColumns, groups: Iterable[Group]) -> int:
        """Keep some of the requests; gives back how many of those could be stored nowhere."""
        lost = 0
        notable = columns.is_slow | columns.outcome["failed"] | columns.outcome["shed"]
        for group in groups:
            for is_notable in (False, True):
                places = group.places[notable[group.places] == is_notable]
                # In the order in which they came, whatever their group is sorted by.
                lost += self._keep(columns, group.key, np.sort(places).tolist(), is_notable=is_notable)
            self._note_slowest(columns, group, is_notable=bool(notable[group.places[-1]]))
        return lost

    def drain(self) -> list[Sample]:
        """All rows so far; begins anew."""
        rows, self.rows = self.rows, []
        kept = {row["request_id"] for row in rows}
        rows += [
            sample_of(slowest.record, key, 0, is_notable=slowest.is_notable)
            for key, slowest in self._slowest.items()
            if slowest.exemplar.request_id not in kept
        ]
        self._slowest = {}
        self.sampler.forget()
        return rows

    def _keep(self, columns: RequestColumns, key: RequestKey, places: list[int], *, is_notable: bool) -> int:
        lost = 0
        ids = [columns.records[place].request_id for place in places]
        for place, weight in zip(places, self.sampler.weights(ids, (key.at_s, key.site, is_notable)), strict=True):
            if not weight:
                continue
            record = whole(columns.records[place])
            if record is None or not _is_drawable(record):
                lost += 1
            else:
                self.rows.append(sample_of(record, key, weight, is_notable=is_notable))
        return lost

    def _note_slowest(self, columns: RequestColumns, group: Group, *, is_notable: bool) -> None:
        exemplar, known = group.sums.slowest, self._slowest.get(group.key)
        if not exemplar.request_id or (known is not None and known.exemplar >= exemplar):
            return
        record = whole(columns.records[int(group.places[-1])])
        if record is not None and _is_drawable(record):
            self._slowest[group.key] = _Slowest(exemplar, record, is_notable)


def _is_drawable(record: RequestRecord) -> bool:
    """Whether a record fits a row of any database, and its stages an axis."""
    return (
        is_storable(record)
        and 0 <= record.resumes <= MAX_TOKENS
        and all(math.isfinite(stage.start_s) and math.isfinite(stage.end_s) for stage in record.stages)
    )
