"""What an engine must be able to do for operations, and what may go wrong."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from control.domain.topology import Role

FENCE_HEADER = "PDD-Fencing-Token"
STEP_HEADER = "PDD-Step"


class DriverError(Exception):
    """The engine could not be asked, or refused; its text is for the operator."""


class UnreachableError(DriverError):
    """Nothing listens where the engine should be."""


class UnsupportedError(DriverError):
    """This kind of engine cannot do it at all."""


class StaleOrderError(DriverError):
    """The engine has seen a newer order."""


@dataclass(frozen=True, slots=True)
class Fence:
    """By which an engine tells orders apart: the step, and a number that only rises."""

    step: str
    token: int

    def headers(self) -> dict[str, str]:
        """As the engine reads them."""
        return {STEP_HEADER: self.step, FENCE_HEADER: str(self.token)}


class Effect(StrEnum):
    """What an order did: nothing where things were so already."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """What is in flight on a node; None where its kind does not say. `incarnation` is another one after a restart."""

    running: int
    waiting: int | None = None
    pulling: int | None = None
    leases: int | None = None
    incarnation: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "running": self.running,
            "waiting": self.waiting,
            "pulling": self.pulling,
            "leases": self.leases,
            "incarnation": self.incarnation,
        }


class Driver(Protocol):
    """One node. Every call may be made twice with the same effect as once."""

    def observe(self) -> NodeObservation:
        """What is in flight.

        Raises:
            UnreachableError, DriverError: it cannot be asked.
        """

    def assign(self, role: Role, fence: Fence, *, draining: bool) -> Effect:
        """Tell the node what it is used for.

        Raises:
            UnreachableError, DriverError, StaleOrderError: it did not take it.
        """

    def warm(self) -> float:
        """Have it answer one small request; seconds that it took.

        Raises:
            UnreachableError, DriverError: it did not answer.
        """

    def restart(self, incarnation: str | None, fence: Fence) -> Effect:
        """End this incarnation, so that whoever supervises the node starts another one.

        Raises:
            UnsupportedError: nobody can over this node's API.
            UnreachableError, DriverError, StaleOrderError: it did not take it.
        """
