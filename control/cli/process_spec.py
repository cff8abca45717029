"""What one child process of a fleet is: its command, its environment, what it needs and when it is ready."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Ready when a GET answers with a status below 300."""

    url: str


@dataclass(frozen=True, slots=True)
class TcpProbe:
    """Ready when something accepts connections on a loopback port."""

    port: int


@dataclass(frozen=True, slots=True)
class LogProbe:
    """Ready when the process has written a text to its log."""

    text: str


Probe = HttpProbe | TcpProbe | LogProbe


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to keep running.

    `needs` names processes that must be ready before this one starts. Processes stop in descending `stop_wave`:
    a wave ends before the next one is asked to.
    """

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    probe: Probe | None = None
    needs: tuple[str, ...] = ()
    stop_wave: int = 1
    ready_timeout_s: float = 120.0


def restart_delay_s(failures: int) -> float:
    """Seconds to wait before the start that follows the given number of early deaths in a row: 0.5 doubling to 30."""
    return float(min(30.0, 0.5 * 2 ** min(failures, 10)))
