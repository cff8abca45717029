"""Records of many batches as columns, so that what is done to each of them is done to all at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from control.domain.outcome import Outcome
from control.domain.policy_fields import is_member_name
from control.domain.rollups import FINE, UNKNOWN_BUCKET, VALLEY_HIT_RATES
from control.domain.slo import HIT_RATE_BUCKET_EDGES, HIT_RATE_BUCKETS
from control.telemetry.checks import MAX_BYTES, MAX_CLOCK_SKEW_S, MAX_DURATION_S, MAX_TOKENS, is_name
from control.telemetry.records import RequestBatch
from control.telemetry.request_slots import CATCH_UP, DEMO, OTHER, PIPELINES
from control.telemetry.sources import Promised

MAX_REVISION = 2**31 - 1

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_TIMES = ("received_at_s", "e2e_s")
_OPTIONAL_DURATIONS = ("ttft_s", "ttst_s", "tpot_s", "max_itl_s", "transfer_s", "handoff_stall_s", "cache_lag_s")
_COUNTS = (
    *("input_tokens", "output_tokens", "eager_tokens", "uncached_tokens"),
    *("drc_resident_tokens", "drc_in_flight_tokens"),
)
_OPTIONAL_COUNTS = ("cached_tokens", "pulled_bytes")
_NAMES = (*_TIMES, "predicted_transfer_s", *_OPTIONAL_DURATIONS, *_COUNTS, *_OPTIONAL_COUNTS, "policy_revision")
_figures_of = attrgetter(*_NAMES)
_words_of = attrgetter("site", "pipeline", "service_class", "outcome", "handoff_mode", "traffic")
_OPTIONAL = frozenset((*_OPTIONAL_DURATIONS, *_OPTIONAL_COUNTS))

Words = tuple[str, str, str]
"""Site, pipeline and service class as they are in keys."""


@dataclass(slots=True)
class RequestColumns:
    """One place for each record; NaN is what was not reported. Flags and codes are as in keys of sums.

    `words[word_codes[i]]` is record i's site, pipeline and class; `batch_of[i]` the number of its batch.
    """

    records: list[Any]
    batch_of: Ints
    figures: dict[str, Floats]
    is_possible: Flags
    ended_at_s: Floats
    slot_s: Ints
    hit_rate: Floats
    hit_bucket: Ints
    revision: Ints
    words: list[Words]
    word_codes: Ints
    outcome: dict[str, Flags]
    is_demo: Flags
    is_handoff: Flags
    is_catch_up: Flags
    is_slow: Flags
    is_good: Flags

    @property
    def is_in_valley(self) -> Flags:
        """Whether the prefix hit rate lies in the costly middle."""
        low, high = VALLEY_HIT_RATES
        return np.asarray((self.hit_rate >= low) & (self.hit_rate <= high))

    @property
    def lag_token_s(self) -> Floats:
        """Tokens P held and MD was waiting for, times the seconds it waited.

        Cache lag is the mean over time of the tokens on their way (Little's law: the sum of this over a window / the
        window). An outlier sends nothing. An older gateway does not say how long P had waited: there it is the time of
        the transfer, or at least that of the request where nobody saw the transfer end.
        """
        sends = np.array([pipeline in {"direct", "relay"} for _, pipeline, _ in self.words] or [False])
        known_s = (self.figures["cache_lag_s"], self.figures["transfer_s"], self.figures["e2e_s"])
        waited_s = np.where(np.isnan(known_s[1]), known_s[2], known_s[1])
        waited_s = np.where(np.isnan(known_s[0]), waited_s, known_s[0])
        with np.errstate(invalid="ignore"):  # of impossible records
            return np.where(sends[self.word_codes], self.figures["uncached_tokens"] * waited_s, 0.0)


def columns_of(batches: Sequence[RequestBatch], now_s: float) -> RequestColumns:
    """Read the records of some batches."""
    records = [record for batch in batches for record in batch.records]
    batch_of = np.repeat(np.arange(len(batches)), [len(batch.records) for batch in batches])
    figures = _figures(records)
    is_possible, ended_at_s = _possible(records, figures, now_s)
    codes: dict[Any, int] = {}
    raw_codes = np.array([codes.setdefault(words, len(codes)) for words in map(_words_of, records)], dtype=np.int64)
    raw_words = list(codes)
    keys: dict[Words, int] = {}
    key_of_raw = np.array([keys.setdefault(_key_words(*raw), len(keys)) for raw in raw_words], dtype=np.int64)
    hit_rate: Floats = np.divide(
        figures["cached_tokens"],
        figures["input_tokens"],
        out=np.full(len(records), np.nan),
        where=figures["input_tokens"] > 0,
    )

    def flags(*meets: bool) -> Flags:
        return np.array(meets, dtype=np.bool_)[raw_codes]

    outcome = {one.value: flags(*(raw[3] == one for raw in raw_words)) for one in Outcome}
    limits = _limits(batches, batch_of, [raw[2] for raw in raw_words], raw_codes)
    ttft_s, tpot_s = figures["ttft_s"], figures["tpot_s"]
    return RequestColumns(
        records=records,
        batch_of=batch_of,
        figures=figures,
        is_possible=is_possible,
        ended_at_s=ended_at_s,
        slot_s=_slots(ended_at_s, now_s, is_possible),
        hit_rate=hit_rate,
        hit_bucket=_buckets(hit_rate),
        revision=_revisions(figures["policy_revision"]),
        words=list(keys),
        word_codes=key_of_raw[raw_codes] if records else raw_codes,
        outcome=outcome,
        is_demo=flags(*(raw[5] == DEMO for raw in raw_words)),
        is_handoff=flags(*(bool(raw[4]) for raw in raw_words)),
        is_catch_up=flags(*(raw[4] == CATCH_UP for raw in raw_words)),
        is_slow=(ttft_s > limits[:, 0]) | (tpot_s > limits[:, 2]),
        is_good=outcome[Outcome.COMPLETED] & (ttft_s <= limits[:, 1]) & ~(tpot_s > limits[:, 2]),
    )


def _figures(records: Sequence[Any]) -> dict[str, Floats]:
    matrix = np.array([_figures_of(record) for record in records], dtype=np.float64).reshape(len(records), len(_NAMES))
    return {name: np.ascontiguousarray(matrix[:, index]) for index, name in enumerate(_NAMES)}


def _possible(records: Sequence[Any], figures: dict[str, Floats], now_s: float) -> tuple[Flags, Floats]:
    """Whether each record can be true: finite, not negative, parts no larger than their whole; and when it ended."""
    latest_s = now_s + MAX_CLOCK_SKEW_S
    with np.errstate(invalid="ignore"):
        ended_at_s = figures["received_at_s"] + figures["e2e_s"]
    possible = (figures["received_at_s"] > 0) & (figures["received_at_s"] <= latest_s) & (ended_at_s <= latest_s)
    for name in ("e2e_s", "predicted_transfer_s", *_OPTIONAL_DURATIONS):
        possible &= _within(records, figures, name, MAX_DURATION_S)
    for name in (*_COUNTS, "cached_tokens"):
        possible &= _within(records, figures, name, MAX_TOKENS)
    possible &= _within(records, figures, "pulled_bytes", MAX_BYTES)
    possible &= ~((figures["cached_tokens"] > figures["input_tokens"]) & (figures["input_tokens"] > 0))
    return possible, ended_at_s


def _within(records: Sequence[Any], figures: dict[str, Floats], name: str, limit: float) -> Flags:
    values = figures[name]
    within = (values >= 0) & (values <= limit)
    if name in _OPTIONAL:
        for index in np.flatnonzero(np.isnan(values)).tolist():
            within[index] = getattr(records[index], name) is None  # a NaN that was sent is not "not reported"
    return within


def _slots(ended_at_s: Floats, now_s: float, is_possible: Flags) -> Ints:
    known_s = np.where(is_possible, np.minimum(ended_at_s, now_s), 0.0)
    return (known_s // FINE.span_s).astype(np.int64) * FINE.span_s


def _buckets(hit_rate: Floats) -> Ints:
    found = np.minimum(np.searchsorted(HIT_RATE_BUCKET_EDGES, hit_rate, side="right"), HIT_RATE_BUCKETS) - 1
    return np.where(np.isnan(hit_rate), UNKNOWN_BUCKET, found)


def _revisions(stated: Floats) -> Ints:
    return np.where((stated >= 0) & (stated <= MAX_REVISION), stated, 0).astype(np.int64)


def _key_words(site: str, pipeline: str, service_class: str, *_: str) -> Words:
    """Words that only a faulty gateway can send become one, so that keys stay few."""
    return (
        site if is_name(site) else OTHER,
        pipeline if pipeline in PIPELINES else OTHER,
        service_class if is_member_name(service_class) else OTHER,
    )


def _limits(batches: Sequence[RequestBatch], batch_of: Ints, classes: Sequence[str], raw_codes: Ints) -> Floats:
    """P90 and P99 of TTFT and P90 of TPOT that each record was promised."""
    promised = [Promised(batch) for batch in batches]
    table = np.array(
        [
            [(one.ttft_p90_s, one.ttft_p99_s, one.tpot_p90_s) for one in map(by_class.to, classes)]
            for by_class in promised
        ],
        dtype=np.float64,
    ).reshape(len(batches), len(classes), 3)
    return np.asarray(table[batch_of, raw_codes])
