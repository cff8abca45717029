"""A circuit breaker per node: one that fails is left alone for a while, longer each time."""

from collections.abc import Callable
from dataclasses import dataclass

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


@dataclass(slots=True)
class _Failures:
    count: int = 0
    retry_at_s: float = 0.0


class Breakers:
    """Which nodes may be tried. After the pause one request finds out; its success closes the breaker."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._failures: dict[str, _Failures] = {}

    def allows(self, node: str) -> bool:
        """Whether the node may be sent work."""
        failures = self._failures.get(node)
        return failures is None or self._now() >= failures.retry_at_s

    def retry_in_s(self, node: str) -> float:
        """Seconds until the node may be sent work again; 0 if it may now."""
        failures = self._failures.get(node)
        return 0.0 if failures is None else max(0.0, failures.retry_at_s - self._now())

    def failed(self, node: str) -> None:
        """The node could not be reached or broke off."""
        failures = self._failures.setdefault(node, _Failures())
        failures.count += 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures.count - 1, 10))
        failures.retry_at_s = self._now() + pause_s

    def succeeded(self, node: str) -> None:
        """The node did what it was asked."""
        self._failures.pop(node, None)

    def open_nodes(self) -> list[str]:
        """Nodes that are left alone now."""
        return sorted(node for node in self._failures if not self.allows(node))
