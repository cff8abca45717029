"""A circuit breaker per pair of nodes that KV crosses between: P and MD may both be well, and the way between them not.

Closed: transfers go. Open, after failures in a row: none is planned for a while, longer each time. Half-open, after
that: one transfer finds out, and until it has ended no other is planned.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

OPENS_AFTER_FAILURES = 2
FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0

Pair = tuple[str, str]
"""Prefill node and main node."""


class PairState(StrEnum):
    """Whether transfers of a pair go."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(slots=True)
class _Failing:
    failures: int = 0
    retry_at_s: float = 0.0
    probe: object | None = None


class PairBreakers:
    """Only pairs that have failed of late are remembered."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._failing: dict[Pair, _Failing] = {}

    def state(self, pair: Pair) -> PairState:
        """What the pair is now."""
        known = self._failing.get(pair)
        if known is None or known.failures < OPENS_AFTER_FAILURES:
            return PairState.CLOSED
        return PairState.OPEN if self._now() < known.retry_at_s else PairState.HALF_OPEN

    def blocked(self) -> Collection[Pair]:
        """Pairs that no transfer should be planned for now; usually none."""
        if not self._failing:
            return ()
        return {pair for pair, known in self._failing.items() if self._is_blocked(pair, known)}

    def begin(self, pair: Pair, transfer: object) -> None:
        """A transfer is planned; the first one of a half-open pair is its probe."""
        known = self._failing.get(pair)
        if known is not None and known.probe is None and self.state(pair) is PairState.HALF_OPEN:
            known.probe = transfer

    def succeeded(self, pair: Pair) -> None:
        """A transfer arrived: the pair is well."""
        self._failing.pop(pair, None)

    def failed(self, pair: Pair) -> None:
        """A transfer of the pair broke."""
        known = self._failing.setdefault(pair, _Failing())
        known.failures += 1
        known.probe = None
        if known.failures >= OPENS_AFTER_FAILURES:
            times = min(known.failures - OPENS_AFTER_FAILURES, 10)
            known.retry_at_s = self._now() + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**times)

    def ended(self, pair: Pair, transfer: object) -> None:
        """A transfer ended without saying anything of the pair, as when nobody wants it any more."""
        known = self._failing.get(pair)
        if known is not None and known.probe is transfer:
            known.probe = None

    def forget(self, node: str) -> None:
        """A node left or moved: what was known of its pairs is of another one."""
        for pair in [pair for pair in self._failing if node in pair]:
            del self._failing[pair]

    def snapshot(self) -> dict[str, str]:
        """Pairs that are not closed, as `P>MD`."""
        states = {pair: self.state(pair) for pair in sorted(self._failing)}
        return {f"{p}>{md}": state.value for (p, md), state in states.items() if state is not PairState.CLOSED}

    def _is_blocked(self, pair: Pair, known: _Failing) -> bool:
        state = self.state(pair)
        return state is PairState.OPEN or (state is PairState.HALF_OPEN and known.probe is not None)
