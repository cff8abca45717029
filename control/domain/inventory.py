"""What the operator keeps of the fleet: sites, chips, models, nodes, links and gateways, and what uses what."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from control.domain.topology import FleetSnapshot, Gateway, Link, Node, Site, Tenant


class AttentionKind(StrEnum):
    """How a model's layers keep KV."""

    MHA = "mha"
    GQA = "gqa"
    MLA = "mla"
    COMPRESSED = "compressed"
    HYBRID = "hybrid"


class Kind(StrEnum):
    """The kinds of items; the value is the plural that stands in documents and paths."""

    SITE = "sites"
    CHIP = "chips"
    MODEL = "models"
    NODE = "nodes"
    LINK = "links"
    GATEWAY = "gateways"

    @property
    def singular(self) -> str:
        """The name of one of them."""
        return self.value.removesuffix("s")


@dataclass(frozen=True, slots=True)
class ChipProfile:
    """The figures of one kind of chip: FLOP/s, bytes, bytes per second, and its price in any one currency."""

    name: str
    peak_flops: float
    memory_bytes: int
    memory_bytes_per_s: float
    interconnect_bytes_per_s: float
    price_per_hour: float


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The figures of one model; None and empty where nobody has said.

    `labels` say which parsers its answers need; `context_tokens` is the longest prompt and answer together.
    """

    name: str
    kv_bytes_per_token: int
    block_tokens: int = 64
    layers: int | None = None
    attention: AttentionKind | None = None
    quantisation: str = ""
    context_tokens: int | None = None
    labels: dict[str, str] = field(default_factory=dict, hash=False)


Item = Site | ChipProfile | ModelProfile | Node | Link | Gateway


@dataclass(frozen=True, slots=True)
class Wish:
    """An item as somebody wants it; fields named in `unsaid` keep what they have, in a new item what stands here."""

    item: Item
    unsaid: frozenset[str] = frozenset()

    @property
    def ref(self) -> "ItemRef":
        """The item that is meant."""
        return ItemRef(kind_of(self.item), self.item.name)

    def settled(self, current: Item | None) -> Item:
        """The item, given what it is now."""
        if current is None or not self.unsaid:
            return self.item
        kept: dict[str, Any] = {name: getattr(current, name) for name in self.unsaid}
        return replace(self.item, **kept)


@dataclass(frozen=True, slots=True)
class ItemRef:
    """Points to one item."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.singular} {self.name}"


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything the operator keeps, each kind by name. `model` is the one that the gateways serve first."""

    sites: tuple[Site, ...] = ()
    chips: tuple[ChipProfile, ...] = ()
    models: tuple[ModelProfile, ...] = ()
    nodes: tuple[Node, ...] = ()
    links: tuple[Link, ...] = ()
    gateways: tuple[Gateway, ...] = ()
    model: str = ""

    def items(self, kind: Kind) -> tuple[Item, ...]:
        """All items of one kind."""
        found: tuple[Item, ...] = getattr(self, kind.value)
        return found

    def by_name(self, kind: Kind) -> dict[str, Item]:
        """All items of one kind by name."""
        return {item.name: item for item in self.items(kind)}

    def with_item(self, kind: Kind, item: Item) -> Self:
        """A copy with one item added or replaced."""
        return self.with_items(kind, [item])

    def with_items(self, kind: Kind, items: Iterable[Item]) -> Self:
        """A copy with some items of one kind added or replaced."""
        named = {**self.by_name(kind), **{item.name: item for item in items}}
        return self._with(kind, (named[name] for name in sorted(named)))

    def find(self, ref: "ItemRef") -> Item | None:
        """The item that is pointed to; None if there is none."""
        return next((item for item in self.items(ref.kind) if item.name == ref.name), None)

    def with_wishes(self, kind: Kind, wishes: Iterable[Wish]) -> Self:
        """A copy with some items of one kind added or replaced, as they are wished for."""
        known = self.by_name(kind)
        return self.with_items(kind, [wish.settled(known.get(wish.item.name)) for wish in wishes])

    def without(self, ref: ItemRef) -> Self:
        """A copy without one item."""
        return self._with(ref.kind, (item for item in self.items(ref.kind) if item.name != ref.name))

    def users_of(self, ref: ItemRef) -> list[ItemRef]:
        """The items that cannot do without this one."""
        match ref.kind:
            case Kind.SITE:
                nodes = [node for node in self.nodes if node.site == ref.name]
                links = [link for link in self.links if ref.name in {link.source, link.target}]
                gateways = [gateway for gateway in self.gateways if gateway.site == ref.name]
                return [*_refs(Kind.NODE, nodes), *_refs(Kind.LINK, links), *_refs(Kind.GATEWAY, gateways)]
            case Kind.CHIP:
                return _refs(Kind.NODE, (node for node in self.nodes if node.chip == ref.name))
            case Kind.MODEL:
                return _refs(Kind.NODE, (node for node in self.nodes if node.model == ref.name))
            case Kind.NODE | Kind.LINK | Kind.GATEWAY:
                return []

    def _with(self, kind: Kind, items: Iterable[Item]) -> Self:
        section: dict[str, Any] = {kind.value: tuple(items)}
        return replace(self, **section)

    def snapshot(self, tenants: tuple[Tenant, ...] = ()) -> FleetSnapshot:
        """What the gateways need to know of it."""
        profile = next((model for model in self.models if model.name == self.model), None)
        facts = model_facts(profile) if profile else {}
        others = {model.name: dict(model.labels) for model in self.models if model.labels and model != profile}
        return FleetSnapshot(
            self.sites, self.nodes, self.links, self.gateways, tenants, self.model, **facts, model_labels=others
        )


def model_facts(profile: ModelProfile) -> dict[str, Any]:
    """The figures of the fleet's first model, under the names that a snapshot has for them."""
    return {
        "kv_bytes_per_token": profile.kv_bytes_per_token,
        "block_tokens": profile.block_tokens,
        "labels": dict(profile.labels),
    }


def item_facts(item: Item) -> dict[str, Any]:
    """An item as plain JSON data.

    How many streams a transfer uses is the policy's to say, so a link here has no such field.
    """
    facts = {key: _plain(value) for key, value in asdict(item).items()}
    facts.pop("streams_per_transfer", None)
    return facts


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    return list(value) if isinstance(value, tuple) else value


def kind_of(item: Item) -> Kind:
    """Which kind an item is of."""
    return _KINDS[type(item)]


_KINDS: Mapping[type, Kind] = {
    Site: Kind.SITE,
    ChipProfile: Kind.CHIP,
    ModelProfile: Kind.MODEL,
    Node: Kind.NODE,
    Link: Kind.LINK,
    Gateway: Kind.GATEWAY,
}


def _refs(kind: Kind, items: Iterable[Item]) -> list[ItemRef]:
    return [ItemRef(kind, item.name) for item in items]
