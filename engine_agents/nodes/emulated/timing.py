"""How long the emulated chip takes; formulas only, the engine sleeps."""


def prefill_s(tokens: int, tokens_per_s: float) -> float:
    """Seconds to prefill so many tokens; rate 0 means at once."""
    return tokens / tokens_per_s if tokens_per_s > 0 else 0.0


def decode_step_s(running: int, base_s: float, per_request_s: float) -> float:
    """Seconds of one decode step with `running` requests in the batch: τ(B) = τ0 + τ1·B."""
    return base_s + per_request_s * running
