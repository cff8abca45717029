"""The live picture: batches go in, slots, tiles, rows and states come out. Time is always an argument."""

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from control.domain.slo import Objectives
from control.domain.topology import Role
from control.telemetry.checks import is_possible_time
from control.telemetry.folding import Received
from control.telemetry.link_windows import LinkSlot, LinkTrack
from control.telemetry.node_windows import NodeSlot, NodeTrack, is_relay, relay_load, relay_utilization
from control.telemetry.received import whole
from control.telemetry.records import LinkSample, NodeSample, RequestBatch, RequestRecord, SampleBatch
from control.telemetry.request_slots import (
    RequestSlot,
    class_pictures,
    request_row,
    rounded,
    slot_picture,
    ttft_quantiles,
)
from control.telemetry.sources import STALE_AFTER_S, Source

SLOT_S = 10
KEPT_SLOTS = 90
KEPT_S = SLOT_S * KEPT_SLOTS
QUANTILE_SLOTS = 6
TILE_SLOTS = 30
KEPT_ROWS = 40
KEPT_MARKS = 100
SETTLE_S = 2.5

Picture = dict[str, Any]


class LiveWindows:
    """Slots of `SLOT_S` seconds over `KEPT_S` seconds, and the last word of every source, node and link.

    A request belongs to the slot in which it ended, a sample to the one in which it was taken. What is impossible,
    seen before or older than the windows is counted in `dropped` and changes nothing else.
    """

    def __init__(self, objectives: Objectives | None = None) -> None:
        self.dropped: Counter[str] = Counter()
        self._objectives = objectives or Objectives()
        self._requests: dict[int, RequestSlot] = {}
        self._links: dict[int, dict[str, LinkSlot]] = {}
        self._relays: dict[int, dict[str, NodeSlot]] = {}
        self._link_tracks: dict[str, LinkTrack] = {}
        self._node_tracks: dict[str, NodeTrack] = {}
        self._sources: dict[tuple[str, str], Source] = {}
        self._records: deque[RequestRecord] = deque(maxlen=KEPT_ROWS)
        self._new_records: deque[tuple[float, RequestRecord]] = deque(maxlen=KEPT_ROWS)
        self._marks: deque[Picture] = deque(maxlen=KEPT_MARKS)
        self._new_marks: list[Picture] = []
        self._first_known_s: float | None = None
        self._pictures: dict[int, Picture] = {}

    def take_requests(self, batch: RequestBatch, now_s: float) -> None:
        """Take one batch of a gateway."""
        self.take_received(Received([batch], now_s))

    def take_received(self, received: Received) -> None:
        """Take batches of gateways."""
        now_s = received.now_s
        is_accepted = [self._advance_gateway(batch, now_s) for batch in received.batches]
        folded = received.fold(is_accepted, now_s - KEPT_S)
        for reason, count in (("impossible", folded.impossible), ("late", folded.late)):
            if count:
                self.dropped[reason] += count
        for group in folded.groups:
            self._know(group.key.at_s).add(group.key, group.sums)
        for key, sums in folded.nodes.items():
            self._know(key.at_s).add_lag(key.node, sums.lag_token_s)
        if len(folded.places):
            self._know_since(float(folded.columns.ended_at_s[folded.places].min()))
        for place in folded.places[-KEPT_ROWS:].tolist():
            self._add_row(folded.columns.records[place], received.batches[folded.columns.batch_of[place]].sent_at_s)

    def take_samples(self, batch: SampleBatch, now_s: float) -> None:
        """Take one batch of an observer."""
        source = self._source(batch.observer, "observer", batch.site)
        if not self._is_acceptable(source, batch, now_s):
            return
        if not source.advance_samples(batch):
            self.dropped["late"] += 1
            return
        index = int(batch.sent_at_s // SLOT_S)
        self._pictures.pop(index, None)
        for node in batch.nodes:
            self._take_node(node, batch.sent_at_s, index)
        for link in batch.links:
            self._take_link(link, source, index, now_s)

    def tick(self, now_s: float) -> Picture:
        """The slot that is still open, states, and what is new until `forget_new`; forgets what is too old."""
        self._forget(now_s)
        return {
            "slot": self._slot(self._open_slot(now_s)),
            "requests": [request_row(record) for _, record in reversed(self._new_records)],
            "marks": list(self._new_marks),
            **self._state(now_s),
        }

    def snapshot(self, now_s: float) -> Picture:
        """The whole picture."""
        last = self._open_slot(now_s)
        return {
            "slot_s": SLOT_S,
            "slots": [self._slot(index) for index in self._kept_slots(last)],
            "requests": [request_row(record) for record in reversed(self._records)],
            "marks": list(self._marks),
            "transfers": {name: track.transfers() for name, track in sorted(self._link_tracks.items())},
            **self._state(now_s),
        }

    def forget_new(self, sent_before_s: float = math.inf) -> None:
        """Call rows and marks old that were sent before a time: a tick has carried them."""
        still_new = (entry for entry in self._new_records if entry[0] > sent_before_s)
        self._new_records = deque(still_new, maxlen=KEPT_ROWS)
        self._new_marks = [mark for mark in self._new_marks if mark["at_s"] > sent_before_s]

    def _state(self, now_s: float) -> Picture:
        return {
            "now_s": now_s,
            "tiles": self._tiles(now_s),
            "sources": [self._sources[key].picture(now_s) for key in sorted(self._sources)],
            "links": [self._link_tracks[name].picture(now_s, STALE_AFTER_S) for name in sorted(self._link_tracks)],
            "nodes": [self._node_tracks[name].picture(now_s, STALE_AFTER_S) for name in sorted(self._node_tracks)],
            "dropped": dict(self.dropped),
        }

    def _source(self, name: str, kind: Any, site: str) -> Source:
        return self._sources.setdefault((kind, name), Source(name, kind, site))

    def _is_acceptable(self, source: Source, batch: RequestBatch | SampleBatch, now_s: float) -> bool:
        if not is_possible_time(batch.sent_at_s, now_s):
            self.dropped["impossible"] += 1
        elif batch.sent_at_s < now_s - KEPT_S:
            self.dropped["late"] += 1
        elif not source.is_new(batch.epoch, batch.sequence, batch.sent_at_s):
            self.dropped["duplicate"] += 1
        else:
            return True
        return False

    def _advance_gateway(self, batch: RequestBatch, now_s: float) -> bool:
        """Take over what a batch says of its gateway; False if its records do not count."""
        source = self._source(batch.gateway, "gateway", batch.site)
        if not self._is_acceptable(source, batch, now_s):
            return False
        revision = source.advance_requests(batch)
        if revision is not None:
            self._mark_policy(revision, batch.sent_at_s)
        self._know(batch.sent_at_s)
        self._know_since(batch.sent_at_s)
        return True

    def _add_row(self, received: Any, sent_at_s: float) -> None:
        record = whole(received)
        if record is not None and all(math.isfinite(stage.start_s + stage.end_s) for stage in record.stages):
            self._records.append(record)
            self._new_records.append((sent_at_s, record))

    def _know(self, at_s: float) -> RequestSlot:
        """The slot of a moment that a gateway has reported on; pictures of windows that hold it are out of date."""
        index = int(at_s // SLOT_S)
        slot = self._requests.get(index)
        if slot is None:
            slot = self._requests[index] = RequestSlot()
        slot.is_known = True
        for affected in range(index, index + QUANTILE_SLOTS):
            self._pictures.pop(affected, None)
        return slot

    def _know_since(self, at_s: float) -> None:
        if self._first_known_s is None or at_s < self._first_known_s:
            self._first_known_s = at_s

    def _take_node(self, sample: NodeSample, at_s: float, index: int) -> None:
        track = self._node_tracks.get(sample.node)
        if track is None:
            track = self._node_tracks[sample.node] = NodeTrack(sample, at_s)
        track.advance(sample, at_s)
        if is_relay(sample):
            self._relays.setdefault(index, {}).setdefault(sample.node, NodeSlot()).add(sample)

    def _take_link(self, sample: LinkSample, source: Source, index: int, now_s: float) -> None:
        """Take a link from one observer only; another may take over when that one is silent."""
        track = self._link_tracks.get(sample.link)
        if track is None:
            track = LinkTrack(sample, source.name, source.sent_at_s)
            self._link_tracks[sample.link] = track
            self._pictures.clear()
        elif track.observer != source.name and now_s - track.at_s <= STALE_AFTER_S:
            return
        carried = track.advance(sample, source.name, source.sent_at_s)
        if sample.state == "up":
            self._links.setdefault(index, {}).setdefault(sample.link, LinkSlot()).add(carried, sample)

    def _mark_policy(self, revision: int, at_s: float) -> None:
        label = f"r{revision}"
        if self._marks and self._marks[-1]["label"] == label:
            return
        mark = {"at_s": at_s, "kind": "policy", "label": label}
        self._marks.append(mark)
        self._new_marks.append(mark)

    def _open_slot(self, now_s: float) -> int:
        """The slot that ticks carry: it stays open for `SETTLE_S` after its end, until its last batches are here."""
        return int((now_s - SETTLE_S) // SLOT_S)

    def _kept_slots(self, last: int) -> Iterator[int]:
        """From the first slot anybody reported on, gaps included."""
        known = [*self._requests, *self._links, *self._relays]
        first = max(min(known, default=last), last - KEPT_SLOTS + 1)
        return iter(range(first, last + 1))

    def _slot(self, index: int) -> Picture:
        picture = self._pictures.get(index)
        if picture is None:
            load = relay_load(self._relays.get(index, {}).values())
            picture = self._pictures[index] = {
                "at_s": index * SLOT_S,
                **slot_picture(self._requests.get(index), self._recent(index, QUANTILE_SLOTS)),
                "links": self._slot_links(index),
                "relay": load,
            }
        return picture

    def _slot_links(self, index: int) -> Picture:
        measured = self._links.get(index, {})
        return {name: measured[name].picture() if name in measured else None for name in sorted(self._link_tracks)}

    def _recent(self, last: int, count: int) -> list[RequestSlot]:
        return [self._requests[index] for index in range(last - count + 1, last + 1) if index in self._requests]

    def _tiles(self, now_s: float) -> Picture:
        slots = self._recent(int(now_s // SLOT_S), TILE_SLOTS)
        is_known = any(slot.is_known for slot in slots)
        covered_s = self._covered_s(now_s)
        output_tokens = sum(slot.output_tokens for slot in slots)
        eager_tokens = sum(slot.eager_tokens for slot in slots)
        requests = sum(slot.requests for slot in slots)
        utilization = relay_utilization(self._node_tracks.values(), now_s, STALE_AFTER_S)
        objectives = self._objectives_in_force()
        return {
            "window_s": TILE_SLOTS * SLOT_S,
            "ttft": ttft_quantiles(slots),
            "requests": requests if is_known else None,
            "rps": rounded(sum(slot.served for slot in slots) / covered_s) if is_known else None,
            "goodput_rps": rounded(sum(slot.good for slot in slots) / covered_s) if is_known else None,
            "rld_share": rounded(eager_tokens / output_tokens) if output_tokens else None,
            "wan_use": self._busiest_link(now_s),
            "cache_lag_tokens": rounded(sum(slot.lag_token_s for slot in slots) / covered_s) if is_known else None,
            "cache_lag_by_node": self._lag_by_node(slots, covered_s),
            "relay_utilization": rounded(utilization),
            "slo": {"ttft_p90_s": objectives.ttft_p90_s, "ttft_p99_s": objectives.ttft_p99_s},
            "classes": self._classes(slots),
        }

    def _lag_by_node(self, slots: list[RequestSlot], covered_s: float) -> dict[str, float | None]:
        """Mean cache lag of each main node that has answered or been sent something, tokens."""
        sums = {name: 0.0 for name, track in self._node_tracks.items() if track.sample.role == Role.MAIN}
        for slot in slots:
            for name, lag_token_s in slot.lag_by_node.items():
                sums[name] = sums.get(name, 0.0) + lag_token_s
        return {name: rounded(sums[name] / covered_s) for name in sorted(sums)}

    def _covered_s(self, now_s: float) -> float:
        """Seconds of the tiles' window on which there is data, so that a young fleet's rates are not diluted."""
        window_start_s = (int(now_s // SLOT_S) - TILE_SLOTS + 1) * SLOT_S
        first_s = now_s if self._first_known_s is None else self._first_known_s
        return max(now_s - max(first_s, window_start_s), 1.0)

    def _objectives_in_force(self) -> Objectives:
        gateways = [source for source in self._sources.values() if source.objectives is not None]
        newest = max(gateways, key=lambda source: source.sent_at_s, default=None)
        return self._objectives if newest is None or newest.objectives is None else newest.objectives

    def _classes(self, slots: list[RequestSlot]) -> list[Picture]:
        """Each service class with what the newest gateway promises it, in the order of their names."""
        promised = self._newest_promises()
        pictures = class_pictures(slots)
        return [
            {
                "name": name,
                **pictures[name],
                "slo": {
                    "ttft_p90_s": (objectives := promised.get(name, self._objectives_in_force())).ttft_p90_s,
                    "ttft_p99_s": objectives.ttft_p99_s,
                    "tpot_p90_s": objectives.tpot_p90_s,
                },
            }
            for name in pictures
        ]

    def _newest_promises(self) -> Mapping[str, Objectives]:
        gateways = [source for source in self._sources.values() if source.class_objectives]
        newest = max(gateways, key=lambda source: source.sent_at_s, default=None)
        return {} if newest is None else newest.class_objectives

    def _busiest_link(self, now_s: float) -> Picture | None:
        pictures = [track.picture(now_s, STALE_AFTER_S) for track in self._link_tracks.values()]
        measured = [picture for picture in pictures if picture["ratio"] is not None]
        if not measured:
            return None
        busiest = max(measured, key=lambda picture: picture["ratio"])
        names = ("ratio", "bytes_per_s", "capacity_bytes_per_s")
        return {"link": busiest["name"], **{name: busiest[name] for name in names}}

    def _forget(self, now_s: float) -> None:
        oldest_s = now_s - KEPT_S
        oldest = int(oldest_s // SLOT_S)
        self._requests = {index: slot for index, slot in self._requests.items() if index >= oldest}
        self._links = {index: slot for index, slot in self._links.items() if index >= oldest}
        self._relays = {index: slot for index, slot in self._relays.items() if index >= oldest}
        self._pictures = {index: picture for index, picture in self._pictures.items() if index >= oldest}
        for key, source in list(self._sources.items()):
            source.forget_before(oldest_s)
            if source.sent_at_s < oldest_s:
                del self._sources[key]
        self._node_tracks = {name: track for name, track in self._node_tracks.items() if track.at_s >= oldest_s}
        self._link_tracks = {name: track for name, track in self._link_tracks.items() if track.at_s >= oldest_s}
