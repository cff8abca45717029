"""One generation's hold on a slot: brings KV in from the block store, evaluates tokens, puts their KV in the store."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp

from engine_agents.nodes.kv_blocks import Block, BlockStore
from engine_agents.nodes.kv_prefix import cut_blocks, longest_resident
from engine_agents.nodes.llama.api import LlamaApi, LlamaError, NextToken
from engine_agents.nodes.llama.slot_file import KvLayout, SlotFileError
from engine_agents.nodes.llama.slot_io import SlotIo
from engine_agents.nodes.llama.slots import Slot, reusable_tokens

_logger = logging.getLogger(__name__)
_Result = TypeVar("_Result")

_FAILURES = (LlamaError, SlotFileError, aiohttp.ClientError, OSError)


class SlotSession:
    """Who is cancelled while a call is under way stops waiting; the call goes on, and `settle` waits for it.

    So a slot's contents are known whenever nothing is pending, and a cancelled generation leaves them usable.
    """

    def __init__(
        self,
        slot: Slot,
        salt: bytes,
        *,
        api: LlamaApi,
        slot_io: SlotIo,
        store: BlockStore,
        layout: KvLayout,
        streams: int,
    ) -> None:
        self.slot = slot
        self._salt = salt
        self._api = api
        self._slot_io = slot_io
        self._store = store
        self._layout = layout
        self._streams = streams
        self._pending: asyncio.Task[Any] | None = None

    async def position(self, prompt: Sequence[int]) -> int:
        """Have as much of the prompt's KV in the slot as slot and store can give; gives back how many tokens."""
        return await self._shielded(self._position(prompt))

    async def evaluate(self, tokens: Sequence[int], options: Mapping[str, Any]) -> NextToken:
        """Compute the KV of what the slot lacks of `tokens`, and choose the token behind them.

        Raises:
            LlamaError: the server refused; nothing is known of the slot then.
        """
        return await self._shielded(self._evaluate(list(tokens), options))

    async def keep(self) -> None:
        """Have the KV of all that the slot has evaluated in the block store, the partial tail included.

        Raises:
            LlamaError: the server could not save the slot.
            SlotFileError: what it saved is not understood.
        """
        await self._shielded(self._keep())

    async def settle(self) -> None:
        """Wait for the call under way, then keep what can be kept. Reports failures to the log only."""
        if self._pending is not None:
            await asyncio.wait([self._pending])
        try:
            await self._keep()
        except _FAILURES:
            self.slot.is_known = False
            _logger.exception("the KV of slot %d could not be kept", self.slot.index)

    async def _shielded(self, call: Coroutine[Any, Any, _Result]) -> _Result:
        task = asyncio.create_task(call)
        self._pending = task
        return await asyncio.shield(task)

    async def _position(self, prompt: Sequence[int]) -> int:
        slot = self.slot
        reusable = reusable_tokens(slot, prompt, self._salt, self._store)
        resident = longest_resident(self._store, prompt, self._salt)
        if resident.token_count > reusable:
            if await self._restore(prompt[: resident.token_count], resident.blocks):
                return resident.token_count
            reusable = 0
        if not reusable and (slot.tokens or not slot.is_known):
            slot.is_known = False
            await self._api.erase_slot(slot.index)
            slot.is_known = True
        slot.tokens, slot.salt = list(prompt[:reusable]), self._salt
        return reusable

    async def _restore(self, tokens: Sequence[int], blocks: Sequence[Block]) -> bool:
        slot = self.slot
        slot.tokens, slot.is_known = [], False
        parts = [(block.token_count, block.payload) for block in blocks]
        try:
            await self._slot_io.restore(slot.index, self._layout, self._streams, tokens, parts)
        except _FAILURES:
            _logger.exception("%d tokens could not be restored into slot %d", len(tokens), slot.index)
            return False
        slot.tokens, slot.salt, slot.is_known = list(tokens), self._salt, True
        return True

    async def _evaluate(self, tokens: list[int], options: Mapping[str, Any]) -> NextToken:
        self.slot.is_known = False
        step = await self._api.next_token(self.slot.index, tokens, options)
        self.slot.tokens, self.slot.is_known = tokens, True
        return step

    async def _keep(self) -> None:
        slot = self.slot
        if not slot.is_known:
            return
        cuts = cut_blocks(slot.tokens, self._salt)
        kept = {cut.hash: block for cut in cuts if (block := self._store.get(cut.hash)) is not None}
        missing = [cut for cut in cuts if cut.hash not in kept]
        if missing:
            async with self._slot_io.saved(slot.index) as file:
                if list(file.tokens) != slot.tokens:
                    raise LlamaError(200, f"slot {slot.index} holds other tokens than were sent to it")
                payloads = await self._slot_io.payloads(file, [(cut.start, cut.end) for cut in missing])
            for cut, payload in zip(missing, payloads, strict=True):
                kept[cut.hash] = Block(cut.hash, cut.token_count, payload)
        self._store.put_chain([kept[cut.hash] for cut in cuts])
