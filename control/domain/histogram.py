"""Histogram of durations in logarithmic buckets: mergeable, and within 1 % at every quantile from 1 ms to 600 s."""

import bisect
import math
from collections.abc import Iterable
from typing import Self

import numpy as np
import numpy.typing as npt

GAMMA = 1.02
MIN_S = 0.001
MAX_S = 600.0
BUCKETS = math.ceil(math.log(MAX_S / MIN_S) / math.log(GAMMA))

Counts = npt.NDArray[np.int64]
_STORED = np.dtype([("bucket", "<u2"), ("count", "<u8")])

# Bucket 0 holds what is at most MIN_S, bucket i up to MIN_S * GAMMA**i, the last one all above MAX_S. A bucket stands
# for the value whose relative distance to both of its edges is the same, (GAMMA - 1) / (GAMMA + 1) = 0.99 %.
_UPPER_S = MIN_S * GAMMA ** np.arange(BUCKETS + 1)
_UPPER_LIST_S: list[float] = _UPPER_S.tolist()  # one value is found ten times faster in a list
_VALUES_S = np.minimum(np.concatenate([_UPPER_S * 2 / (1 + GAMMA), [MAX_S]]), MAX_S)
_VALUES_S[0] = MIN_S


class Histogram:
    """Counts of durations. Adding changes it in place; `+` and `-` make new ones, so that windows can slide."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Counts | None = None) -> None:
        self._counts: Counts = np.zeros(BUCKETS + 2, dtype=np.int64) if counts is None else counts

    @staticmethod
    def buckets_of(values_s: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The bucket that each of some durations, seconds, is counted in."""
        return np.searchsorted(_UPPER_S, values_s, side="left")

    @classmethod
    def of(cls, values_s: Iterable[float]) -> Self:
        """The histogram of some durations, seconds."""
        buckets = cls.buckets_of(np.fromiter(values_s, dtype=np.float64))
        return cls(np.bincount(buckets, minlength=BUCKETS + 2).astype(np.int64))

    @classmethod
    def merged(cls, histograms: Iterable["Histogram"]) -> Self:
        """The sum of any number of histograms."""
        total = np.zeros(BUCKETS + 2, dtype=np.int64)
        for histogram in histograms:
            total += histogram._counts  # noqa: SLF001 - the same class
        return cls(total)

    @property
    def count(self) -> int:
        """How many durations it holds."""
        return int(self._counts.sum())

    def add(self, value_s: float) -> None:
        """Count one duration, seconds; above 600 s it counts as 600 s, below 1 ms as 1 ms."""
        self._counts[bisect.bisect_left(_UPPER_LIST_S, value_s)] += 1

    def quantiles(self, *ranks: float) -> tuple[float, ...] | None:
        """Durations at ranks within 0 and 1 (nearest rank), seconds; None if the histogram is empty."""
        cumulated = np.cumsum(self._counts)
        count = int(cumulated[-1])
        if not count:
            return None
        wanted = [max(math.ceil(rank * count - 1e-9), 1) for rank in ranks]
        return tuple(float(_VALUES_S[index]) for index in np.searchsorted(cumulated, wanted, side="left"))

    def quantile(self, rank: float) -> float | None:
        """Duration at one rank, see `quantiles`."""
        found = self.quantiles(rank)
        return None if found is None else found[0]

    def count_above(self, value_s: float) -> int:
        """How many durations are longer than this, seconds; those of its own bucket (2 % wide) count as not longer."""
        return int(self._counts[bisect.bisect_left(_UPPER_LIST_S, value_s) + 1 :].sum())

    def to_bytes(self) -> bytes:
        """For storage: the buckets that hold something, ten bytes each; nothing for an empty histogram."""
        filled = np.flatnonzero(self._counts)
        stored = np.empty(len(filled), dtype=_STORED)
        stored["bucket"], stored["count"] = filled, self._counts[filled]
        return stored.tobytes()

    @classmethod
    def from_bytes(cls, *stored: bytes) -> Self:
        """The sum of what `to_bytes` has stored, any number of times.

        Raises:
            ValueError: it has stored something else.
        """
        entries = np.frombuffer(b"".join(stored), dtype=_STORED)
        # As floats, counts are exact up to 2**53.
        counts = np.bincount(entries["bucket"], weights=entries["count"], minlength=BUCKETS + 2)
        if len(counts) > BUCKETS + 2:
            raise ValueError("a bucket of another histogram")
        return cls(counts.astype(np.int64))

    def include(self, other: "Histogram") -> None:
        """Add all that another one holds, in place."""
        self._counts += other._counts  # noqa: SLF001 - the same class

    def __add__(self, other: "Histogram") -> "Histogram":
        return Histogram(self._counts + other._counts)

    def __sub__(self, other: "Histogram") -> "Histogram":
        """Take out what was added before; `other` must be part of this histogram."""
        return Histogram(self._counts - other._counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and bool(np.array_equal(self._counts, other._counts))

    __hash__ = None  # type: ignore[assignment] # it changes
