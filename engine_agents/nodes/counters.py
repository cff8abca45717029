"""What a node has done since it started; plain numbers that metrics and NodeInfo both read."""

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class NodeCounters:
    """Totals; they only ever grow. `prefill_tokens` are prompt tokens computed here, none from cache or wire.

    `joined_tokens` and `joined_bytes` were resident beginnings of pulled blocks, and so were not sent; after a failed
    join the whole block was sent.
    """

    requests: int = 0
    completed: int = 0
    client_closed: int = 0
    rejected: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    prefill_tokens: int = 0
    resident_tokens: int = 0
    pulled_tokens: int = 0
    decode_tokens: int = 0
    pulled_bytes: int = 0
    served_bytes: int = 0
    pulls: int = 0
    failed_pulls: int = 0
    resumed_pulls: int = 0
    joined_tokens: int = 0
    joined_bytes: int = 0
    failed_joins: int = 0

    def to_document(self) -> dict[str, int]:
        """Plain JSON data."""
        return asdict(self)
