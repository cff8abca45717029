"""Folds batches into sums of ten seconds. What came before, and how far, is loaded and saved by the rollup writer."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from control.domain.outcome import Outcome
from control.domain.policy_fields import is_member_name
from control.domain.rollups import (
    FINE,
    UNKNOWN_BUCKET,
    LinkClassKey,
    LinkClassSums,
    LinkKey,
    LinkSums,
    NodeKey,
    NodeSums,
    RequestKey,
    RequestSums,
    Rollups,
    SiteKey,
    SiteSums,
    is_in_valley,
)
from control.domain.slo import Objectives, hit_rate_bucket, meets_objectives
from control.telemetry.batch_keys import BatchKeys
from control.telemetry.checks import (
    ended_at_s,
    is_name,
    is_possible,
    is_possible_link,
    is_possible_node,
    is_possible_time,
)
from control.telemetry.link_windows import UNREACHABLE, Carried, difference
from control.telemetry.node_windows import is_relay
from control.telemetry.records import LinkSample, NodeSample, RequestBatch, RequestRecord, SampleBatch
from control.telemetry.request_slots import CATCH_UP, DEMO, OTHER, PIPELINES, lag_token_s, main_node_of
from control.telemetry.samples import SampleBuffer, exemplar_of
from control.telemetry.sources import STALE_AFTER_S, Promised

MAX_LATE_S = 86_400.0
STRANDED_AFTER_S = 10.0  # a lease that is younger may just be waiting for its reader
MAX_REVISION = 2**31 - 1

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
        if not self._is_acceptable("gateway", batch.gateway, batch, now_s):
            return
        self._site(batch.site, min(batch.sent_at_s, now_s)).gateway_batches += 1
        promised = Promised(batch)
        for record in batch.records:
            if not is_possible(record, now_s):
                self.left_out["impossible"] += 1
            elif ended_at_s(record) < now_s - MAX_LATE_S:
                self.left_out["late"] += 1
            else:
                key, objectives = request_key(record, now_s), promised.to(record.service_class)
                add_request(self.rollups.requests.setdefault(key, RequestSums()), record, objectives)
                self.left_out["unsearchable"] += not self.samples.take(record, key, objectives)
                if record.main_node:
                    node = NodeKey(key.at_s, main_node_of(record))
                    add_main_request(self.rollups.nodes.setdefault(node, NodeSums()), record)

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
        known.sample, known.counted_at_s = sample, at_s


def add_carried(sums: LinkSums, carried: Carried, capacity_bytes_per_s: float) -> None:
    """Count what a link carried between two samples."""
    sums.seconds += carried.seconds
    sums.total_bytes += carried.total_bytes
    sums.direct_bytes += carried.by_pipeline.get("direct", 0)
    sums.relay_bytes += carried.by_pipeline.get("relay", 0)
    sums.capacity_bytes += carried.seconds * capacity_bytes_per_s
    sums.waits += carried.waits
    sums.waited_s += carried.waited_s


def add_main_request(sums: NodeSums, record: RequestRecord) -> None:
    """Count one request for its main node."""
    sums.requests += 1
    sums.uncached_tokens += record.uncached_tokens
    sums.lag_token_s += lag_token_s(record)


def request_key(record: RequestRecord, now_s: float) -> RequestKey:
    """Where a request is counted; words that only a faulty gateway can send become one, so that keys stay few."""
    hit_rate = record.prefix_hit_rate
    return RequestKey(
        at_s=FINE.start_s(min(ended_at_s(record), now_s)),
        site=record.site if is_name(record.site) else OTHER,
        pipeline=record.pipeline if record.pipeline in PIPELINES else OTHER,
        hit_bucket=UNKNOWN_BUCKET if hit_rate is None else hit_rate_bucket(hit_rate),
        revision=record.policy_revision if 0 <= record.policy_revision <= MAX_REVISION else 0,
        service_class=record.service_class if is_member_name(record.service_class) else OTHER,
    )


def add_request(sums: RequestSums, record: RequestRecord, objectives: Objectives) -> None:
    """Count one request."""
    sums.requests += 1
    sums.demo += record.traffic == DEMO
    _count_outcome(sums, record.outcome)
    sums.good += record.outcome == Outcome.COMPLETED and meets_objectives(record.ttft_s, record.tpot_s, objectives)
    hit_rate = record.prefix_hit_rate
    if hit_rate is not None:
        sums.hit_known += 1
        sums.valley += is_in_valley(hit_rate)
    sums.input_tokens += record.input_tokens
    sums.cached_tokens += record.cached_tokens or 0
    sums.uncached_tokens += record.uncached_tokens
    sums.output_tokens += record.output_tokens
    sums.eager_tokens += min(record.eager_tokens, record.output_tokens)
    sums.pulled_bytes += record.pulled_bytes or 0
    sums.handoffs += bool(record.handoff_mode)
    sums.catch_up += record.handoff_mode == CATCH_UP
    sums.lag_token_s += lag_token_s(record)
    sums.slowest += exemplar_of(record)
    sums.e2e.add(record.e2e_s)
    for histogram, value_s in (
        (sums.ttft, record.ttft_s),
        (sums.tpot, record.tpot_s),
        (sums.transfer, record.transfer_s),
        (sums.stall, record.handoff_stall_s),
    ):
        if value_s is not None:
            histogram.add(value_s)


def _count_outcome(sums: RequestSums, outcome: str) -> None:
    sums.completed += outcome == Outcome.COMPLETED
    sums.client_closed += outcome == Outcome.CLIENT_CLOSED
    sums.rejected += outcome == Outcome.REJECTED
    sums.shed += outcome == Outcome.SHED
    sums.failed += outcome == Outcome.FAILED


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
