"""The file that says which emulated nodes one process hosts."""

from pathlib import Path

import msgspec

from engine_agents.nodes.emulated.engine import EmulatedChip, EmulatedEngine
from engine_agents.nodes.node import NodeLimits
from engine_agents.nodes.serve import NodeSpec

DEFAULT_MODEL = "smollm2-135m"


class EmulatedNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node and the chip it is; `kv_port` 0 takes a free one, without a `model` it has its host's."""

    name: str
    chip: EmulatedChip = EmulatedChip()
    model: str | None = None
    kv_host: str = "127.0.0.1"
    kv_port: int = 0
    queue_limit: int = 256
    lease_ttl_s: float = 30.0
    stall_after_s: float = 20.0

    def spec(self, model: str) -> NodeSpec:
        """The node to host; `model` where the node names none."""
        limits = NodeLimits(self.queue_limit, self.lease_ttl_s, self.stall_after_s)
        return NodeSpec(EmulatedEngine(self.model or model, self.chip), self.name, self.kv_host, self.kv_port, limits)


class EmulatedHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A process of emulated nodes; port 0 takes a free one."""

    nodes: list[EmulatedNode]
    host: str = "127.0.0.1"
    port: int = 0
    model: str = DEFAULT_MODEL

    def specs(self) -> list[NodeSpec]:
        """The nodes to host."""
        return [node.spec(self.model) for node in self.nodes]


def load_host(path: Path) -> EmulatedHost:
    """Read a host's file: an object with `nodes`, or just the list of nodes.

    Raises:
        msgspec.ValidationError: it is not one.
        OSError: it cannot be read.
    """
    document = msgspec.json.decode(path.read_bytes(), type=EmulatedHost | list[EmulatedNode])
    return document if isinstance(document, EmulatedHost) else EmulatedHost(document)
