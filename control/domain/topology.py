"""What a fleet is made of: sites, nodes, links, and the snapshot that a gateway runs on."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

_SHA256_HEX_CHARS = 64


class Role(StrEnum):
    """What a node is used for; a node itself can do all three."""

    PREFILL = "prefill"
    RELAY = "relay"
    MAIN = "main"


class NodeState(StrEnum):
    """What the operator wants of a node; health is observed, not stored here."""

    READY = "ready"
    DRAINING = "draining"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Site:
    """A datacenter. Its nodes, gateways and relays may only have addresses inside `networks` (CIDR)."""

    name: str
    label: str = ""
    networks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One engine process. `url` is the base of its HTTP API and may carry a path prefix.

    `chip` names the profile of what it runs on; empty where nobody has said.
    """

    name: str
    site: str
    role: Role
    url: str
    engine: str
    model: str
    slots: int = 4
    state: NodeState = NodeState.READY
    chip: str = ""
    labels: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_stock(self) -> bool:
        """Whether it is an unchanged vLLM, which keeps whole blocks only and lacks our extensions."""
        return self.engine == "vllm"


@dataclass(frozen=True, slots=True)
class Link:
    """A directed WAN path between two sites, with the address of the WAN relay that shapes it.

    `relay_host` is empty where nothing shapes the link (stock engines over a real WAN). A fleet document leaves
    `streams_per_transfer` at 1: how many connections one transfer uses is the policy's to say.
    """

    name: str
    source: str
    target: str
    capacity_bytes_per_s: float
    rtt_s: float
    flow_cap_bytes_per_s: float | None = None
    relay_host: str = ""
    relay_port: int = 0
    admin_url: str = ""
    streams_per_transfer: int = 1


@dataclass(frozen=True, slots=True)
class Gateway:
    """One OpenAI-compatible entrance at a site."""

    name: str
    site: str
    url: str


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who may use a gateway.

    `key_sha256` is the hash of its API key in hex, `classes` are the service classes open to it, its usual one first.
    `salt` says whether its cached prefixes are kept apart from others'; None leaves it to the policy.
    """

    name: str
    key_sha256: str
    classes: tuple[str, ...] = ("default",)
    salt: bool | None = None

    def __post_init__(self) -> None:
        """Refuse what could never be matched.

        Raises:
            ValueError: it has no class, or its key's hash is none.
        """
        if not self.classes:
            raise ValueError(f"tenant {self.name} has no service class")
        if len(self.key_sha256) != _SHA256_HEX_CHARS or not set(self.key_sha256) <= set("0123456789abcdef"):
            raise ValueError(f"tenant {self.name} has no SHA-256 of a key")


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """Everything a gateway needs to know of the fleet, as plain data that survives JSON.

    `model`, its figures and `labels` are the fleet's first model's; `model_labels` are those of the other models that
    have any. `revision` rises with every stored change, so that an order that comes late cannot bring an older fleet
    back.
    """

    sites: tuple[Site, ...] = ()
    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    model: str = ""
    kv_bytes_per_token: int = 0
    block_tokens: int = 64
    labels: dict[str, str] = field(default_factory=dict)
    revision: int = 0
    model_labels: dict[str, dict[str, str]] = field(default_factory=dict)

    def nodes_of(self, role: Role) -> tuple[Node, ...]:
        """Nodes of one role, in the order of the document."""
        return tuple(node for node in self.nodes if node.role is role)

    def link_between(self, source: str, target: str) -> Link | None:
        """The directed link from one site to another; None inside a site or where none is known."""
        return next((link for link in self.links if (link.source, link.target) == (source, target)), None)

    def to_document(self) -> dict[str, Any]:
        """Plain JSON data; `from_document` gives the equal snapshot back."""
        facts = _facts(self)
        for kind in ("sites", "nodes", "links", "gateways", "tenants"):
            facts[kind] = tuple(_facts(item) for item in facts[kind])
        return facts

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """Read what `to_document` wrote.

        Raises:
            KeyError, TypeError, ValueError: the document lacks a field or names an unknown role or state.
        """
        nodes = tuple(
            Node(**{**node, "role": Role(node["role"]), "state": NodeState(node.get("state", "ready"))})
            for node in document["nodes"]
        )
        return cls(
            sites=tuple(Site(**{**site, "networks": tuple(site.get("networks", ()))}) for site in document["sites"]),
            nodes=nodes,
            links=tuple(Link(**link) for link in document["links"]),
            gateways=tuple(Gateway(**gateway) for gateway in document.get("gateways", ())),
            tenants=tuple(
                Tenant(**{**tenant, "classes": tuple(tenant.get("classes", ("default",)))})
                for tenant in document.get("tenants", ())
            ),
            model=document["model"],
            kv_bytes_per_token=document["kv_bytes_per_token"],
            block_tokens=document["block_tokens"],
            labels=dict(document.get("labels", {})),
            revision=int(document.get("revision", 0)),
            model_labels={name: dict(labels) for name, labels in document.get("model_labels", {}).items()},
        )


def _facts(item: Any) -> dict[str, Any]:
    # A large fleet leaves with every order: `asdict`, which copies each text and number, took twenty times as long.
    values = {name: getattr(item, name) for name in item.__slots__}
    return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}
