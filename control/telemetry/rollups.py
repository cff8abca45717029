"""Folds batches into sums of ten seconds. What came before, and how far, is loaded and saved by the rollup writer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from control.domain.policy_fields import is_member_name
from control.domain.rollups import (
    FINE,
    LinkClassKey,
    LinkClassSums,
    LinkKey,
    LinkSums,
    NodeSums,
    RequestSums,
    Rollups,
    SiteKey,
    SiteSums,
)
from control.telemetry.batch_keys import BatchKeys
from control.telemetry.checks import is_name, is_possible_link, is_possible_node, is_possible_time
from control.telemetry.folding import Received
from control.telemetry.link_windows import UNREACHABLE, Carried, difference
from control.telemetry.node_windows import is_relay
from control.telemetry.records import LinkSample, NodeSample, RequestBatch, SampleBatch
from control.telemetry.request_slots import OTHER
from control.telemetry.samples import SampleBuffer
from control.telemetry.sources import STALE_AFTER_S

MAX_LATE_S = 86_400.0
STRANDED_AFTER_S = 10.0  # a lease that is younger may just be waiting for its reader

Kind = Literal["gateway", "observer"]


@dataclass(slots=True)
class SourceState:
    """What must be known of a sender to count its next batch rightly."""

    site: str
    sent_at_s: float = 0.0
    keys: BatchKeys = field(default_factory=BatchKeys)

    def advance(self, batch: RequestBatch | SampleBatch) -> None:
        """Take over what the newest batch says of its sender."""
        if batch.sent_at_s > self.sent_at_s:
            self.site, self.sent_at_s = batch.site, batch.sent_at_s


@dataclass(slots=True)
class LinkState:
    """A link as last counted; `sample` is the last one that had counters."""

    observer: str
    at_s: float
    state: str
    counted_at_s: float = 0.0
    sample: LinkSample | None = None


@dataclass(slots=True)
class RollupBuffer:
    """Sums since the last save, and the senders' states. Time is an argument.

    What is impossible, seen before, or older than a day is counted in `left_out` and changes nothing else.
    """

    rollups: Rollups = field(default_factory=Rollups)
    left_out: Counter[str] = field(default_factory=Counter)
    sources: dict[tuple[Kind, str], SourceState] = field(default_factory=dict)
    links: dict[str, LinkState] = field(default_factory=dict)
    samples: SampleBuffer = field(default_factory=SampleBuffer)

    @property
    def size(self) -> int:
        """How many rows it makes, about."""
        return self.rollups.cells + len(self.samples.rows)

    def take_requests(self, batch: RequestBatch, now_s: float) -> None:
        """Fold one batch of a gateway."""
        self.take_received(Received([batch], now_s), [True])

    def take_received(self, received: Received, is_wanted: Sequence[bool]) -> None:
        """Fold those of some gateways' batches that are wanted."""
        now_s = received.now_s
        is_accepted = [
            wanted and self._is_acceptable("gateway", batch.gateway, batch, now_s)
            for batch, wanted in zip(received.batches, is_wanted, strict=True)
        ]
        for batch, accepted in zip(received.batches, is_accepted, strict=True):
            if accepted:
                self._site(batch.site, min(batch.sent_at_s, now_s)).gateway_batches += 1
        folded = received.fold(is_accepted, now_s - MAX_LATE_S)
        self.left_out["impossible"] += folded.impossible
        self.left_out["late"] += folded.late
        for group in folded.groups:
            self.rollups.requests.setdefault(group.key, RequestSums()).include(group.sums)
        for key, sums in folded.nodes.items():
            self.rollups.nodes.setdefault(key, NodeSums()).include(sums)
        self.left_out["unsearchable"] += self.samples.take(folded.columns, folded.groups)

    def take_samples(self, batch: SampleBatch, now_s: float) -> None:
        """Fold one batch of an observer."""
        if not self._is_acceptable("observer", batch.observer, batch, now_s):
            return
        at_s = min(batch.sent_at_s, now_s)
        site = self._site(batch.site, at_s)
        site.observer_batches += 1
        for node in batch.nodes:
            if is_possible_node(node):
                add_node(site, node)
            else:
                self.left_out["impossible"] += 1
        for link in batch.links:
            if is_possible_link(link):
                self._take_link(link, batch.observer, at_s)
            else:
                self.left_out["impossible"] += 1

    def _is_acceptable(self, kind: Kind, name: str, batch: RequestBatch | SampleBatch, now_s: float) -> bool:
        if not is_possible_time(batch.sent_at_s, now_s) or not (is_name(name) and is_name(batch.site)):
            self.left_out["impossible"] += 1
            return False
        if batch.sent_at_s < now_s - MAX_LATE_S:
            self.left_out["late"] += 1
            return False
        source = self.sources.setdefault((kind, name), SourceState(batch.site))
        is_behind = source.keys.is_behind(batch.epoch, batch.sequence)
        if not source.keys.add(batch.epoch, batch.sequence):
            self.left_out["duplicate"] += 1
            return False
        self.left_out["out_of_order"] += is_behind
        source.advance(batch)
        return True

    def _site(self, site: str, at_s: float) -> SiteSums:
        return self.rollups.sites.setdefault(SiteKey(FINE.start_s(at_s), site), SiteSums())

    def _take_link(self, sample: LinkSample, observer: str, at_s: float) -> None:
        """Count a link from one observer only; another may take over when that one is silent."""
        known = self.links.get(sample.link)
        if known is None:
            known = self.links[sample.link] = LinkState(observer, at_s, sample.state)
        elif at_s <= known.at_s or (known.observer != observer and at_s - known.at_s <= STALE_AFTER_S):
            return
        key = LinkKey(FINE.start_s(at_s), sample.link)
        sums = self.rollups.links.setdefault(key, LinkSums())
        sums.samples += 1
        sums.flaps += sample.state != known.state
        known.observer, known.at_s, known.state = observer, at_s, sample.state
        if sample.state == UNREACHABLE:
            sums.down_samples += 1
            return
        sums.queued_transfers += sample.queue_depth
        if known.sample is not None:
            carried = difference(known.sample, sample, at_s, at_s - known.counted_at_s)
            add_carried(sums, carried, sample.capacity_bytes_per_s)
            for service_class, count in carried.by_class.items():
                name = service_class if is_member_name(service_class) else OTHER
                of_class = self.rollups.link_classes.setdefault(LinkClassKey(*key, name), LinkClassSums())
                of_class.total_bytes += count
        known.sample, known.counted_at_s = msgspec.structs.replace(sample, transfers=()), at_s


def add_carried(sums: LinkSums, carried: Carried, capacity_bytes_per_s: float) -> None:
    """Count what a link carried between two samples."""
    sums.seconds += carried.seconds
    sums.total_bytes += carried.total_bytes
    sums.direct_bytes += carried.by_pipeline.get("direct", 0)
    sums.relay_bytes += carried.by_pipeline.get("relay", 0)
    sums.capacity_bytes += carried.seconds * capacity_bytes_per_s
    sums.waits += carried.waits
    sums.waited_s += carried.waited_s


def add_node(site: SiteSums, sample: NodeSample) -> None:
    """Count what one node said of itself in one round."""
    site.node_samples += 1
    if sample.state == UNREACHABLE:
        site.unreachable_samples += 1
        return
    if sample.stranded_age_s >= STRANDED_AFTER_S:
        site.stranded_bytes += sample.stranded_bytes
    if is_relay(sample):
        site.relay_running += sample.running
        site.relay_waiting += sample.waiting
        site.relay_slots += sample.slots


def source_document(state: SourceState) -> Any:
    """A sender's state as JSON."""
    return state.keys.to_document()


def link_document(state: LinkState) -> Any:
    """A link's state as JSON."""
    return msgspec.to_builtins(
        {
            "observer": state.observer,
            "state": state.state,
            "counted_at_s": state.counted_at_s,
            "sample": state.sample,
        }
    )


def link_from_document(at_s: float, document: Any) -> LinkState:
    """What `link_document` gave.

    Raises:
        msgspec.ValidationError: it was given by something else.
    """
    sample = document["sample"]
    return LinkState(
        observer=document["observer"],
        at_s=at_s,
        state=document["state"],
        counted_at_s=document["counted_at_s"],
        sample=None if sample is None else msgspec.convert(sample, LinkSample),
    )
