"""Bytes in order: a queue cut at any length, and a line that gives them back a fixed time later."""

from collections import deque
from dataclasses import dataclass, field

Chunks = list[bytes | memoryview]


@dataclass(slots=True)
class ByteQueue:
    """Chunks in order; `take` cuts without copying."""

    size_bytes: int = 0
    _chunks: deque[bytes | memoryview] = field(default_factory=deque)

    def push(self, chunk: bytes | memoryview) -> None:
        """Append one chunk."""
        self._chunks.append(chunk)
        self.size_bytes += len(chunk)

    def take(self, count_bytes: int) -> Chunks:
        """Remove exactly `count_bytes` from the front, or all there is where that is less."""
        taken: Chunks = []
        left = min(count_bytes, self.size_bytes)
        self.size_bytes -= left
        while left:
            chunk = self._chunks.popleft()
            if len(chunk) > left:
                view = memoryview(chunk)
                self._chunks.appendleft(view[left:])
                chunk = view[:left]
            taken.append(chunk)
            left -= len(chunk)
        return taken

    def clear(self) -> None:
        """Forget everything."""
        self._chunks.clear()
        self.size_bytes = 0


@dataclass(slots=True)
class DelayLine:
    """What entered a wire and has not come out; an empty list is the end of the stream.

    Entries keep the time they entered, not the time they are due: a changed delay holds for what is on its way too,
    and order is kept.
    """

    size_bytes: int = 0
    _entries: deque[tuple[float, Chunks]] = field(default_factory=deque)

    def push(self, now_s: float, chunks: Chunks) -> None:
        """Let chunks enter the wire."""
        self._entries.append((now_s, chunks))
        self.size_bytes += sum(map(len, chunks))

    def pop_due(self, now_s: float, delay_s: float) -> list[Chunks]:
        """Remove and return what entered at least `delay_s` seconds ago."""
        due = []
        while self._entries and self._entries[0][0] + delay_s <= now_s:
            chunks = self._entries.popleft()[1]
            self.size_bytes -= sum(map(len, chunks))
            due.append(chunks)
        return due

    def next_due_s(self, delay_s: float) -> float | None:
        """When the first entry comes out, None if the line is empty."""
        return self._entries[0][0] + delay_s if self._entries else None

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.size_bytes = 0
