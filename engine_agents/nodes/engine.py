"""What the dialect server asks of an engine; the emulated and the llama engine are its two implementations."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from engine_agents.nodes.kv_blocks import BlockStore
from engine_agents.nodes.kv_layout import PayloadLayout


class FinishReason(StrEnum):
    """Why a generation ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy.

    Presence and frequency penalties count the tokens made, the repetition penalty those of the prompt as well.
    `logprobs` is how many alternatives are wanted beside each token's own log-probability; None: nothing of it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was before sampling, and the likeliest ones with their bytes; None where it is not known."""

    logprob: float | None
    top: tuple[tuple[bytes, float], ...] = ()


class PromptRefusedError(ValueError):
    """The engine cannot continue this prompt, for example because an id is outside its vocabulary."""


def no_progress_wanted() -> None:
    """Stands where nobody watches a prefill advance."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation on one node.

    Before it starts, the dialect server has seen to it that every block the node could get is in the block
    store. `salt` goes into every block hash. An engine calls `on_progress` whenever a long prefill has advanced,
    so that health can tell slow from stuck; steps count by themselves.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    salt: bytes = b""
    on_progress: Callable[[], None] = no_progress_wanted


@dataclass(frozen=True, slots=True)
class Step:
    """What one engine step made: token ids, the raw bytes each stands for, and the end if this is it.

    `resident_tokens` (first step only, else None) is the prompt prefix whose KV came from the block store;
    `computed_tokens` the rest, which the engine computed before the first token. `logprobs`, one per token, only where
    they are wanted.
    """

    token_ids: tuple[int, ...]
    token_bytes: tuple[bytes, ...]
    finish: FinishReason | None = None
    resident_tokens: int | None = None
    computed_tokens: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class Engine(Protocol):
    """A model that continues token ids, with its KV in a block store.

    `fingerprint` is equal exactly where KV can be exchanged (model, KV layout, engine build), and `payload_layout` says
    where in a block's payload each token's KV is; both are known once the engine has started. `exact` says what the
    engine found when it checked that restored KV continues as computed KV does; None: not checked.
    """

    kind: str
    model: str
    fingerprint: str
    payload_layout: PayloadLayout
    exact: bool | None
    max_model_len: int
    slots: int
    store: BlockStore

    async def start(self) -> None:
        """Be ready to generate, or raise."""

    async def close(self) -> None:
        """Free everything; safe to call twice."""

    def generate(self, generation: Generation) -> AsyncGenerator[Step, None]:
        """Yield steps until a finish; prompt KV is in the store when the first step is yielded.

        When the generator ends or is closed early, the KV of everything evaluated so far is in the store and
        the slot is free.

        Raises:
            PromptRefusedError: before the first step.
        """

    async def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of a text."""

    async def render_chat(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        """The prompt text that the model's chat template makes of messages and of the tools they may call."""

    async def detokenize(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that token ids stand for."""
