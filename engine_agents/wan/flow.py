"""One stream of a transfer through the relay: two sockets, a queue before the link, and a wire each way."""

import asyncio
from collections.abc import Callable

from engine_agents.wan.delay_line import ByteQueue, Chunks, DelayLine
from engine_agents.wan.endpoint import Endpoint
from engine_agents.wan.shaping import MIN_QUEUE_BYTES
from engine_agents.wan.transfer import Transfer

UPSTREAM_LIMIT_BYTES = 1 << 20
LINGER_S = 2.0


class Flow:
    """Bytes from the source cross the link: queue, share of the rate, delay. The puller's bytes are only delayed.

    Either side's end of stream is passed on behind its bytes; the flow then lives while bytes move, and ends
    `LINGER_S` seconds after the last. A reset on either side resets the other.
    """

    def __init__(
        self,
        transfer: Transfer,
        puller: Endpoint,
        source: Endpoint,
        *,
        clock: Callable[[], float],
        wake: Callable[[], None],
        on_closed: Callable[["Flow"], None],
    ) -> None:
        self.transfer = transfer
        self.sent_bytes = 0
        self.credit_bytes = 0.0
        self.queue_limit_bytes = MIN_QUEUE_BYTES
        self.wake = wake
        self._clock = clock
        self._moved_s = clock()
        self._puller = puller
        self._source = source
        self._on_closed = on_closed
        self._queue = ByteQueue()
        self._down = DelayLine()
        self._up = DelayLine()
        self._down_is_ending = False
        self._down_is_done = False
        self._up_is_done = False
        self._is_closed = False

    def start(self) -> None:
        """Take over both sockets, with what the handshake already read from them."""
        for endpoint in (self._puller, self._source):
            endpoint.carry(self)

    @property
    def queued_bytes(self) -> int:
        """Bytes read from the source that have not entered the link."""
        return self._queue.size_bytes

    @property
    def sendable_bytes(self) -> int:
        """Bytes that could enter the link now; none while the puller does not read."""
        return self._queue.size_bytes if self._puller.is_writable else 0

    def next_due_s(self, delay_s: float) -> float | None:
        """When the next bytes on a wire can be delivered, None if nothing waits for time alone."""
        down = self._down.next_due_s(delay_s) if self._puller.is_writable else None
        up = self._up.next_due_s(delay_s) if self._source.is_writable else None
        return min((due for due in (down, up) if due is not None), default=None)

    def receive(self, endpoint: Endpoint, data: bytes) -> None:
        """Take bytes from one of the sockets."""
        if endpoint is self._source:
            self._queue.push(data)
            if self._queue.size_bytes >= self.queue_limit_bytes:
                endpoint.set_reading(wanted=False)
        else:
            self._up.push(self._clock(), [data])
            if self._up.size_bytes >= UPSTREAM_LIMIT_BYTES:
                endpoint.set_reading(wanted=False)
        self.wake()

    def end(self, endpoint: Endpoint) -> None:
        """One side has sent its last byte."""
        if endpoint is self._source:
            self._down_is_ending = True
            self._end_down_behind_queue()
        else:
            self._up.push(self._clock(), [])
        asyncio.get_running_loop().call_later(LINGER_S, self._abort_if_idle)
        self.wake()

    def lost(self, endpoint: Endpoint) -> None:
        """One side is gone; what a source sent before it ended still belongs to the puller, all else is reset."""
        if endpoint is self._source and endpoint.has_ended and not self._down_is_done:
            self._up.clear()
            self._up_is_done = True
        else:
            self.abort()

    def admit(self, count_bytes: int, now_s: float) -> None:
        """Let bytes from the queue enter the link."""
        if count_bytes:
            self.sent_bytes += count_bytes
            self.transfer.sent_bytes += count_bytes
            self._down.push(now_s, self._queue.take(count_bytes))
            self._end_down_behind_queue()
        if not self._is_closed and self._queue.size_bytes < self.queue_limit_bytes:
            self._source.set_reading(wanted=True)

    def deliver(self, now_s: float, delay_s: float) -> None:
        """Write what has crossed the link, each way, to who reads."""
        if self._puller.is_writable:
            for chunks in self._down.pop_due(now_s, delay_s):
                self._write(self._puller, chunks)
        if self._source.is_writable:
            for chunks in self._up.pop_due(now_s, delay_s):
                self._write(self._source, chunks)
            if not self._is_closed and self._up.size_bytes < UPSTREAM_LIMIT_BYTES:
                self._puller.set_reading(wanted=True)

    def abort(self) -> None:
        """Reset both sides and forget all bytes."""
        if self._is_closed:
            return
        self._is_closed = True
        for line in (self._queue, self._down, self._up):
            line.clear()
        self._puller.abort()
        self._source.abort()
        self._on_closed(self)

    def _end_down_behind_queue(self) -> None:
        if self._down_is_ending and not self._queue.size_bytes:
            self._down_is_ending = False
            self._down.push(self._clock(), [])

    def _write(self, endpoint: Endpoint, chunks: Chunks) -> None:
        if self._is_closed or endpoint.is_lost:
            return
        self._moved_s = self._clock()
        if chunks:
            endpoint.transport.writelines(chunks)
            return
        try:
            endpoint.transport.write_eof()
        except OSError:  # reset by its peer, which the loop has not noticed yet
            self.abort()
            return
        if endpoint is self._puller:
            self._down_is_done = True
        else:
            self._up_is_done = True
        if self._down_is_done and self._up_is_done:
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        self._puller.transport.close()
        self._source.transport.close()
        self._on_closed(self)

    def _abort_if_idle(self) -> None:
        if self._is_closed:
            return
        idle_s = self._clock() - self._moved_s
        has_bytes = self._queue.size_bytes or self._down.size_bytes or self._up.size_bytes
        if idle_s >= LINGER_S and not has_bytes:
            self.abort()
        else:
            asyncio.get_running_loop().call_later(LINGER_S, self._abort_if_idle)
