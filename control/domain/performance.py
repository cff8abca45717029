"""How long things take: the formulas that routing, the twin and the emulated nodes share."""

import math
from typing import NamedTuple

from control.domain.compiled import compiled
from control.domain.prefill import next_chunk_end

INITIAL_WINDOW_BYTES = 14_600.0
"""What a new TCP connection sends before the first acknowledgement: ten segments of 1,460 bytes (RFC 6928)."""


@compiled
def decode_step_s(batch: int, tau0_s: float, tau1_s: float) -> float:
    """Seconds of one decode step of `batch` sequences: τ(B) = τ0 + τ1·B."""
    return tau0_s + tau1_s * batch


@compiled
def prefill_s(uncached_tokens: int, cached_tokens: int, tokens_per_s: float, attention_tokens: float) -> float:
    """Seconds to prefill `uncached_tokens` on top of `cached_tokens` of context: q/µ·(1 + (s + q/2)/L_q).

    `attention_tokens` (L_q) is the context at which attention costs as much as the rest.
    """
    context = cached_tokens + uncached_tokens / 2
    return uncached_tokens / tokens_per_s * (1.0 + context / attention_tokens)


@compiled
def flow_rate_bytes_per_s(
    capacity_bytes_per_s: float, flow_cap_bytes_per_s: float, other_flows: int, streams: int = 1
) -> float:
    """Rate that one more transfer of `streams` flows gets: min(f, C/n) per flow. A flow cap of 0 means none."""
    share = capacity_bytes_per_s / (other_flows + streams)
    per_flow = min(share, flow_cap_bytes_per_s) if flow_cap_bytes_per_s > 0.0 else share
    return per_flow * streams


@compiled
def predict_transfer_s(send_bytes: float, ahead_bytes: float, rate_bytes_per_s: float, rtt_s: float) -> float:
    """Seconds until `send_bytes` are across, behind `ahead_bytes` of ours that are on their way already.

    Two round trips open the flow: connect, and the request for the blocks. Nothing to send and nothing to wait
    for costs nothing.
    """
    total = send_bytes + ahead_bytes
    if total <= 0.0:
        return 0.0
    return 2.0 * rtt_s + total / rate_bytes_per_s


@compiled
def handoff_stall_s(tokens: int, rtt_s: float, x0_s: float, x1_s: float) -> float:
    """Seconds a user waits at a handoff of `tokens` ids: S(e) = ρ + x0 + x1·e."""
    return rtt_s + x0_s + x1_s * tokens


@compiled
def expected_left_bytes(size_bytes: float, rate_bytes_per_s: float, elapsed_s: float) -> float:
    """What is left of a transfer by now, if it has had the rate that it could expect when it began."""
    return max(0.0, size_bytes - rate_bytes_per_s * elapsed_s)


@compiled
def slow_start_s(send_bytes: float, rtt_s: float) -> float:
    """Seconds that a cold TCP connection loses while its window doubles each round trip: ρ·log2(X/14.6 KB + 1)."""
    return rtt_s * math.log2(send_bytes / INITIAL_WINDOW_BYTES + 1.0)


@compiled
def relay_outruns_transfer(bound_tokens: float, relay_step_s: float, transfer_s: float) -> bool:
    """Whether RLD will have answered before the KV is across: O·τ_R < T_x, what makes a request an outlier."""
    return bound_tokens * relay_step_s < transfer_s


@compiled
def eager_tokens(transfer_s: float, relay_step_s: float, output_tokens: int) -> int:
    """Tokens that RLD makes while the KV crosses: min(O, ⌊T_x/τ_R⌋)."""
    return min(output_tokens, int(transfer_s / relay_step_s))


class PrefillSpeed(NamedTuple):
    """How a node prefills: chunks in tokens, their rate, the context at which attention doubles it, their floor."""

    chunk_tokens: int
    tail_chunk_min_tokens: int
    tokens_per_s: float
    attention_tokens: float
    floor_s: float


@compiled
def chunked_prefill_cost_s(cached_tokens: int, prompt_tokens: int, speed: PrefillSpeed) -> float:
    """Seconds to prefill a prompt behind its cached part in chunks: T = Σ max(t_floor, q/µ·(1 + (s + q/2)/L_q)).

    At least the last token is computed: its output is the first new one.
    """
    done = min(cached_tokens, prompt_tokens - 1)
    total = 0.0
    while done < prompt_tokens:
        end = next_chunk_end(done, prompt_tokens, speed.chunk_tokens, speed.tail_chunk_min_tokens)
        total += max(speed.floor_s, prefill_s(end - done, done, speed.tokens_per_s, speed.attention_tokens))
        done = end
    return total
