"""One node: an engine with its leases, its KV port, its puller and its slots, and the course of one request."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from control.domain.prefix import BLOCK_TOKENS
from engine_agents.nodes.admission import Admission
from engine_agents.nodes.counters import NodeCounters
from engine_agents.nodes.duty import Duty
from engine_agents.nodes.engine import Engine, Generation, Sampling, Step
from engine_agents.nodes.errors import LeaseRoomError, PrefixGoneError
from engine_agents.nodes.kv_blocks import Block
from engine_agents.nodes.kv_connection import PullSource
from engine_agents.nodes.kv_errors import BlockGoneError
from engine_agents.nodes.kv_prefix import Cut, cut_blocks, longest_resident, resident_beginning
from engine_agents.nodes.kv_puller import KvPuller, PullReport
from engine_agents.nodes.kv_server import KvServer
from engine_agents.nodes.leases import DEFAULT_LEASE_TTL_S, Lease, LeaseTable
from engine_agents.nodes.progress import DEFAULT_STALL_AFTER_S, Progress
from engine_agents.nodes.replies import KvFigures

LEASE_SWEEP_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """How much a node takes on and how long it waits."""

    queue_limit: int = 256
    lease_ttl_s: float = DEFAULT_LEASE_TTL_S
    stall_after_s: float = DEFAULT_STALL_AFTER_S
    pull_stall_s: float = 60.0


@dataclass(slots=True)
class Work:
    """One generation as the dialect asks for it, and what is learned while it runs."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    salt: bytes = b""
    source: PullSource | None = None
    wants_lease: bool = False
    lease_id: str = ""
    max_computed_tokens: int | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    lease: Lease | None = None
    pull: PullReport = field(default_factory=PullReport)
    cached_tokens: int = 0
    computed_tokens: int = 0
    queued_s: float = 0.0

    def figures(self) -> KvFigures:
        """Where the prompt's KV came from."""
        brought = self.pull.pulled_tokens + self.pull.waited_tokens
        return KvFigures(
            computed_tokens=self.computed_tokens,
            resident_tokens=max(0, self.cached_tokens - brought),
            pulled_tokens=self.pull.pulled_tokens,
            pulled_bytes=self.pull.pulled_bytes,
            pull_s=round(self.pull.duration_s, 6),
            waited_bytes_tokens=self.pull.waited_tokens,
            queued_s=round(self.queued_s, 6),
        )


class Node:
    """All of one node except its HTTP face, around an engine that has been started."""

    def __init__(self, engine: Engine, *, name: str, limits: NodeLimits | None = None) -> None:
        limits = limits or NodeLimits()
        self.name = name
        self.id = f"{name}:{secrets.token_hex(4)}"
        self.engine = engine
        self.block_tokens = BLOCK_TOKENS
        self.counters = NodeCounters()
        self.duty = Duty(name)
        self.progress = Progress(limits.stall_after_s)
        self.admission = Admission(engine.slots, limits.queue_limit, self.progress)
        self.leases = LeaseTable(engine.store, limits.lease_ttl_s)
        self.puller = KvPuller(
            engine.store,
            fingerprint=engine.fingerprint,
            counters=self.counters,
            progress=self.progress,
            layout=None if engine.exact is False else engine.payload_layout,
            stall_s=limits.pull_stall_s,
        )
        self.kv_server = KvServer(
            engine.store,
            self.leases,
            fingerprint=engine.fingerprint,
            block_tokens=self.block_tokens,
            layout=engine.payload_layout,
            counters=self.counters,
            progress=self.progress,
        )
        self.kv_host = ""
        self.kv_port = 0
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, kv_host: str, kv_port: int) -> None:
        """Open the KV port (0: a free one) and watch the leases.

        Raises:
            OSError: the KV address cannot be bound.
        """
        self.kv_port = await self.kv_server.start(kv_host, kv_port)
        self.kv_host = kv_host
        self._sweeper = asyncio.create_task(self._sweep_leases())

    async def close(self) -> None:
        """Close everything but the engine; safe to call twice."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
            self._sweeper = None
        await self.kv_server.close()
        await self.puller.close()

    async def run(self, work: Work) -> AsyncGenerator[Step, None]:
        """The steps of one request: take a place, pull what is missing, wait for a slot, generate.

        Closing it at any point frees all it holds. A lease it made is the caller's as soon as the last step has been
        yielded; before that, an early end takes it back.

        Raises:
            QueueFullError, KvError, PrefixGoneError, LeaseRoomError, PromptRefusedError: before the first step.
        """
        self.counters.requests += 1
        with self.admission.place():
            holder = f"request-{work.id}"
            is_begun = is_finished = False
            try:
                if work.source is not None:
                    cuts = cut_blocks(work.prompt, work.salt, self.block_tokens)
                    work.pull = await self.puller.pull(holder, cuts, work.source, partial(self._head_of, work))
                queued_since_s = time.monotonic()
                async with self.admission.slot(), aclosing(self._generate(work)) as steps:
                    work.queued_s = time.monotonic() - queued_since_s
                    self._check_prefix(work)
                    async for step in steps:
                        if not is_begun:
                            self._begin(work, step, holder)
                            is_begun = True
                        is_finished = step.finish is not None
                        self.counters.decode_tokens += len(step.token_ids)
                        self.progress.mark()
                        yield step
                if not is_finished:
                    raise RuntimeError("the engine ended a generation without a finish")
            finally:
                self.engine.store.unpin(holder)
                if work.lease is not None and not is_finished:
                    self.leases.release(work.lease.id)

    def _head_of(self, work: Work, cut: Cut) -> Block | None:
        """A resident block that is the beginning of this one."""
        tokens = work.prompt[cut.start : cut.end]
        return resident_beginning(self.engine.store, tokens, cut.parent, work.salt, cut.token_count - 1)

    def _check_prefix(self, work: Work) -> None:
        """Refuse a request that would compute more than its sender thinks: the prefix has left the store."""
        if work.max_computed_tokens is None:
            return
        resident = longest_resident(self.engine.store, work.prompt, work.salt)
        missing_tokens = len(work.prompt) - resident.token_count
        if missing_tokens > work.max_computed_tokens:
            raise PrefixGoneError(f"{missing_tokens} tokens of the prompt are not resident")

    def _generate(self, work: Work) -> AsyncGenerator[Step, None]:
        generation = Generation(work.prompt, work.max_tokens, work.sampling, work.salt, self.progress.mark)
        return self.engine.generate(generation)

    def _begin(self, work: Work, first: Step, holder: str) -> None:
        """The prompt's KV is resident now: count where it came from, and lease it if that is wanted."""
        self.engine.store.unpin(holder)
        work.cached_tokens = first.resident_tokens or 0
        work.computed_tokens = first.computed_tokens or 0
        self.counters.prompt_tokens += len(work.prompt)
        self.counters.prefill_tokens += work.computed_tokens
        self.counters.resident_tokens += work.figures().resident_tokens
        if work.wants_lease:
            cuts = cut_blocks(work.prompt, work.salt, self.block_tokens)
            try:
                work.lease = self.leases.grant([cut.hash for cut in cuts], len(work.prompt), work.lease_id)
            except BlockGoneError as error:
                raise LeaseRoomError(str(error)) from None

    async def _sweep_leases(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SWEEP_EVERY_S)
            self.leases.expire()
