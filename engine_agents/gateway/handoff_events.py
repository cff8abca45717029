"""What can happen to a relayed request before its cut: the events that its loop takes one by one."""

from dataclasses import dataclass

from control.domain.commit import Turn
from engine_agents.gateway.node_errors import NodeError
from engine_agents.gateway.node_replies import Reply


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt's KV is on P."""


@dataclass(frozen=True, slots=True)
class RelayEnded:
    """The relay's stream has ended by itself, or the answer is complete."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class RelayLost:
    """The relay, or P before it, failed."""

    turn: Turn
    error: NodeError


@dataclass(frozen=True, slots=True)
class Arrived:
    """MD has the prompt's KV."""


@dataclass(frozen=True, slots=True)
class MainLost:
    """The transfer or a catch-up batch failed."""

    error: NodeError


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task failed as none should."""

    error: Exception


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """MD has computed the KV of the first `tokens` eager tokens, and would go on with the reply's token."""

    tokens: int
    reply: Reply


Event = Prefilled | RelayEnded | RelayLost | Arrived | MainLost | CaughtUp | TaskFailed
