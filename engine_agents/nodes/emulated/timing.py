"""How long the emulated chip takes; formulas only, the engine sleeps."""


def prefill_s(tokens: int, tokens_per_s: float, floor_s: float = 0.0) -> float:
    """Seconds to prefill one chunk, never below the floor; rate 0 means at once."""
    return max(floor_s, tokens / tokens_per_s) if tokens_per_s > 0 else floor_s


def decode_step_s(running: int, base_s: float, per_request_s: float) -> float:
    """Seconds of one decode step with `running` requests in the batch: τ(B) = τ0 + τ1·B."""
    return base_s + per_request_s * running
