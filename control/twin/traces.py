"""Recorded request traces as sessions of the twin. The files themselves are no part of the project.

Agent traces: one JSON object per session and line, `bs` tokens per block, `tool` + `sys` tokens of shared prefix, and
`reqs` with `i` input tokens, `o` output tokens, `think` seconds and `h`, run-length-coded block hashes of the session
(as kv-cache-tester publishes them). Chat traces: Mooncake's, one JSON object per request.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from control.twin.scenario import Workload
from control.twin.state import TURN

CHAT_BLOCK_TOKENS = 512


class _AgentRequest(msgspec.Struct):
    i: int
    o: int
    h: list[tuple[int, int]]
    think: float | None = None


class _AgentSession(msgspec.Struct):
    bs: int
    tool: int
    sys: int
    reqs: list[_AgentRequest]


class _ChatRequest(msgspec.Struct):
    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


def load_agent_sessions(path: Path, max_input_tokens: int, max_think_s: float) -> list[npt.NDArray[Any]]:
    """Each session's turns, without those whose prompts are too long; pauses are cut at `max_think_s`.

    Raises:
        OSError: the file cannot be read.
        msgspec.DecodeError: it is no such trace.
    """
    decoder = msgspec.json.Decoder(_AgentSession)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as lines:
        sessions = [_turns(decoder.decode(line), max_input_tokens, max_think_s) for line in lines]
    return [turns for turns in sessions if turns.size]


def _turns(session: _AgentSession, max_input_tokens: int, max_think_s: float) -> npt.NDArray[Any]:
    # The shared beginning is in every cache when a session begins; from then on the session's own blocks are.
    most = max((start + length for request in session.reqs for start, length in request.h), default=0)
    seen = np.zeros(most + 1, np.bool_)
    shared, is_first = session.tool + session.sys, True
    rows: list[tuple[int, int, int, int, int, float]] = []
    for request in session.reqs:
        known = max(_seen_blocks(seen, request.h) * session.bs, shared if is_first else 0)
        is_first = False
        if request.i <= max_input_tokens:
            reuse = min(known, request.i)
            think_s = min(request.think or 0.0, max_think_s)
            output_tokens = max(1, request.o)
            rows.append((request.i, reuse, min(shared, reuse), output_tokens, output_tokens, think_s))
    return np.array(rows, TURN)


def _seen_blocks(seen: npt.NDArray[np.bool_], runs: Sequence[tuple[int, int]]) -> int:
    """How many blocks at the start of a prompt have been seen; from now on all of them have."""
    found, unbroken = 0, True
    for start, length in runs:
        run = seen[start : start + length]
        if unbroken:
            known = int(run.argmin()) if not run.all() else length
            found += known
            unbroken = known == length
        run[:] = True
    return found


def load_chat(path: Path) -> Workload:
    """Chat requests at their own times, each a session of one turn; a prefix seen before counts as cached everywhere.

    Raises:
        OSError: the file cannot be read.
        msgspec.DecodeError: it is no such trace.
    """
    decoder = msgspec.json.Decoder(_ChatRequest)
    with path.open("rb") as lines:
        requests = sorted((decoder.decode(line) for line in lines), key=lambda request: request.timestamp)
    seen: set[int] = set()
    turns = np.zeros(len(requests), TURN)
    for row, request in zip(turns, requests, strict=True):
        blocks = request.hash_ids
        found = next((place for place, block in enumerate(blocks) if block not in seen), len(blocks))
        seen.update(blocks)
        row["input_tokens"], row["output_tokens"] = request.input_length, request.output_length
        row["reuse_tokens"] = row["shared_tokens"] = min(found * CHAT_BLOCK_TOKENS, request.input_length)
        row["bound_tokens"] = request.output_length
    starts_s = np.array([request.timestamp / 1000.0 for request in requests])
    return Workload(starts_s, np.arange(len(requests) + 1), turns)


def hit_rates(turns: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Share of each prompt that an endless cache would hold."""
    rates: npt.NDArray[np.float64] = turns["reuse_tokens"] / np.maximum(1, turns["input_tokens"])
    return rates
