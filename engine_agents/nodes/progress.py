"""Health means progress: a node with work in hand that moves nothing is not healthy, however well it answers."""

import time
from collections.abc import Callable

DEFAULT_STALL_AFTER_S = 20.0


class Progress:
    """When anything last moved: a token, a prefilled chunk, or a byte of KV."""

    def __init__(
        self, stall_after_s: float = DEFAULT_STALL_AFTER_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stall_after_s = stall_after_s
        self._clock = clock
        self._last_s = clock()
        self._works = 0

    def mark(self) -> None:
        """Something moved just now."""
        self._last_s = self._clock()

    def begin(self) -> None:
        """One more piece of work is in hand; the first one starts the clock."""
        if self._works == 0:
            self.mark()
        self._works += 1

    def end(self) -> None:
        """One piece of work less; an ending counts as movement."""
        self._works -= 1
        self.mark()

    def age_s(self) -> float:
        """Seconds since anything moved."""
        return self._clock() - self._last_s

    def is_stalled(self) -> bool:
        """Whether work is in hand and nothing has moved for too long."""
        return self._works > 0 and self.age_s() > self.stall_after_s
