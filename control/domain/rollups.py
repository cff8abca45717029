"""Sums of telemetry over spans of time: what is kept, how it merges, and for how long."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Self

from control.domain.histogram import Histogram

UNKNOWN_BUCKET = -1
_DAY_S = 86_400


class Resolution(NamedTuple):
    """Length of one span, and how long spans of this length are kept; seconds."""

    span_s: int
    kept_s: int

    def start_s(self, at_s: float) -> int:
        """Start of the span that holds a moment, Unix seconds."""
        return int(at_s // self.span_s) * self.span_s


FINE = Resolution(10, 6 * 3600)
MIDDLE = Resolution(300, 8 * _DAY_S)
COARSE = Resolution(3600, 396 * _DAY_S)
RESOLUTIONS = (FINE, MIDDLE, COARSE)

# Dips of the revenue-against-hit-rate curve lie near 20, 40 and 70 %: between these a cached prefix costs more than it
# saves.
VALLEY_HIT_RATES = (0.15, 0.75)


def is_in_valley(hit_rate: float) -> bool:
    """Whether a prefix hit rate lies in the costly middle."""
    low, high = VALLEY_HIT_RATES
    return low <= hit_rate <= high


class RequestKey(NamedTuple):
    """Which requests a sum is of; `hit_bucket` is `UNKNOWN_BUCKET` where no engine reported a hit rate."""

    at_s: int
    site: str
    pipeline: str
    hit_bucket: int
    revision: int
    service_class: str

    def at(self, resolution: Resolution) -> "RequestKey":
        """The key of the longer span that holds this one."""
        return self._replace(at_s=resolution.start_s(self.at_s))


class LinkKey(NamedTuple):
    """Which link a sum is of."""

    at_s: int
    link: str

    def at(self, resolution: Resolution) -> "LinkKey":
        """The key of the longer span that holds this one."""
        return self._replace(at_s=resolution.start_s(self.at_s))


class LinkClassKey(NamedTuple):
    """Which service class on which link a sum is of."""

    at_s: int
    link: str
    service_class: str

    def at(self, resolution: Resolution) -> "LinkClassKey":
        """The key of the longer span that holds this one."""
        return self._replace(at_s=resolution.start_s(self.at_s))


class NodeKey(NamedTuple):
    """Which main node a sum is of."""

    at_s: int
    node: str

    def at(self, resolution: Resolution) -> "NodeKey":
        """The key of the longer span that holds this one."""
        return self._replace(at_s=resolution.start_s(self.at_s))


class SiteKey(NamedTuple):
    """Which site a sum is of."""

    at_s: int
    site: str

    def at(self, resolution: Resolution) -> "SiteKey":
        """The key of the longer span that holds this one."""
        return self._replace(at_s=resolution.start_s(self.at_s))


@dataclass(slots=True)
class Sums:
    """Figures that add up, over time and over whatever else tells keys apart."""

    def include(self, other: Self) -> None:
        """Add another one's figures to this one's."""
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if isinstance(mine, Histogram):
                mine.include(theirs)
            else:
                setattr(self, one.name, mine + theirs)

    @classmethod
    def merged(cls, many: Iterable[Self]) -> Self:
        """The sum of any number; of none, all zeros."""
        total = cls()
        for one in many:
            total.include(one)
        return total


@dataclass(frozen=True, slots=True, order=True)
class Exemplar:
    """The request of some that waited longest for its first token; without an id there was none. They add up too."""

    ttft_s: float = 0.0
    request_id: str = ""

    def __add__(self, other: "Exemplar") -> "Exemplar":
        return max(self, other)


@dataclass(slots=True)
class RequestSums(Sums):
    """Requests that ended within one span. Tokens and bytes are totals, `lag_token_s` is token-seconds of cache lag."""

    requests: int = 0
    completed: int = 0
    client_closed: int = 0
    rejected: int = 0
    shed: int = 0
    failed: int = 0
    demo: int = 0
    good: int = 0
    hit_known: int = 0
    valley: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    uncached_tokens: int = 0
    output_tokens: int = 0
    eager_tokens: int = 0
    pulled_bytes: int = 0
    handoffs: int = 0
    catch_up: int = 0
    lag_token_s: float = 0.0
    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)
    transfer: Histogram = field(default_factory=Histogram)
    stall: Histogram = field(default_factory=Histogram)
    slowest: Exemplar = Exemplar()

    @property
    def answered(self) -> int:
        """Requests that got what they came for, or left while it was coming."""
        return self.completed + self.client_closed

    @property
    def errors(self) -> int:
        """Requests that the fleet did not answer; what the client got wrong itself is none."""
        return self.shed + self.failed


@dataclass(slots=True)
class LinkSums(Sums):
    """What one link carried. `capacity_bytes` is what it could have carried in the `seconds` that samples cover.

    `queued_transfers` is the sum over samples of those that waited; `waits` transfers were given a place, after
    `waited_s` seconds together.
    """

    samples: int = 0
    down_samples: int = 0
    flaps: int = 0
    seconds: float = 0.0
    total_bytes: int = 0
    direct_bytes: int = 0
    relay_bytes: int = 0
    capacity_bytes: float = 0.0
    queued_transfers: int = 0
    waits: int = 0
    waited_s: float = 0.0


@dataclass(slots=True)
class LinkClassSums(Sums):
    """What one link carried of one service class."""

    total_bytes: int = 0


@dataclass(slots=True)
class NodeSums(Sums):
    """What requests brought to one main node: how many, tokens that it lacked, and token-seconds of cache lag."""

    requests: int = 0
    uncached_tokens: int = 0
    lag_token_s: float = 0.0


@dataclass(slots=True)
class SiteSums(Sums):
    """What a site reported. Of running, waiting, slots and bytes this is the sum over `observer_batches` rounds."""

    gateway_batches: int = 0
    observer_batches: int = 0
    node_samples: int = 0
    unreachable_samples: int = 0
    relay_running: int = 0
    relay_waiting: int = 0
    relay_slots: int = 0
    stranded_bytes: int = 0


@dataclass(slots=True)
class Rollups:
    """Sums of spans of one length, by key."""

    requests: dict[RequestKey, RequestSums] = field(default_factory=dict)
    links: dict[LinkKey, LinkSums] = field(default_factory=dict)
    link_classes: dict[LinkClassKey, LinkClassSums] = field(default_factory=dict)
    nodes: dict[NodeKey, NodeSums] = field(default_factory=dict)
    sites: dict[SiteKey, SiteSums] = field(default_factory=dict)

    @property
    def cells(self) -> int:
        """How many sums it holds, which is what storing it costs."""
        return sum(len(getattr(self, one.name)) for one in fields(self))

    def at(self, resolution: Resolution, now_s: float) -> "Rollups":
        """The same in longer spans, without those that would not be kept."""
        folded = Rollups()
        oldest_s = now_s - resolution.kept_s
        for one in fields(self):
            sums_by_key, into = getattr(self, one.name), getattr(folded, one.name)
            for key, sums in sums_by_key.items():
                if key.at_s >= oldest_s:
                    into.setdefault(key.at(resolution), type(sums)()).include(sums)
        return folded
