"""From what nodes and relays answer to samples; an answer that cannot be read is no answer."""

from collections import Counter
from collections.abc import Iterable

import msgspec

from control.domain.transfers import MAX_SHOWN_TRANSFERS
from control.telemetry.records import LinkSample, NodeSample, TransferSample
from engine_agents.observer.config import WatchedLink, WatchedNode

UNREACHABLE = "unreachable"
STALLED = "stalled"
READY = "ready"
STALL_AFTER_S = 20.0


class StoreInfo(msgspec.Struct, frozen=True):
    """KV a node keeps."""

    resident_tokens: int = 0
    capacity_tokens: int = 0
    leased_bytes: int = 0
    stranded_bytes: int = 0
    stranded_age_s: float = 0.0


class CounterInfo(msgspec.Struct, frozen=True):
    """Counters of a node since it started."""

    prefill_tokens: int = 0
    decode_tokens: int = 0
    pulled_bytes: int = 0


class NodeInfo(msgspec.Struct, frozen=True):
    """`GET /pdd/v1/node`, as far as samples need it."""

    running: int = 0
    waiting: int = 0
    slots: int = 0
    store: StoreInfo = StoreInfo()
    counters: CounterInfo = CounterInfo()
    exact: bool | None = None
    last_progress_s: float | None = None


class WaitInfo(msgspec.Struct, frozen=True):
    """How many transfers were given a place on a link, and how long they waited for it together."""

    count: int = 0
    sum_s: float = 0.0


class ClassBytes(msgspec.Struct, frozen=True):
    """What entered a link for one pipeline and class."""

    service_class: str
    size_bytes: int = msgspec.field(name="bytes")


class TransferInfo(msgspec.Struct, frozen=True):
    """One transfer on a link."""

    transfer_id: str
    pipeline: str
    service_class: str
    state: str
    streams: int = 0
    size_bytes: int = msgspec.field(default=0, name="bytes")
    queued_bytes: int = 0
    age_s: float = 0.0
    waited_s: float = 0.0


class LinkInfo(msgspec.Struct, frozen=True):
    """One entry of a relay's `GET /links`, as far as samples need it."""

    name: str
    rtt_s: float
    bytes_total: int
    bytes_by_pipeline: dict[str, int]
    flows: int
    queued_bytes: int
    rate_cap_bytes_per_s: float | None = None
    flow_cap_bytes_per_s: float | None = None
    queue_depth: int = 0
    longest_wait_s: float = 0.0
    wait_s: WaitInfo = WaitInfo()
    bytes_by: tuple[ClassBytes, ...] = ()
    transfers: tuple[TransferInfo, ...] = ()


class StockLoad(msgspec.Struct, frozen=True):
    """`GET /load` of a stock engine, which has no node document."""

    server_load: int


def node_sample(site: str, node: WatchedNode, info: NodeInfo | None) -> NodeSample:
    """The sample of one node; None stands for no answer."""
    if info is None:
        return NodeSample(node.name, site, node.role, UNREACHABLE, slots=node.slots)
    is_stalled = bool(info.running) and info.last_progress_s is not None and info.last_progress_s > STALL_AFTER_S
    return NodeSample(
        node=node.name,
        site=site,
        role=node.role,
        state=STALLED if is_stalled else READY,
        running=info.running,
        waiting=info.waiting,
        slots=info.slots or node.slots,
        resident_tokens=info.store.resident_tokens,
        capacity_tokens=info.store.capacity_tokens,
        leased_bytes=info.store.leased_bytes,
        prefill_tokens_total=info.counters.prefill_tokens,
        decode_tokens_total=info.counters.decode_tokens,
        pulled_bytes_total=info.counters.pulled_bytes,
        exact=info.exact,
        stranded_bytes=info.store.stranded_bytes,
        stranded_age_s=info.store.stranded_age_s,
    )


def link_sample(link: WatchedLink, answered: dict[str, LinkInfo] | None) -> LinkSample:
    """The sample of one link from its relay's answer; a relay that is silent or does not know it is unreachable."""
    info = None if answered is None else answered.get(link.name)
    if info is None:
        return LinkSample(link.name, link.source, link.target, link.capacity_bytes_per_s, link.rtt_s, state=UNREACHABLE)
    return LinkSample(
        link=link.name,
        source=link.source,
        target=link.target,
        capacity_bytes_per_s=link.capacity_bytes_per_s,
        rtt_s=info.rtt_s,
        bytes_total=info.bytes_total,
        bytes_by_pipeline=info.bytes_by_pipeline,
        flows=info.flows,
        queued_bytes=info.queued_bytes,
        rate_cap_bytes_per_s=info.rate_cap_bytes_per_s,
        flow_cap_bytes_per_s=info.flow_cap_bytes_per_s,
        queue_depth=info.queue_depth,
        longest_wait_s=info.longest_wait_s,
        waits_total=info.wait_s.count,
        waited_s_total=info.wait_s.sum_s,
        bytes_by_class=_bytes_by_class(info.bytes_by),
        transfers=tuple(TransferSample(**msgspec.structs.asdict(one)) for one in info.transfers[:MAX_SHOWN_TRANSFERS]),
    )


def _bytes_by_class(counted: Iterable[ClassBytes]) -> dict[str, int]:
    """The sums over all pipelines."""
    sums: Counter[str] = Counter()
    for one in counted:
        sums[one.service_class] += one.size_bytes
    return dict(sums)
