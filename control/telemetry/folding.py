"""Sums of many records at once, by key: counts exactly, durations into histograms."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from control.domain.histogram import BUCKETS, Histogram
from control.domain.policy_fields import is_member_name
from control.domain.rollups import Exemplar, NodeKey, NodeSums, RequestKey, RequestSums
from control.telemetry.checks import is_name
from control.telemetry.columns import Floats, Ints, RequestColumns, columns_of
from control.telemetry.records import RequestBatch
from control.telemetry.request_slots import OTHER

GROUPS_AT_A_TIME = 512
MAX_CODE = 2**62
_HISTOGRAMS = (
    ("ttft", "ttft_s"),
    ("tpot", "tpot_s"),
    ("e2e", "e2e_s"),
    ("transfer", "transfer_s"),
    ("stall", "handoff_stall_s"),
)
_texts_of = attrgetter(
    *("request_id", "gateway", "model", "traffic", "tenant", "reason", "outcome"),
    *("prefill_node", "relay_node", "main_node", "handoff_mode", "link", "output_bound_source", "trace_id"),
)


@dataclass(frozen=True, slots=True)
class Group:
    """Records of one key: their places, and what they add up to. The last place is that of the slowest."""

    key: RequestKey
    places: Ints
    sums: RequestSums


@dataclass(frozen=True, slots=True)
class Folded:
    """The records that count, by group, and how many do not: `late` ended too long ago."""

    columns: RequestColumns
    places: Ints
    groups: tuple[Group, ...]
    nodes: Mapping[NodeKey, NodeSums]
    impossible: int
    late: int


class Received:
    """Batches that were read together; whoever asks for the same records gets the same sums, and leaves them alone."""

    def __init__(self, batches: Sequence[RequestBatch], now_s: float) -> None:
        self.batches = batches
        self.now_s = now_s
        self._columns: RequestColumns | None = None
        self._folded: Folded | None = None

    def fold(self, is_wanted: Sequence[bool], oldest_s: float) -> Folded:
        """Sums of the records of some batches, without those that ended before a moment, Unix seconds."""
        if self._columns is None:
            self._columns = columns_of(self.batches, self.now_s)
        columns = self._columns
        wanted = np.array(is_wanted, dtype=np.bool_)[columns.batch_of]
        possible = wanted & columns.is_possible
        is_late = possible & (columns.ended_at_s < oldest_s)
        places = np.flatnonzero(possible & ~is_late)
        if self._folded is None or not np.array_equal(places, self._folded.places):
            self._folded = Folded(columns, places, tuple(fold(columns, places)), fold_nodes(columns, places), 0, 0)
        return replace(self._folded, impossible=int(np.sum(wanted & ~columns.is_possible)), late=int(np.sum(is_late)))


def fold(columns: RequestColumns, places: Ints) -> Iterator[Group]:
    """Sums of the records at these places; the groups together hold each once."""
    if not len(places):
        return
    parts = np.stack(
        (
            columns.slot_s[places],
            columns.word_codes[places],
            columns.hit_bucket[places],
            columns.revision[places],
        )
    )
    codes = _one_code(parts)
    waited_s = np.nan_to_num(columns.figures["ttft_s"][places], nan=-1.0)
    order = np.lexsort((waited_s, codes))
    places, parts, codes = places[order], parts[:, order], codes[order]
    starts = np.flatnonzero(np.concatenate(([True], codes[1:] != codes[:-1])))
    for first in range(0, len(starts), GROUPS_AT_A_TIME):
        some = starts[first : first + GROUPS_AT_A_TIME]
        end = int(starts[first + GROUPS_AT_A_TIME]) if first + GROUPS_AT_A_TIME < len(starts) else len(places)
        begin = int(some[0])
        yield from _groups(columns, places[begin:end], parts[:, begin:end], some - begin)


def fold_nodes(columns: RequestColumns, places: Ints) -> dict[NodeKey, NodeSums]:
    """What the records at these places brought to main nodes; what no node can be called becomes one word."""
    names = [columns.records[place].main_node for place in places.tolist()]
    codes: dict[str, int] = {"": 0}
    code_of = np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int64)
    has_main = code_of > 0
    places, code_of = places[has_main], code_of[has_main]
    if not len(places):
        return {}
    found, first, group_of = np.unique(
        _one_code(np.stack((columns.slot_s[places], code_of))), return_index=True, return_inverse=True
    )
    count = len(found)
    keys = np.stack((columns.slot_s[places], code_of))[:, first]
    requests = np.bincount(group_of, minlength=count)
    uncached = np.bincount(group_of, columns.figures["uncached_tokens"][places], count)
    lags = np.bincount(group_of, columns.lag_token_s[places], count)
    main_nodes = list(codes)
    nodes: dict[NodeKey, NodeSums] = {}
    for index in range(count):
        at_s, code = keys[:, index].tolist()
        name = main_nodes[code] if is_member_name(main_nodes[code]) else OTHER
        sums = NodeSums(int(requests[index]), int(uncached[index]), float(lags[index]))
        nodes.setdefault(NodeKey(at_s, name), NodeSums()).include(sums)
    return nodes


def _one_code(parts: Ints) -> Ints:
    """One number for each combination of the parts."""
    lowest, sizes = parts.min(axis=1), np.ptp(parts, axis=1) + 1
    if math.prod(sizes.tolist()) > MAX_CODE:  # what only a faulty gateway can send
        parts = np.stack([np.unique(part, return_inverse=True)[1] for part in parts])
        return np.asarray(np.unique(parts, axis=1, return_inverse=True)[1]).reshape(-1)
    code = np.zeros(parts.shape[1], dtype=np.int64)
    for part, low, size in zip(parts, lowest, sizes, strict=True):
        code = code * size + (part - low)
    return code


def _groups(columns: RequestColumns, places: Ints, parts: Ints, starts: Ints) -> Iterator[Group]:
    totals = np.add.reduceat(_integers(columns, places), starts, axis=1)
    lags = np.add.reduceat(columns.lag_token_s[places], starts)
    group_of = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(places))))
    histograms = {
        name: _histograms(columns.figures[figure][places], group_of, len(starts)) for name, figure in _HISTOGRAMS
    }
    ends = np.append(starts[1:], len(places))
    for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        at_s, word_code, bucket, revision = parts[:, start].tolist()
        site, pipeline, service_class = columns.words[word_code]
        key = RequestKey(at_s, site, pipeline, bucket, revision, service_class)
        figures: dict[str, Any] = dict(zip(_INTEGERS, totals[:, index].tolist(), strict=True))
        figures |= {name: Histogram(counts[index]) for name, counts in histograms.items()}
        slowest = _slowest(columns, int(places[end - 1]))
        sums = RequestSums(**figures, lag_token_s=float(lags[index]), slowest=slowest)
        yield Group(key, places[start:end], sums)


_INTEGERS = (
    *("requests", "completed", "client_closed", "rejected", "shed", "failed", "demo", "good", "hit_known", "valley"),
    *("input_tokens", "cached_tokens", "uncached_tokens", "output_tokens", "eager_tokens", "pulled_bytes"),
    *("handoffs", "catch_up"),
)


def _integers(columns: RequestColumns, places: Ints) -> Ints:
    """A row for each of `_INTEGERS`, a column for each place."""
    figures = columns.figures
    rows = (
        np.ones(len(columns.records)),
        *columns.outcome.values(),
        columns.is_demo,
        columns.is_good,
        ~np.isnan(columns.hit_rate),
        columns.is_in_valley,
        figures["input_tokens"],
        np.nan_to_num(figures["cached_tokens"]),
        figures["uncached_tokens"],
        figures["output_tokens"],
        np.minimum(figures["eager_tokens"], figures["output_tokens"]),
        np.nan_to_num(figures["pulled_bytes"]),
        columns.is_handoff,
        columns.is_catch_up,
    )
    return np.stack([np.asarray(row)[places].astype(np.int64) for row in rows])


def _histograms(values_s: Floats, group_of: Ints, groups: int) -> Ints:
    """A row of counts for each group."""
    known = ~np.isnan(values_s)
    width = BUCKETS + 2
    cells = group_of[known] * width + Histogram.buckets_of(values_s[known])
    return np.bincount(cells, minlength=groups * width).reshape(groups, width)


def _slowest(columns: RequestColumns, place: int) -> Exemplar:
    ttft_s = float(columns.figures["ttft_s"][place])
    record = columns.records[place]
    return Exemplar(ttft_s, record.request_id) if ttft_s >= 0 and is_storable(record) else Exemplar()


def is_storable(record: Any) -> bool:
    """Whether the texts of a record fit a row of any database."""
    return all(not text or is_name(text) for text in _texts_of(record))
