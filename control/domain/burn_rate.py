"""How fast an error budget burns, over paired windows, and what is left of it. No data is unknown, never good.

Both windows of a pair must burn faster than its factor: the long one tells that it matters, the short one that it
still goes on (Google SRE workbook, ch. 5: 14.4 times spends 2 % of a month's budget in an hour, 6 times 5 % in six).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Tally:
    """Events that met an objective, and events that did not."""

    good: int = 0
    bad: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.good + self.bad

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.good + other.good, self.bad + other.bad)


@dataclass(frozen=True, slots=True)
class WindowPair:
    """Two windows, seconds, and the burn rate that both must exceed."""

    name: str
    long_s: int
    short_s: int
    factor: float


FAST = WindowPair("fast", 3600, 300, 14.4)
SLOW = WindowPair("slow", 6 * 3600, 1800, 6.0)
WINDOW_PAIRS = (FAST, SLOW)
BUDGET_WINDOW_S = 30 * 86_400


class BurnState(StrEnum):
    """Whether an objective's budget burns too fast, or is spent; pairs of windows are never exhausted."""

    OK = "ok"
    BURNING = "burning"
    EXHAUSTED = "exhausted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PairBurn:
    """Burn rates of one pair; None where a window holds no events."""

    pair: WindowPair
    long_rate: float | None
    short_rate: float | None

    @property
    def rate(self) -> float | None:
        """The rate that both windows reach; None if either is unknown."""
        if self.long_rate is None or self.short_rate is None:
            return None
        return min(self.long_rate, self.short_rate)

    @property
    def state(self) -> BurnState:
        """Whether this pair burns."""
        if self.rate is None:
            return BurnState.UNKNOWN
        return BurnState.BURNING if self.rate > self.pair.factor else BurnState.OK


def burn_rate(tally: Tally, target: float) -> float | None:
    """Share of bad events / share that the objective allows; 1 spends the budget exactly. None without events.

    Raises:
        ValueError: the target is not between 0 and 1.
    """
    _check(target)
    if not tally.total:
        return None
    return tally.bad / tally.total / (1 - target)


def budget_left(tally: Tally, target: float) -> float | None:
    """Share of the budget that is left, negative when overspent; None without events.

    Raises:
        ValueError: the target is not between 0 and 1.
    """
    rate = burn_rate(tally, target)
    return None if rate is None else 1 - rate


def burn_state(pairs: Iterable[PairBurn]) -> BurnState:
    """Burning if any pair does; otherwise unknown if any is, as what is not known cannot be good."""
    states = {pair.state for pair in pairs}
    for state in (BurnState.BURNING, BurnState.UNKNOWN):
        if state in states:
            return state
    return BurnState.OK if states else BurnState.UNKNOWN


def slo_state(pairs: Iterable[PairBurn], left: float | None) -> BurnState:
    """How an objective is kept: burning comes first, as somebody can still act; a spent budget is not good either.

    `left` is the share of the budget that is left, None without events.
    """
    state = burn_state(pairs)
    if state is not BurnState.BURNING and left is not None and left <= 0:
        return BurnState.EXHAUSTED
    return state


def _check(target: float) -> None:
    if not 0 < target < 1:
        raise ValueError("a target is between 0 and 1")
