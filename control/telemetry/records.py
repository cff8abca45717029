"""The wire format of telemetry: request records from gateways, samples from observers.

Fields are only ever appended, each with a default, so that a reader one release older or newer keeps working.
"""

import msgspec

REQUESTS_STREAM = "pdd:requests:{site}"
SAMPLES_STREAM = "pdd:samples:{site}"
LIVE_STREAM = "pdd:live"
LIVE_SNAPSHOT_KEY = "pdd:live:snapshot"
BATCH_FIELD = "b"
TICK_FIELD = "j"


class StageTime(msgspec.Struct, array_like=True, frozen=True):
    """One stage of a request; times are seconds after the gateway received it."""

    name: str
    start_s: float
    end_s: float


class RequestRecord(msgspec.Struct, array_like=True, frozen=True):
    """What happened to one request, without a word of its text.

    Times are seconds; `received_at_s` is Unix time, all others durations. `outcome` is a value of
    `control.domain.outcome.Outcome`. Ratios run from 0 to 1. None means "does not apply or not reported".
    `cache_lag_s` is how long P had the prompt's KV and MD had not, until this record was made. MD's engine reported
    `reported_drc_tokens` of the prompt as its own or on their way when it pulled, and `extend_resident_tokens` of
    prompt and eager tokens as its own when it went on from them.
    """

    request_id: str
    gateway: str
    site: str
    received_at_s: float
    model: str
    pipeline: str
    reason: str
    outcome: str
    status: int
    policy_revision: int
    traffic: str = "live"
    tenant: str = ""
    service_class: str = "default"
    stream: bool = True
    prefill_node: str = ""
    relay_node: str = ""
    main_node: str = ""
    link: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    eager_tokens: int = 0
    max_output_tokens: int = 0
    predicted_prefix_tokens: int = 0
    cached_tokens: int | None = None
    drc_resident_tokens: int = 0
    drc_in_flight_tokens: int = 0
    uncached_tokens: int = 0
    predicted_transfer_s: float = 0.0
    transfer_s: float | None = None
    pulled_tokens: int | None = None
    pulled_bytes: int | None = None
    handoff_mode: str = ""
    handoff_batches: int = 0
    handoff_stall_s: float | None = None
    expected_recomputed_tokens: int | None = None
    recomputed_tokens: int | None = None
    resumes: int = 0
    ttft_s: float | None = None
    ttst_s: float | None = None
    tpot_s: float | None = None
    max_itl_s: float | None = None
    e2e_s: float = 0.0
    gateway_overhead_s: float = 0.0
    relay_utilization: float = 0.0
    stages: tuple[StageTime, ...] = ()
    output_bound_tokens: int = 0
    output_bound_source: str = ""
    caught_up_tokens: int = 0
    repulls: int = 0
    predicted_direct_ttft_s: float = 0.0
    relay_was_at_ceiling: bool = False
    trace_id: str = ""
    cache_lag_s: float | None = None
    reported_drc_tokens: int | None = None
    extend_resident_tokens: int | None = None

    @property
    def prefix_hit_rate(self) -> float | None:
        """Prompt tokens found in P's cache / prompt tokens, as the engine reported it."""
        if self.cached_tokens is None or not self.input_tokens:
            return None
        return self.cached_tokens / self.input_tokens

    @property
    def predicted_prefix_hit_rate(self) -> float:
        """The same as the gateway's index foretold it."""
        return self.predicted_prefix_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def reported_drc_hit_rate(self) -> float | None:
        """`drc_hit_rate` as MD's engine reported it."""
        if self.reported_drc_tokens is None or not self.input_tokens:
            return None
        return self.reported_drc_tokens / self.input_tokens

    @property
    def drc_hit_rate(self) -> float:
        """Prompt tokens on the chosen MD or in flight to it / prompt tokens."""
        known = self.drc_resident_tokens + self.drc_in_flight_tokens
        return known / self.input_tokens if self.input_tokens else 0.0


class RequestBatch(msgspec.Struct, array_like=True, frozen=True):
    """Records of one gateway; (gateway, epoch, sequence) is its key, an empty one is a heartbeat.

    `epoch` is another number each time the gateway starts, `dropped_records` counts since then. The objectives are
    those of the default class in the policy that the gateway runs; None where it does not say. `class_objectives` has
    P90 and P99 of TTFT and P90 of TPOT, seconds, of every class.
    """

    gateway: str
    site: str
    epoch: int
    sequence: int
    sent_at_s: float
    records: tuple[RequestRecord, ...] = ()
    policy_revision: int = 0
    dropped_records: int = 0
    requests_in_flight: int = 0
    slo_ttft_p90_s: float | None = None
    slo_ttft_p99_s: float | None = None
    slo_tpot_p90_s: float | None = None
    class_objectives: dict[str, tuple[float, float, float]] = {}


class NodeSample(msgspec.Struct, array_like=True, frozen=True):
    """What a node said of itself, or that it did not answer (`state` = "unreachable")."""

    node: str
    site: str
    role: str
    state: str
    running: int = 0
    waiting: int = 0
    slots: int = 0
    resident_tokens: int = 0
    capacity_tokens: int = 0
    leased_bytes: int = 0
    prefill_tokens_total: int = 0
    decode_tokens_total: int = 0
    pulled_bytes_total: int = 0
    exact: bool | None = None
    stranded_bytes: int = 0
    stranded_age_s: float = 0.0


class TransferSample(msgspec.Struct, array_like=True, frozen=True):
    """One transfer on a link, as its relay showed it."""

    transfer_id: str
    pipeline: str
    service_class: str
    state: str
    streams: int = 0
    size_bytes: int = 0
    queued_bytes: int = 0
    age_s: float = 0.0
    waited_s: float = 0.0


class LinkSample(msgspec.Struct, array_like=True, frozen=True):
    """What the WAN relay measured on one link, or that it did not answer (`state` = "unreachable").

    Counters only grow, until the relay starts again from zero: bytes, transfers that were given a place on the link
    (`waits_total`, also those that need not wait), and the seconds that they waited for it together. `queue_depth`
    transfers wait now, the first of them for `longest_wait_s`.
    """

    link: str
    source: str
    target: str
    capacity_bytes_per_s: float
    rtt_s: float
    bytes_total: int = 0
    bytes_by_pipeline: dict[str, int] = {}
    flows: int = 0
    queued_bytes: int = 0
    rate_cap_bytes_per_s: float | None = None
    flow_cap_bytes_per_s: float | None = None
    state: str = "up"
    queue_depth: int = 0
    longest_wait_s: float = 0.0
    waits_total: int = 0
    waited_s_total: float = 0.0
    bytes_by_class: dict[str, int] = {}
    transfers: tuple[TransferSample, ...] = ()


class SampleBatch(msgspec.Struct, array_like=True, frozen=True):
    """One round of an observer; `dropped_batches` counts rounds it could not deliver since it started."""

    observer: str
    site: str
    epoch: int
    sequence: int
    sent_at_s: float
    nodes: tuple[NodeSample, ...] = ()
    links: tuple[LinkSample, ...] = ()
    dropped_batches: int = 0
