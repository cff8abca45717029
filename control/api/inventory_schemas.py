"""What the API takes and gives of the inventory. Each `…In` is also one item of the fleet document and a row of CSV."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from control.api.schemas import ChangeOut, FromDomain, Strict
from control.domain.fleet_plan import Action, FleetPlan, ItemChange
from control.domain.inventory import AttentionKind, ChipProfile, Kind, ModelProfile, Wish
from control.domain.topology import Gateway, Link, Node, NodeState, Role, Site
from control.services.inventory import FleetWish

MAX_ITEMS = 20_000

_NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"

Name = Annotated[str, Field(min_length=1, max_length=63, description="Lower-case letters, digits, `-` and `_`.")]
Product = Annotated[str, Field(min_length=1, max_length=128, description="A name as its vendor writes it.")]
Url = Annotated[str, Field(min_length=1, max_length=300, description="Base of an HTTP API inside the site's networks.")]
Labels = Annotated[dict[str, str], Field(max_length=50)]
Rate = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False, description="Bytes per second.")]


class SiteIn(Strict):
    """A datacenter. Its nodes, gateways and relays may only have addresses inside its networks."""

    name: Name
    label: str = Field(default="", max_length=100, pattern=_NO_CONTROLS)
    networks: list[Annotated[str, Field(max_length=50)]] = Field(
        default=[], max_length=100, description="In CIDR notation.", examples=[["10.1.0.0/16"]]
    )

    def wish(self) -> Wish:
        """The site as it is wanted."""
        return Wish(Site(self.name, self.label, tuple(self.networks)))


class ChipIn(Strict):
    """A kind of chip."""

    name: Product
    peak_flops: float = Field(gt=0, le=1e21, allow_inf_nan=False, description="Dense FLOP/s.")
    memory_bytes: int = Field(gt=0, le=10**15)
    memory_bytes_per_s: Rate
    interconnect_bytes_per_s: Rate
    price_per_hour: float = Field(ge=0, le=1e6, allow_inf_nan=False, description="In the same currency for all chips.")

    def wish(self) -> Wish:
        """The chip as it is wanted."""
        return Wish(ChipProfile(**self.model_dump()))


_MODEL_LABELS = "Which parsers its answers need (tool_parser, reasoning_parser), and words to find it by."


class ModelIn(Strict):
    """A model."""

    name: Product
    kv_bytes_per_token: int = Field(gt=0, le=10**9)
    block_tokens: int = Field(default=64, gt=0, le=65_536, description="Tokens per block of the prefix cache.")
    layers: int | None = Field(default=None, gt=0, le=10_000)
    attention: AttentionKind | None = None
    quantisation: str = Field(default="", max_length=50, pattern=_NO_CONTROLS, examples=["fp8", "q8_0"])
    context_tokens: int | None = Field(default=None, gt=0, le=10**8)
    labels: Labels = Field(default={}, description=_MODEL_LABELS)

    def wish(self) -> Wish:
        """The model as it is wanted."""
        return Wish(ModelProfile(**self.model_dump()))


class NodeIn(Strict):
    """An engine process. Without a state it keeps the one it has; a new one is ready."""

    name: Name
    site: Name
    role: Role
    url: Url
    engine: str = Field(max_length=20, examples=["llama", "emulated", "vllm"])
    model: Product
    slots: int = Field(default=4, gt=0, le=100_000, description="Requests that it works on at a time.")
    state: NodeState | None = None
    chip: str = Field(default="", max_length=128, description="Name of a chip; empty: not said.")
    labels: Labels = Field(default={}, description="Words to find it by.")

    def wish(self) -> Wish:
        """The node as it is wanted."""
        facts = self.model_dump()
        if self.state is None:
            return Wish(Node(**{**facts, "state": NodeState.READY}), frozenset({"state"}))
        return Wish(Node(**facts))


class LinkIn(Strict):
    """A directed WAN path between two sites, and the relay that shapes it, if one does."""

    name: Name
    source: Name
    target: Name
    capacity_bytes_per_s: Rate
    rtt_s: float = Field(ge=0, le=60, allow_inf_nan=False, description="Round trip, seconds.")
    flow_cap_bytes_per_s: Rate | None = Field(default=None, description="What the path gives one stream.")
    relay_host: str = Field(default="", max_length=60)
    relay_port: int = Field(default=0, ge=0, le=65_535)
    admin_url: str = Field(default="", max_length=300)

    def wish(self) -> Wish:
        """The link as it is wanted."""
        return Wish(Link(**self.model_dump()))


class GatewayIn(Strict):
    """An OpenAI-compatible entrance."""

    name: Name
    site: Name
    url: Url

    def wish(self) -> Wish:
        """The gateway as it is wanted."""
        return Wish(Gateway(**self.model_dump()))


class FleetIn(Strict):
    """A fleet document: what it names is made so, a kind that it leaves out stays, an empty list means none."""

    model: str | None = Field(default=None, max_length=128, description="The model that the gateways serve first.")
    sites: list[SiteIn] | None = Field(default=None, max_length=MAX_ITEMS)
    chips: list[ChipIn] | None = Field(default=None, max_length=MAX_ITEMS)
    models: list[ModelIn] | None = Field(default=None, max_length=MAX_ITEMS)
    nodes: list[NodeIn] | None = Field(default=None, max_length=MAX_ITEMS)
    links: list[LinkIn] | None = Field(default=None, max_length=MAX_ITEMS)
    gateways: list[GatewayIn] | None = Field(default=None, max_length=MAX_ITEMS)

    def wish(self) -> FleetWish:
        """The fleet as it is wanted."""
        named = {kind: getattr(self, kind.value) for kind in Kind}
        sections = {kind: [item.wish() for item in items] for kind, items in named.items() if items is not None}
        return FleetWish(sections, self.model)


class SiteOut(FromDomain):
    """A datacenter."""

    name: str
    label: str
    networks: list[str]


class ChipOut(FromDomain):
    """A kind of chip: FLOP/s, bytes, bytes per second, price per hour."""

    name: str
    peak_flops: float
    memory_bytes: int
    memory_bytes_per_s: float
    interconnect_bytes_per_s: float
    price_per_hour: float


class ModelOut(FromDomain):
    """A model; null and empty where nobody has said."""

    name: str
    kv_bytes_per_token: int
    block_tokens: int
    layers: int | None
    attention: AttentionKind | None
    quantisation: str
    context_tokens: int | None
    labels: dict[str, str]


class NodeOut(FromDomain):
    """One engine process."""

    name: str
    site: str
    role: Role
    url: str
    engine: str
    model: str
    slots: int
    state: NodeState
    chip: str
    labels: dict[str, str]


class LinkOut(FromDomain):
    """A directed WAN path; bytes per second and seconds."""

    name: str
    source: str
    target: str
    capacity_bytes_per_s: float
    rtt_s: float
    flow_cap_bytes_per_s: float | None
    relay_host: str
    relay_port: int
    admin_url: str


class EntranceOut(FromDomain):
    """A gateway as the operator keeps it."""

    name: str
    site: str
    url: str


class ItemChangeOut(BaseModel):
    """What becomes of one item."""

    kind: Kind
    name: str
    action: Action
    changes: list[ChangeOut]

    @classmethod
    def of(cls, change: ItemChange) -> "ItemChangeOut":
        """A change."""
        changes = [ChangeOut.of(field) for field in change.changes]
        return cls(kind=change.ref.kind, name=change.ref.name, action=change.action, changes=changes)


class FleetPlanOut(BaseModel):
    """What changes: facts of the fleet itself, then items."""

    facts: list[ChangeOut]
    items: list[ItemChangeOut]
    added: int
    changed: int
    removed: int

    @classmethod
    def of(cls, plan: FleetPlan) -> "FleetPlanOut":
        """A plan."""
        counts: dict[str, Any] = {action.value: len(plan.of(action)) for action in Action}
        facts = [ChangeOut.of(fact) for fact in plan.facts]
        return cls(facts=facts, items=[ItemChangeOut.of(change) for change in plan.items], **counts)
