"""What is let into the windows: batches from outside are decoded field by field, impossible records are left out."""

import math

import msgspec

from control.telemetry.records import LinkSample, NodeSample, RequestBatch, RequestRecord, SampleBatch

MAX_CLOCK_SKEW_S = 60.0
MAX_DURATION_S = 86_400.0
MAX_TOKENS = 10**9
MAX_BYTES = 10**15
MAX_NAME_CHARS = 200
MAX_TRANSFERS = 10**6
MAX_WAITED_S = 1e12


class LooseBatch(msgspec.Struct, array_like=True, frozen=True):
    """A batch whose records are read one by one."""

    gateway: str
    site: str
    epoch: int
    sequence: int
    sent_at_s: float
    records: tuple[msgspec.Raw, ...] = ()
    policy_revision: int = 0
    dropped_records: int = 0
    requests_in_flight: int = 0
    slo_ttft_p90_s: float | None = None
    slo_ttft_p99_s: float | None = None
    slo_tpot_p90_s: float | None = None
    class_objectives: dict[str, tuple[float, float, float]] = {}


_requests = msgspec.msgpack.Decoder(RequestBatch)
_loose_requests = msgspec.msgpack.Decoder(LooseBatch)
_record = msgspec.msgpack.Decoder(RequestRecord)
_samples = msgspec.msgpack.Decoder(SampleBatch)


def decode_requests(raw: bytes) -> tuple[RequestBatch, int]:
    """A gateway's batch and how many of its records had wrong types.

    Raises:
        ValueError: it is not a batch at all.
    """
    try:
        return _requests.decode(raw), 0
    except msgspec.ValidationError:
        loose = _loose_requests.decode(raw)
    records = []
    for one in loose.records:
        try:
            records.append(_record.decode(one))
        except msgspec.ValidationError:
            continue
    fields = {**msgspec.structs.asdict(loose), "records": tuple(records)}
    return RequestBatch(**fields), len(loose.records) - len(records)


def decode_samples(raw: bytes) -> SampleBatch:
    """An observer's batch.

    Raises:
        ValueError: it is not one.
    """
    return _samples.decode(raw)


def is_possible_time(at_s: float, now_s: float) -> bool:
    """Whether a Unix time is a number and not further ahead than clocks differ."""
    return math.isfinite(at_s) and 0 < at_s <= now_s + MAX_CLOCK_SKEW_S


def is_name(text: str) -> bool:
    """Whether a text can be a name and a key in any database."""
    return 0 < len(text) <= MAX_NAME_CHARS and text.isprintable()


def is_possible(record: RequestRecord, now_s: float) -> bool:
    """Whether a record can be true: finite, nothing negative, parts no larger than their whole."""
    if not is_possible_time(record.received_at_s, now_s) or not is_possible_time(ended_at_s(record), now_s):
        return False
    durations = (
        record.predicted_transfer_s,
        record.transfer_s,
        record.handoff_stall_s,
        record.ttft_s,
        record.ttst_s,
        record.tpot_s,
        record.max_itl_s,
        record.e2e_s,
        record.cache_lag_s,
    )
    if any(value is not None and not 0 <= value <= MAX_DURATION_S for value in durations):
        return False
    counts = (
        record.input_tokens,
        record.output_tokens,
        record.eager_tokens,
        record.cached_tokens,
        record.uncached_tokens,
        record.drc_resident_tokens,
        record.drc_in_flight_tokens,
    )
    if any(count is not None and not 0 <= count <= MAX_TOKENS for count in counts):
        return False
    if record.pulled_bytes is not None and not 0 <= record.pulled_bytes <= MAX_BYTES:
        return False
    hit_rate = record.prefix_hit_rate
    return (hit_rate is None or hit_rate <= 1) and all(
        math.isfinite(stage.start_s) and math.isfinite(stage.end_s) for stage in record.stages
    )


def ended_at_s(record: RequestRecord) -> float:
    """When a request ended, Unix time; its figures belong to that moment."""
    return record.received_at_s + record.e2e_s


def is_possible_node(sample: NodeSample) -> bool:
    """Whether the figures that are summed up can be true."""
    counts = (sample.running, sample.waiting, sample.slots)
    return all(0 <= count <= MAX_TOKENS for count in counts) and 0 <= sample.stranded_bytes <= MAX_BYTES


def is_possible_link(sample: LinkSample) -> bool:
    """Whether a link's counters, capacity and waits can be true."""
    counters = (sample.bytes_total, sample.waits_total, *sample.bytes_by_pipeline.values())
    counters = (*counters, *sample.bytes_by_class.values())
    return (
        is_name(sample.link)
        and 0 < sample.capacity_bytes_per_s <= MAX_BYTES
        and all(0 <= count <= 2**62 for count in counters)
        and 0 <= sample.queue_depth <= MAX_TRANSFERS
        and 0 <= sample.longest_wait_s <= MAX_WAITED_S
        and 0 <= sample.waited_s_total <= MAX_WAITED_S
    )
