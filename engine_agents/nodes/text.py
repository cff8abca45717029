"""Token bytes to text that can be sent: whole characters only, and never a part of a stop string."""

import codecs
from collections.abc import Sequence


class TextStream:
    """Incremental UTF-8. Text is held back, all of it, until the bytes so far end on a character boundary.

    So where a piece is not empty, the tokens so far end on a boundary. Invalid bytes become U+FFFD.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, data: bytes, *, final: bool = False) -> str:
        """The text to send now; `final` gives up what can no longer be completed."""
        self._held += self._decoder.decode(data, final)
        if self._decoder.getstate()[0]:
            return ""
        text, self._held = self._held, ""
        return text


class StopScanner:
    """Finds the first stop string in a stream of text and holds back what may still become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._reach = max((len(stop) for stop in self._stops), default=1) - 1
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str, *, final: bool = False) -> str:
        """The text to send now, without the stop string; after `found` is set there is no more."""
        self._held += text
        hits = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if hits:
            at, self.found = min(hits)
            text, self._held = self._held[:at], ""
            return text
        keep = 0 if final else self._pending()
        split = len(self._held) - keep
        text, self._held = self._held[:split], self._held[split:]
        return text

    def _pending(self) -> int:
        """How long an end of the held text is the start of a stop string."""
        for length in range(min(self._reach, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
