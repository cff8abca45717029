"""What engines say, as far as the gateway reads it."""

from dataclasses import dataclass
from typing import Any

import msgspec

from control.domain.topology import Node
from engine_agents.gateway.logprobs import EngineLogprobs
from engine_agents.gateway.node_errors import NodeRefusedError

_GIVEN_UP = frozenset({"abort", "error"})


class WorkDone(msgspec.Struct, frozen=True):
    """What our nodes say they did for a request; stock engines do not say.

    `resident_tokens` of the prompt were there before, `waited_bytes_tokens` came with another pull, `queued_s` is the
    wait for a slot.
    """

    computed_tokens: int | None = None
    resident_tokens: int | None = None
    pulled_tokens: int | None = None
    pulled_bytes: int | None = None
    pull_s: float | None = None
    waited_bytes_tokens: int | None = None
    queued_s: float | None = None


class _TokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    prompt_tokens_details: _TokensDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None

    def own_work(self) -> WorkDone | None:
        """What the engine computed of a prompt that it was handed no KV for.

        Where it was, `cached_tokens` is no truth of its own: a stock engine repeats the prefill node's figure.
        """
        cached = self.cached_tokens
        return None if cached is None else WorkDone(max(0, self.prompt_tokens - cached), cached)


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: EngineLogprobs | None = None


class Chunk(msgspec.Struct, frozen=True):
    """One event of a stream, or a whole reply. `is_whole`: its ids end where its text ends."""

    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    pdd: WorkDone | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: dict[str, Any] | str | None = None
    is_whole: bool = True

    def work(self, *, had_kv_params: bool) -> WorkDone | None:
        """What the engine says it did, in our nodes' words or in its usage; None where it does not say."""
        if self.pdd is not None or had_kv_params or self.usage is None:
            return self.pdd
        return self.usage.own_work()


@dataclass(frozen=True, slots=True)
class Lease:
    """KV of one prompt, held on a prefill node for one consumer. `params` is what the consumer needs to pull it.

    `queued_s` is how long the prompt waited there for a slot, where the node says so.
    """

    node: Node
    lease_id: str
    params: dict[str, Any]
    cached_tokens: int | None
    queued_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a generation of one token brought: the token, if the engine names it, and the work done."""

    token_id: int | None
    work: WorkDone


class Tokenized(msgspec.Struct, frozen=True):
    """A tokenized prompt; `max_model_len` counts prompt and output tokens."""

    tokens: msgspec.Raw
    max_model_len: int


class Detokenized(msgspec.Struct, frozen=True):
    """The text of token ids."""

    prompt: str


class _ModelCard(msgspec.Struct, frozen=True):
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True):
    """What an engine serves."""

    data: tuple[_ModelCard, ...]


class _Store(msgspec.Struct, frozen=True):
    capacity_tokens: int = 0
    stranded_bytes: int = 0
    stranded_age_s: float = 0.0


class NodeInfo(msgspec.Struct, frozen=True):
    """What one of our nodes says of itself; `engine_id` is another one after each start.

    KV fits into nodes of the same `fingerprint` only.
    """

    engine_id: str = ""
    fingerprint: str = ""
    store: _Store = _Store()


class NodeLease(msgspec.Struct, frozen=True):
    """A lease as its node lists it; `attached` while its consumer reads it."""

    id: str
    tokens: int = 0
    size_bytes: int = msgspec.field(default=0, name="bytes")
    age_s: float = 0.0
    attached: bool = False


class LeaseList(msgspec.Struct, frozen=True):
    """The leases that a node holds."""

    leases: tuple[NodeLease, ...]


def checked(node: Node, chunk: Chunk) -> Chunk:
    """The chunk.

    Raises:
        NodeRefusedError: the engine gave the generation up, so its tokens are no answer.
    """
    if chunk.choices and chunk.choices[0].finish_reason in _GIVEN_UP:
        raise NodeRefusedError(node.name, "gave the generation up")
    return chunk
