"""When things happened to one request: its stages and the moments its tokens went to the client."""

import time
from collections.abc import Callable
from enum import StrEnum
from operator import attrgetter

from control.telemetry.records import StageTime


class Stage(StrEnum):
    """Parts of a request's life; some overlap, as relay decode does with the transfer."""

    TOKENIZE = "tokenize"
    QUEUE = "queue"
    PREFILL = "prefill"
    KV_RDMA = "kv_rdma"
    KV_WAN = "kv_wan"
    RELAY_DECODE = "relay_decode"
    HANDOFF = "handoff"
    MAIN_DECODE = "main_decode"


_START = attrgetter("start_s")


class Timeline:
    """A clock that starts when the request is received. All times are seconds after that."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.received_at_s = wall_clock()
        self._clock = clock
        self._start = clock()
        self._stages: list[StageTime] = []
        self._last_token_s: float | None = None
        self._tokens = 0
        self.ttft_s: float | None = None
        self.ttst_s: float | None = None
        self.max_itl_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the request was received."""
        return self._clock() - self._start

    def add(self, name: Stage, start_s: float, end_s: float | None = None) -> None:
        """Note a part that ran from `start_s` to `end_s`, or until now."""
        self._stages.append(StageTime(name, start_s, self._clock() - self._start if end_s is None else end_s))

    def sent(self, tokens: int) -> None:
        """Note that so many tokens have just gone to the client together."""
        if tokens < 1:
            return
        now_s = self._clock() - self._start
        if self.ttft_s is None:
            self.ttft_s = now_s
        if self.ttst_s is None and self._tokens + tokens > 1:
            self.ttst_s = now_s
        if self._last_token_s is not None:
            gap_s = now_s - self._last_token_s
            if self.max_itl_s is None or gap_s > self.max_itl_s:
                self.max_itl_s = gap_s
        self._last_token_s = now_s
        self._tokens += tokens

    @property
    def tpot_s(self) -> float | None:
        """(last token − first token) / (tokens − 1); None below two tokens."""
        if self.ttft_s is None or self._last_token_s is None or self._tokens < 2:
            return None
        return (self._last_token_s - self.ttft_s) / (self._tokens - 1)

    @property
    def stages(self) -> tuple[StageTime, ...]:
        """All parts in the order they began."""
        return tuple(sorted(self._stages, key=_START))

    @property
    def overhead_s(self) -> float:
        """Seconds up to the first token in which no stage ran: the gateway's own work."""
        limit_s = self.ttft_s if self.ttft_s is not None else self.elapsed_s
        covered_s = reached_s = 0.0
        for stage in self.stages:
            start_s, end_s = max(stage.start_s, reached_s), min(stage.end_s, limit_s)
            if end_s > start_s:
                covered_s += end_s - start_s
                reached_s = end_s
        return max(0.0, limit_s - covered_s)
