"""How long things take: the formulas that routing, the twin and the emulated nodes share."""

from control.domain.compiled import compiled


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
