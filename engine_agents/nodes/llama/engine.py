"""The engine that continues token ids with llama.cpp, one step at a time, and keeps their KV in a block store."""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from control.domain.prefill import ChunkRule, plan_chunks
from engine_agents.nodes.engine import FinishReason, Generation, PromptRefusedError, Step, TokenLogprob
from engine_agents.nodes.hermes_prompt import hermes_messages, needs_hermes
from engine_agents.nodes.kv_blocks import BlockStore
from engine_agents.nodes.kv_layout import PayloadLayout
from engine_agents.nodes.llama.api import LlamaApi, LlamaError, NextToken
from engine_agents.nodes.llama.fingerprint import file_digest, kv_fingerprint
from engine_agents.nodes.llama.sampling import GREEDY_OPTIONS, completion_options
from engine_agents.nodes.llama.selfcheck import SelfCheck, run_selfcheck
from engine_agents.nodes.llama.server import UBATCH_TOKENS, LlamaServer, ServerSettings, require_model, start_server
from engine_agents.nodes.llama.slot_io import SlotIo
from engine_agents.nodes.llama.slot_memory import SlotMemory
from engine_agents.nodes.llama.slot_session import SlotSession
from engine_agents.nodes.llama.slots import Slot, choose_slot

_logger = logging.getLogger(__name__)

DEFAULT_CHUNK_RULE = ChunkRule(chunk_tokens=64, tail_chunk_min_tokens=32)
_SETTLE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Running:
    """What exists between start and close."""

    server: LlamaServer
    api: LlamaApi
    memory: SlotMemory
    slot_io: SlotIo
    vocabulary: list[bytes]
    template_knows_tools: bool
    check: SelfCheck


class LlamaEngine:
    """Implements `engine_agents.nodes.engine.Engine`.

    Each token is one request, since the server's own streams leave out the ids of tokens that end inside a
    character. Prefill goes in chunks, one long prompt at a time: decode steps of others get in between, and a
    closed generation stops at the next chunk.
    """

    kind = "llama"

    def __init__(
        self,
        settings: ServerSettings,
        *,
        model: str,
        store: BlockStore,
        chunk_rule: ChunkRule = DEFAULT_CHUNK_RULE,
    ) -> None:
        self.model = model
        self.store = store
        self.slots = settings.slots
        self.max_model_len = settings.max_model_len
        self.fingerprint = ""
        self.payload_layout = PayloadLayout(())
        self.exact: bool | None = None
        self._settings = settings
        self._chunk_rule = chunk_rule
        self._running: _Running | None = None
        self._free = [Slot(index) for index in range(settings.slots)]
        self._slot_turn = asyncio.Semaphore(settings.slots)
        self._prefill_turn = asyncio.Lock()
        self._settling: set[asyncio.Task[None]] = set()
        self._special_pieces: dict[int, bytes] = {}

    async def start(self) -> None:
        """Load the model and check that KV survives the way through a block store.

        Raises:
            ModelError: there is no model file, or it cannot be loaded.
            SlotFileError: this llama.cpp saves slots in a format that is not understood.
        """
        require_model(self._settings.model_path)
        digest, server = await asyncio.gather(
            asyncio.to_thread(file_digest, self._settings.model_path),
            asyncio.to_thread(start_server, self._settings),
        )
        api, memory = LlamaApi(server.url, server.api_key, self.slots), SlotMemory(self.slots)
        try:
            slot_io = SlotIo(api, memory)
            vocabulary = await api.vocabulary()
            knows_tools = await api.template_knows_tools()
            check = await run_selfcheck(api, slot_io, slots=self.slots, vocabulary_size=len(vocabulary))
            self.max_model_len = await api.max_model_len()
        except BaseException:
            await _stop(server, api, memory)
            raise
        self._running = _Running(server, api, memory, slot_io, vocabulary, knows_tools, check)
        self.payload_layout = check.layout.payload_layout
        self.exact = check.is_exact
        self.fingerprint = kv_fingerprint(
            model_digest=digest,
            layout=check.layout,
            server_version=server.version,
            system_info=server.system_info,
            ubatch_tokens=UBATCH_TOKENS,
        )
        _log_start(self)

    async def close(self) -> None:
        """Stop the server, after generations that are being closed have kept their KV."""
        running, self._running = self._running, None
        if running is None:
            return
        if self._settling:
            await asyncio.wait(self._settling, timeout=_SETTLE_TIMEOUT_S)
        await _stop(running.server, running.api, running.memory)

    async def generate(self, generation: Generation) -> AsyncGenerator[Step, None]:
        """See `Engine.generate`.

        Raises:
            PromptRefusedError: the prompt is empty, too long, or has ids that are no tokens.
            LlamaError: the server refused.
        """
        running = self._started()
        self._check(running, generation)
        prompt, sampling = generation.prompt, generation.sampling
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        room = min(generation.max_tokens, self.max_model_len - len(prompt))
        session = await self._open_session(running, generation)
        try:
            resident, token = await self._prefill(session, generation, seed)
            await session.keep()
            sequence = [*prompt, token.token_id]
            finish = _finish_of(token, made=1, room=room)
            count = sampling.logprobs
            yield _step(running, token, finish, resident=resident, computed=len(prompt) - resident, logprobs=count)
            while finish is None:
                options = completion_options(sampling, seed, len(sequence), sequence[len(prompt) :])
                token = await session.evaluate(sequence, options)
                sequence.append(token.token_id)
                finish = _finish_of(token, made=len(sequence) - len(prompt), room=room)
                yield _step(running, token, finish, logprobs=count)
        finally:
            await asyncio.shield(self._close_session(session))

    async def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of a text; names of special tokens in it stand for these tokens."""
        return await self._started().api.tokenize(text, add_special=add_special)

    async def render_chat(
        self, messages: Sequence[dict[str, Any]], *, add_generation_prompt: bool, tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        """The prompt text that the model's chat template makes of messages; tools in the Hermes format if it has none.

        Raises:
            PromptRefusedError: the messages do not fit the template.
        """
        running = self._started()
        if needs_hermes(messages, tools) and not running.template_knows_tools:
            messages, tools = hermes_messages(messages, tools), ()
        try:
            return await running.api.apply_template(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        except LlamaError as error:
            if error.status == 503:
                raise
            raise PromptRefusedError("the messages do not fit the model's chat template") from error

    async def detokenize(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that token ids stand for, special tokens by their names.

        Raises:
            PromptRefusedError: an id is no token.
        """
        running = self._started()
        _check_ids(token_ids, len(running.vocabulary))
        for token_id in set(token_ids) - self._special_pieces.keys():
            if not running.vocabulary[token_id]:
                self._special_pieces[token_id] = (await running.api.detokenize(token_id)).encode()
        return b"".join(running.vocabulary[token_id] or self._special_pieces[token_id] for token_id in token_ids)

    def _started(self) -> _Running:
        if self._running is None:
            raise RuntimeError("the engine is not running")
        return self._running

    def _check(self, running: _Running, generation: Generation) -> None:
        if not 0 < len(generation.prompt) < self.max_model_len:
            raise PromptRefusedError(f"a prompt has 1 to {self.max_model_len - 1} tokens, not {len(generation.prompt)}")
        if generation.max_tokens < 1:
            raise PromptRefusedError("max_tokens must be at least 1")
        _check_ids(generation.prompt, len(running.vocabulary))

    async def _open_session(self, running: _Running, generation: Generation) -> SlotSession:
        await self._slot_turn.acquire()
        slot = choose_slot(self._free, generation.prompt, generation.salt, self.store)
        self._free.remove(slot)
        return SlotSession(
            slot,
            generation.salt,
            api=running.api,
            slot_io=running.slot_io,
            store=self.store,
            layout=running.check.layout,
            streams=running.check.streams,
        )

    def _close_session(self, session: SlotSession) -> asyncio.Task[None]:
        """Give the slot back once it is at rest; a task, because whoever closes may be cancelled meanwhile."""

        async def settle() -> None:
            try:
                await session.settle()
            finally:
                self._free.append(session.slot)
                self._slot_turn.release()

        task = asyncio.create_task(settle())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _prefill(self, session: SlotSession, generation: Generation, seed: int) -> tuple[int, NextToken]:
        """How many of the prompt's tokens had KV, and the first token behind the prompt."""
        prompt = generation.prompt
        *chunks, whole = plan_chunks(await session.position(prompt), len(prompt), self._chunk_rule)
        options = completion_options(generation.sampling, seed, len(prompt))
        if not chunks:
            token = await session.evaluate(prompt, options)
            return token.cached_tokens, token
        async with self._prefill_turn:
            first = await session.evaluate(prompt[: chunks[0]], GREEDY_OPTIONS)
            for end in chunks[1:]:
                generation.on_progress()
                await session.evaluate(prompt[:end], GREEDY_OPTIONS)
            generation.on_progress()
            return first.cached_tokens, await session.evaluate(prompt[:whole], options)


def _finish_of(token: NextToken, *, made: int, room: int) -> FinishReason | None:
    if token.is_end:
        return FinishReason.STOP
    return FinishReason.LENGTH if made >= room else None


def _step(
    running: _Running,
    token: NextToken,
    finish: FinishReason | None,
    *,
    resident: int | None = None,
    computed: int | None = None,
    logprobs: int | None = None,
) -> Step:
    piece = running.vocabulary[token.token_id]
    likely = () if logprobs is None else (TokenLogprob(token.logprob, token.top[:logprobs]),)
    return Step(
        (token.token_id,), (piece,), finish, resident_tokens=resident, computed_tokens=computed, logprobs=likely
    )


def _check_ids(token_ids: Sequence[int], vocabulary_size: int) -> None:
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocabulary_size):
        raise PromptRefusedError(f"token ids go from 0 to {vocabulary_size - 1}")


async def _stop(server: LlamaServer, api: LlamaApi, memory: SlotMemory) -> None:
    await api.close()
    await asyncio.to_thread(server.stop)
    memory.close()


def _log_start(engine: LlamaEngine) -> None:
    _logger.info(
        "%s is ready: %d slots of %d tokens, %d bytes of KV per token, fingerprint %s",
        engine.model,
        engine.slots,
        engine.max_model_len,
        engine.payload_layout.token_bytes,
        engine.fingerprint,
    )
    if not engine.exact:
        _logger.error(
            "KV restored from blocks does NOT continue exactly on this machine with this model: "
            "a handoff can change the answer"
        )
