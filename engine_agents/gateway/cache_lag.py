"""Cache lag: tokens whose KV a prefill node has and a main node has not, as long as a transfer brings them there."""


class CacheLag:
    """One entry per transfer under way whose prompt has been prefilled."""

    def __init__(self) -> None:
        self._tokens: dict[str, tuple[str, int]] = {}

    def begin(self, transfer_id: str, node: str, tokens: int) -> None:
        """P has the KV of these tokens, which `node` lacks."""
        self._tokens[transfer_id] = node, tokens

    def end(self, transfer_id: str) -> None:
        """The transfer is over; unknown ids are ignored."""
        self._tokens.pop(transfer_id, None)

    def of_node(self, node: str) -> int:
        """Tokens that a main node lags behind."""
        return sum(tokens for name, tokens in self._tokens.values() if name == node)
