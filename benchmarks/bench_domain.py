"""What the pure part of a routing decision costs: hashing, index lookup, decision. The last line is JSON."""

import json
import resource
import statistics
import time
from collections.abc import Callable

from control.domain.prefix import PrefixIndex, block_hashes
from control.domain.routing import RouteInputs, RouteKnobs, choose_pipeline

RESIDENT_BLOCKS = 1_000_000
PROMPT_TOKENS = 65_536
CHAT_TOKENS = 1_024


def median_us(action: Callable[[], object], repeats: int) -> float:
    """Median microseconds of one call."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def main() -> None:
    """Fill one node's index with a million blocks, then time what a request does with it."""
    rss_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    index = PrefixIndex(RESIDENT_BLOCKS)
    index.add_resident("md", [number.to_bytes(16, "big") for number in range(RESIDENT_BLOCKS)])
    rss_per_block = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss_before) * 1024 / RESIDENT_BLOCKS
    prompt = list(range(PROMPT_TOKENS))
    long_hashes, short_hashes = block_hashes(prompt), block_hashes(prompt[:CHAT_TOKENS])
    index.add_resident("md", long_hashes)
    inputs = RouteInputs(
        1000,
        0,
        0,
        1000,
        4.0,
        6.0,
        0.2,
        relay_was_at_ceiling=False,
        has_main=True,
        has_relay=True,
        parameter_forces_direct=False,
    )
    knobs = RouteKnobs(
        0.3,
        0.95,
        0.85,
        10.0,
        outlier_enabled=True,
        outlier_min_uncached_tokens=32_768,
        outlier_max_output_tokens=500,
        relay_may_serve_alone=False,
    )
    figures = {
        "hash_1k_us": median_us(lambda: block_hashes(prompt[:CHAT_TOKENS]), 500),
        "hash_64k_us": median_us(lambda: block_hashes(prompt), 50),
        "match_1k_us": median_us(lambda: index.match("md", short_hashes), 500),
        "match_64k_us": median_us(lambda: index.match("md", long_hashes), 200),
        "choose_pipeline_us": median_us(lambda: choose_pipeline(inputs, knobs), 2000),
        "index_bytes_per_block": rss_per_block,
    }
    for name, value in figures.items():
        print(f"{name:24} {value:10.2f}")
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
