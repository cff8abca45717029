"""Moves KV between the server's slots and blocks."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from engine_agents.nodes.llama.api import LlamaApi, LlamaError
from engine_agents.nodes.llama.slot_file import (
    Buffer,
    KvLayout,
    SlotFile,
    parse_slot_file,
    slot_file_bytes,
    write_slot_file,
)
from engine_agents.nodes.llama.slot_memory import SlotMemory


class SlotIo:
    """Saves and restores slots; one call per slot at a time, different slots at once."""

    def __init__(self, api: LlamaApi, memory: SlotMemory) -> None:
        self._api = api
        self._memory = memory

    @asynccontextmanager
    async def saved(self, slot: int) -> AsyncIterator[SlotFile]:
        """A slot's contents, as views that are gone when the block ends.

        Raises:
            LlamaError: the server could not save it.
            SlotFileError: what it saved is not understood.
        """
        await self._api.save_slot(slot, self._memory.name(slot))
        try:
            with self._memory.reading(slot) as view:
                file = parse_slot_file(view)
                try:
                    yield file
                finally:
                    file.release()
        finally:
            self._memory.drop(slot)

    async def payloads(self, file: SlotFile, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Block payloads for token ranges of a saved slot, copied beside the event loop."""
        return await asyncio.to_thread(lambda: [file.payload(start, end) for start, end in ranges])

    async def restore(
        self, slot: int, layout: KvLayout, streams: int, tokens: Sequence[int], blocks: Sequence[tuple[int, Buffer]]
    ) -> None:
        """Replace a slot's contents by tokens and their KV, given as blocks (token count, payload) in order.

        Raises:
            LlamaError: the server could not restore it; the slot is then empty or broken.
            PayloadSizeError: the blocks do not fit the tokens.
        """
        size = slot_file_bytes(layout, len(tokens), streams)
        try:
            with self._memory.writing(slot, size) as view:
                await asyncio.to_thread(write_slot_file, view, layout, streams, tokens, blocks)
            restored = await self._api.restore_slot(slot, self._memory.name(slot))
        finally:
            self._memory.drop(slot)
        if restored != len(tokens):
            raise LlamaError(200, f"restored {restored} of {len(tokens)} tokens")
