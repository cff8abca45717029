"""What this gateway has under way on each link, from which the time of one more transfer is predicted."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from control.domain.performance import expected_left_bytes, flow_rate_bytes_per_s, predict_transfer_s
from control.domain.topology import Link


@dataclass(frozen=True, slots=True)
class _Transfer:
    link: str
    size_bytes: float
    rate_bytes_per_s: float
    started_s: float
    streams: int


class LinkLoad:
    """Transfers under way. What is left of each is an estimate from its size and the rate it could expect."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._transfers: dict[str, _Transfer] = {}
        self._flows: Counter[str] = Counter()

    def predict_s(self, link: Link | None, send_bytes: float, ahead: Iterable[str]) -> float:
        """Seconds until `send_bytes` have crossed, behind the transfers `ahead`; inside a site that is no time."""
        if link is None:
            return 0.0
        ahead_bytes = sum(self._left_bytes(transfer_id) for transfer_id in ahead)
        return predict_transfer_s(send_bytes, ahead_bytes, self._rate(link), link.rtt_s)

    def begin(self, transfer_id: str, link: Link | None, size_bytes: float) -> None:
        """A transfer starts."""
        if link is not None:
            self._transfers[transfer_id] = _Transfer(
                link.name, size_bytes, self._rate(link), self._now(), link.streams_per_transfer
            )
            self._flows[link.name] += link.streams_per_transfer

    def end(self, transfer_id: str) -> None:
        """A transfer is over, one way or another; unknown ids are ignored."""
        transfer = self._transfers.pop(transfer_id, None)
        if transfer is not None:
            self._flows[transfer.link] -= transfer.streams

    def flows(self, link: str) -> int:
        """Streams under way on a link."""
        return self._flows[link]

    @property
    def count(self) -> int:
        """Transfers under way on all links."""
        return len(self._transfers)

    def left_bytes(self) -> dict[str, float]:
        """Bytes still to send, by link."""
        left: dict[str, float] = {}
        for transfer_id, transfer in self._transfers.items():
            left[transfer.link] = left.get(transfer.link, 0.0) + self._left_bytes(transfer_id)
        return left

    def _rate(self, link: Link) -> float:
        return flow_rate_bytes_per_s(
            link.capacity_bytes_per_s,
            link.flow_cap_bytes_per_s or 0.0,
            self.flows(link.name),
            link.streams_per_transfer,
        )

    def _left_bytes(self, transfer_id: str) -> float:
        transfer = self._transfers.get(transfer_id)
        if transfer is None:
            return 0.0
        return expected_left_bytes(transfer.size_bytes, transfer.rate_bytes_per_s, self._now() - transfer.started_s)
