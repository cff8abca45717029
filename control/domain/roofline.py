"""How fast a chip prefills and decodes a model: the slower of computing and of reading memory (roofline).

The roofline is Williams, Waterman and Patterson's (CACM 2009). FLOPs of a forward pass are 2 per active parameter and
token (Kaplan et al. 2020) plus 4·L·d per pair of tokens that attend to each other. A step reads all weights once and
the KV of every sequence (Pope et al. 2022).
"""

from dataclasses import dataclass

from control.domain.inventory import ChipProfile


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What share of its figures a chip reaches, and the seconds that each step costs beside them."""

    compute: float = 0.5
    memory: float = 0.7
    overhead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """What one pass over a model costs. `attention_width` is L·d: FLOPs per pair of tokens are four times that."""

    active_parameters: float
    weight_bytes: float
    kv_bytes_per_token: float
    attention_width: float = 0.0


def prefill_chunk_s(
    tokens: int, context_tokens: int, model: ModelFigures, chip: ChipProfile, efficiency: Efficiency
) -> float:
    """Seconds to prefill a chunk of `tokens` on top of `context_tokens`.

    Below the ridge it costs the same however short it is, the time to read the weights: the floor of a tail chunk.
    """
    pairs = tokens * (context_tokens + tokens / 2.0)
    flops = 2.0 * model.active_parameters * tokens + 4.0 * model.attention_width * pairs
    compute_s = flops / (chip.peak_flops * efficiency.compute)
    memory_s = (model.weight_bytes + model.kv_bytes_per_token * context_tokens) / _memory_bytes_per_s(chip, efficiency)
    return max(compute_s, memory_s) + efficiency.overhead_s


def decode_step_s(
    batch: int, context_tokens: float, model: ModelFigures, chip: ChipProfile, efficiency: Efficiency
) -> float:
    """Seconds of one step of `batch` sequences with `context_tokens` each."""
    flops = batch * (2.0 * model.active_parameters + 4.0 * model.attention_width * context_tokens)
    read_bytes = model.weight_bytes + batch * model.kv_bytes_per_token * context_tokens
    compute_s = flops / (chip.peak_flops * efficiency.compute)
    return max(compute_s, read_bytes / _memory_bytes_per_s(chip, efficiency)) + efficiency.overhead_s


def decode_coefficients_s(
    context_tokens: float, model: ModelFigures, chip: ChipProfile, efficiency: Efficiency
) -> tuple[float, float]:
    """τ0 and τ1 of τ(B) ≈ τ0 + τ1·B where memory is what binds: reading the weights, and one sequence's KV."""
    rate = _memory_bytes_per_s(chip, efficiency)
    return model.weight_bytes / rate + efficiency.overhead_s, model.kv_bytes_per_token * context_tokens / rate


def kv_capacity_tokens(model: ModelFigures, chip: ChipProfile, usable: float = 0.9) -> int:
    """Tokens whose KV fits beside the weights in the usable share of a chip's memory; 0 where the weights do not."""
    return max(0, int((chip.memory_bytes * usable - model.weight_bytes) / model.kv_bytes_per_token))


def _memory_bytes_per_s(chip: ChipProfile, efficiency: Efficiency) -> float:
    return chip.memory_bytes_per_s * efficiency.memory
