"""One transfer on a link: the streams of one pull, its place in the queue, and what it has sent and waited."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_agents.wan.flow import Flow

IDLE_S = 0.25


class Transfer:
    """Streams with one id. It holds a place on the link while it has bytes to send, and a little longer.

    A pull that waits for another pull's blocks sends nothing; if it kept its place, the two could wait for each other.
    """

    def __init__(self, transfer_id: str, pipeline: str, service_class: str, order: int, now_s: float) -> None:
        self.id = transfer_id
        self.pipeline = pipeline
        self.service_class = service_class
        self.order = order
        self.started_s = now_s
        self.flows: dict[Flow, None] = {}
        self.sent_bytes = 0
        self.is_paused = False
        self.holds_place = False
        self.was_admitted = False
        self.waited_s = 0.0
        self._waiting_since_s: float | None = None
        self._sent_at_s = now_s

    @property
    def queued_bytes(self) -> int:
        """Bytes read from its sources that have not entered the link."""
        return sum(flow.queued_bytes for flow in self.flows)

    @property
    def is_waiting(self) -> bool:
        """Whether it has bytes and no place."""
        return self._waiting_since_s is not None

    def wants_place(self) -> bool:
        """Whether it would send if it could."""
        return not self.is_paused and any(flow.queued_bytes for flow in self.flows)

    def keeps_place(self, now_s: float) -> bool:
        """Whether the place it holds is still its own: not while it is paused, nor long after its last byte."""
        if not self.holds_place or self.is_paused:
            return False
        if any(flow.queued_bytes for flow in self.flows):
            self._sent_at_s = now_s
        return now_s - self._sent_at_s < IDLE_S

    def settle(self, *, admitted: bool, now_s: float) -> float | None:
        """Note the queue's decision; gives back how long it waited, where a wait has just ended.

        A transfer that is let in at once has waited 0 s, once.
        """
        waited_s: float | None = None
        if admitted and not self.holds_place:
            since_s, self._waiting_since_s = self._waiting_since_s, None
            if since_s is not None or not self.was_admitted:
                waited_s = 0.0 if since_s is None else now_s - since_s
                self.waited_s += waited_s
            self._sent_at_s = now_s
            self.was_admitted = True
        elif not admitted and self.wants_place():
            self._waiting_since_s = now_s if self._waiting_since_s is None else self._waiting_since_s
        elif not admitted:
            self._waiting_since_s = None
        self.holds_place = admitted
        return waited_s

    def waiting_s(self, now_s: float) -> float:
        """How long it has been waiting now; 0 where it is not."""
        return 0.0 if self._waiting_since_s is None else now_s - self._waiting_since_s

    def idle_until_s(self) -> float:
        """When its place becomes free if it sends nothing more."""
        return self._sent_at_s + IDLE_S

    def state(self, now_s: float) -> dict[str, Any]:
        """The transfer as the admin API shows it."""
        return {
            "transfer_id": self.id,
            "pipeline": self.pipeline,
            "service_class": self.service_class,
            "state": self._word(),
            "streams": len(self.flows),
            "bytes": self.sent_bytes,
            "queued_bytes": self.queued_bytes,
            "age_s": now_s - self.started_s,
            "waited_s": self.waited_s + self.waiting_s(now_s),
        }

    def _word(self) -> str:
        if self.is_paused:
            return "paused"
        if self.is_waiting:
            return "waiting"
        return "running" if self.holds_place else "idle"
