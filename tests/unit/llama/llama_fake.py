"""A llama.cpp server of two tiny planes: its KV chains over the tokens, so wrong KV changes all that follows."""

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine_agents.nodes.llama.api import LlamaError, NextToken
from engine_agents.nodes.llama.slot_file import KvLayout, Plane, parse_slot_file, slot_file_bytes, write_slot_file
from engine_agents.nodes.llama.slot_memory import SLOT_DIRECTORY
from engine_agents.nodes.llama.slots import shared_prefix

LAYOUT = KvLayout((Plane(1, 4), Plane(1, 8)))
STREAMS = 2


def rows_of(tokens: Sequence[int], rows: Sequence[bytes] = ()) -> list[bytes]:
    """The 12 bytes of KV of each token, given those of the first ones."""
    made = list(rows)
    for token in tokens[len(made) :]:
        seed = zlib.crc32(token.to_bytes(4, "little"), zlib.crc32(made[-1]) if made else 0)
        made.append(seed.to_bytes(4, "little") * 3)
    return made


class FakeLlama:
    """Speaks as `LlamaApi` does. `calls` lists what was asked of it; a closed `gate` holds every evaluation."""

    def __init__(self, slots: int = 2) -> None:
        self.slots: list[tuple[list[int], list[bytes]]] = [([], []) for _ in range(slots)]
        self.calls: list[str] = []
        self.failing: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.started = asyncio.Event()

    async def next_token(self, slot: int, tokens: Sequence[int], options: Mapping[str, Any]) -> NextToken:
        self._note("evaluate")
        self.started.set()
        await self.gate.wait()
        held, rows = self.slots[slot]
        cached = min(shared_prefix(held, tokens), len(tokens) - 1)
        rows = rows_of(tokens, rows[:cached])
        self.slots[slot] = list(tokens), rows
        token_id = zlib.crc32(rows[-1]) % 1000
        return NextToken(token_id, is_end=False, cached_tokens=cached, computed_tokens=len(tokens) - cached)

    async def save_slot(self, slot: int, name: str) -> None:
        self._note("save")
        tokens, rows = self.slots[slot]
        data = bytearray(slot_file_bytes(LAYOUT, len(tokens), STREAMS))
        payload = b"".join(row[:4] for row in rows) + b"".join(row[4:] for row in rows)
        write_slot_file(memoryview(data), LAYOUT, STREAMS, tokens, [(len(tokens), payload)])
        _file(name).write_bytes(data)

    async def restore_slot(self, slot: int, name: str) -> int:
        self._note("restore")
        file = parse_slot_file(_file(name).read_bytes())
        count = len(file.tokens)
        payloads = [file.payload(index, index + 1) for index in range(count)]
        self.slots[slot] = list(file.tokens), payloads
        return count

    async def erase_slot(self, slot: int) -> None:
        self._note("erase")
        self.slots[slot] = [], []

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failing:
            raise LlamaError(500, f"{call} fails as told")


def open_files() -> int:
    """How many files this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _file(name: str) -> Path:
    return Path(SLOT_DIRECTORY, name)
