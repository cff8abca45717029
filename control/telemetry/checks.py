"""What is let into the windows: batches from outside are decoded field by field, impossible records are left out."""

import math

from control.telemetry.records import LinkSample, NodeSample, RequestRecord

MAX_CLOCK_SKEW_S = 60.0
MAX_DURATION_S = 86_400.0
MAX_TOKENS = 10**9
MAX_BYTES = 10**15
MAX_NAME_CHARS = 200
MAX_TRANSFERS = 10**6
MAX_WAITED_S = 1e12


def is_possible_time(at_s: float, now_s: float) -> bool:
    """Whether a Unix time is a number and not further ahead than clocks differ."""
    return math.isfinite(at_s) and 0 < at_s <= now_s + MAX_CLOCK_SKEW_S


def is_name(text: str) -> bool:
    """Whether a text can be a name and a key in any database."""
    return 0 < len(text) <= MAX_NAME_CHARS and text.isprintable()


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
