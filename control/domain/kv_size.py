"""How many bytes of KV a model keeps, from the shape of its attention."""

from dataclasses import dataclass

from control.domain.inventory import AttentionKind


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What of a model decides on the size of its KV; what a kind does not need stays 0.

    `heads` keep KV (with GQA: the KV heads), `head_width` is d_h, `latent_width` and `rope_width` are MLA's d_c and
    d_r, `width` and `ratio` a compressed layer's d and r; its last `window_tokens` are kept uncompressed as well.
    """

    kind: AttentionKind
    layers: int
    value_bytes: float = 2.0
    heads: int = 0
    head_width: int = 0
    latent_width: int = 0
    rope_width: int = 0
    width: int = 0
    ratio: float = 1.0
    window_tokens: int = 0


def kv_bytes_per_token(shape: AttentionShape) -> float:
    """Bytes that each further token adds, κ.

    MHA (Vaswani et al. 2017) and GQA (Ainslie et al. 2023): 2·L·n·d_h·b, keys and values of each head that keeps
    them. MLA (DeepSeek-V2, 2024): L·(d_c + d_r)·b, one latent and one rotary key. Compressed: L·(d/r)·b.

    Raises:
        ValueError: no formula is known for the kind.
    """
    per_layer = {
        AttentionKind.MHA: 2.0 * shape.heads * shape.head_width,
        AttentionKind.GQA: 2.0 * shape.heads * shape.head_width,
        AttentionKind.MLA: float(shape.latent_width + shape.rope_width),
        AttentionKind.COMPRESSED: shape.width / shape.ratio,
    }.get(shape.kind)
    if per_layer is None:
        raise ValueError(f"the KV of {shape.kind.value} attention follows from no formula: give its bytes per token")
    return shape.layers * per_layer * shape.value_bytes


def kv_bytes(tokens: int, shape: AttentionShape) -> float:
    """Bytes of a prompt of `tokens`: κ for each, and with compression the uncompressed window on top."""
    window = min(tokens, shape.window_tokens) * shape.layers * shape.width * shape.value_bytes
    return tokens * kv_bytes_per_token(shape) + window
