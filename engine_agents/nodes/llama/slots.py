"""Which slot a generation takes, from what the free slots hold; pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from control.domain.prefix import BLOCK_TOKENS
from engine_agents.nodes.kv_blocks import BlockStore
from engine_agents.nodes.kv_prefix import cut_blocks


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence of the server: the tokens whose KV it holds, and under which salt they were computed.

    `is_known` is False after a failed call: nobody can tell what is in it, so it has to be erased.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    salt: bytes = b""
    is_known: bool = True


def shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences have in common from their start on."""
    for position, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return position
    return min(len(left), len(right))


def reusable_tokens(slot: Slot, prompt: Sequence[int], salt: bytes, store: BlockStore) -> int:
    """How much of a prompt a slot may contribute: nothing of another salt's, nor of what the node was told to drop.

    The store evicts a chain from its end, so a slot whose first block is gone holds what was dropped on purpose.
    """
    if not slot.is_known or slot.salt != salt or not slot.tokens:
        return 0
    if cut_blocks(slot.tokens[:BLOCK_TOKENS], salt)[0].hash not in store:
        return 0
    return shared_prefix(slot.tokens, prompt)


def choose_slot(free: Iterable[Slot], prompt: Sequence[int], salt: bytes, store: BlockStore) -> Slot:
    """The free slot that shares the most with the prompt; of equals the first one.

    Raises:
        ValueError: no slot is free.
    """
    return max(free, key=lambda slot: reusable_tokens(slot, prompt, salt, store))
