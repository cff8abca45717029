"""One client request on its way through the gateway: what was asked, what was decided, what was sent."""

import logging
from dataclasses import dataclass, field
from typing import Protocol

from control.domain.commit import Commit, EngineOverrunError, Flush, Piece, Turn
from control.domain.outcome import Outcome
from control.domain.output_bound import OutputBound
from control.domain.routing import Route
from control.domain.topology import Link
from control.telemetry.records import RequestRecord
from control.tracing import RequestTrace
from engine_agents.gateway.config import RunningConfig
from engine_agents.gateway.logprobs import Document, JoinedLogprobs
from engine_agents.gateway.node_client import NodeClient
from engine_agents.gateway.node_errors import NodeError, NodeRefusedError, TransferRefusedError
from engine_agents.gateway.node_replies import Chunk, WorkDone
from engine_agents.gateway.openai_schema import GenerationRequest
from engine_agents.gateway.prompt import Prompt
from engine_agents.gateway.state import GatewayState, RelayPool
from engine_agents.gateway.tenants import ANYBODY, Caller
from engine_agents.gateway.timeline import Stage, Timeline

SHORTEST_QUEUE_S = 0.001  # below that nothing was waited for

log = logging.getLogger(__name__)


class Answer(Protocol):
    """Where the answer goes: a stream of events or one body."""

    @property
    def is_clogged(self) -> bool:
        """Whether the client reads more slowly than the answer comes."""

    async def drained(self) -> None:
        """Return once the client has caught up."""

    def put(self, flush: Flush, logprobs: Document | None = None) -> bool:
        """Take the next part of the answer; False if its client has not been sent anything of it yet."""


@dataclass(frozen=True, slots=True)
class Headers:
    """What a request's headers say that matters here."""

    request_id: str
    traffic: str = "live"
    wants_explanation: bool = False
    caller: Caller = ANYBODY
    session: str = ""
    trace: RequestTrace | None = None

    @property
    def trace_id(self) -> str:
        """The id of the request's trace; empty where nobody records it."""
        return self.trace.trace_id if self.trace else ""

    @property
    def canary_key(self) -> str:
        """What decides whether a request is part of a canary: its session where it names one, else itself."""
        return f"{self.caller.tenant}/{self.session}" if self.session else self.request_id


@dataclass(slots=True)
class Facts:
    """What was learned while serving; becomes part of the record."""

    prefill_node: str = ""
    relay_node: str = ""
    main_node: str = ""
    predicted_prefix_tokens: int = 0
    cached_tokens: int | None = None
    prefilled_s: float | None = None
    arrived_s: float | None = None
    transfer_s: float | None = None
    pulled_tokens: int | None = None
    pulled_bytes: int | None = None
    handoff_mode: str = ""
    handoff_batches: int = 0
    handoff_stall_s: float | None = None
    expected_recomputed_tokens: int | None = None
    recomputed_tokens: int | None = None
    caught_up_tokens: int = 0
    repulls: int = 0
    resumes: int = 0
    reported_drc_tokens: int | None = None
    extend_resident_tokens: int | None = None
    first_route: Route | None = None


@dataclass(slots=True)
class Exchange:
    """Everything that serving one request needs."""

    headers: Headers
    request: GenerationRequest
    config: RunningConfig
    state: GatewayState
    client: NodeClient
    timeline: Timeline
    prompt: Prompt
    commit: Commit
    answer: Answer
    bound: OutputBound
    facts: Facts = field(default_factory=Facts)
    excluded: set[str] = field(default_factory=set)
    doubted: set[str] = field(default_factory=set)
    unsent_tokens: int = 0
    logprobs: JoinedLogprobs | None = None

    @property
    def salt(self) -> str:
        """What block hashes of this request are salted with, here and on every node; empty for none.

        A client's own salt cannot begin as a tenant's does, so that no tenant can name itself into another's cache.
        """
        own = self.request.cache_salt
        if self.headers.caller.is_salted:
            return f"tenant:{self.headers.caller.tenant}/{own}"
        return f"client:{own}" if own else ""

    def note_transfer(self, link: Link | None, pipeline: str, work: WorkDone, seconds: float) -> None:
        """Note what a transfer moved; the engine's own time counts where it gives one."""
        facts = self.facts
        transfer_s = work.pull_s if work.pull_s is not None else seconds
        predicted_s = None
        if facts.transfer_s is None:
            if work.resident_tokens is not None:
                facts.reported_drc_tokens = work.resident_tokens + (work.waited_bytes_tokens or 0)
            facts.transfer_s = transfer_s  # the one that was predicted; a later one makes good for a loss
            predicted_s = facts.first_route.inputs.predicted_transfer_s if facts.first_route else None
        if work.pulled_tokens is not None:
            facts.pulled_tokens = (facts.pulled_tokens or 0) + work.pulled_tokens
        if work.pulled_bytes is not None:
            facts.pulled_bytes = (facts.pulled_bytes or 0) + work.pulled_bytes
        if link is not None:
            self.state.on_transfer(link.name, pipeline, transfer_s, work.pulled_bytes or 0, predicted_s)

    def note_queue(self, start_s: float, queued_s: float | None) -> None:
        """Note that a node let the request wait for a slot, from then on."""
        if queued_s is not None and queued_s >= SHORTEST_QUEUE_S:
            self.timeline.add(Stage.QUEUE, start_s, start_s + queued_s)

    def note_arrival(self) -> None:
        """MD has the prompt's KV."""
        if self.facts.arrived_s is None:
            self.facts.arrived_s = self.timeline.elapsed_s

    def _cache_lag_s(self, now_s: float) -> float:
        """How long P has had the prompt's KV without MD."""
        facts = self.facts
        if facts.prefilled_s is None:
            return 0.0
        return max(0.0, (now_s if facts.arrived_s is None else facts.arrived_s) - facts.prefilled_s)

    def relay_pool(self, site: str) -> RelayPool:
        """The relay nodes of a site as this request's policy sees them: another ceiling is another matter."""
        return (site, self.request.model, self.config.revision)

    def current_prompt(self) -> Prompt:
        """The prompt and the answer so far: what any decoder can go on from."""
        return self.prompt.extended(self.commit.token_ids)

    def accept(self, turn: Turn, node: str, chunk: Chunk) -> bool:
        """Commit an engine's chunk and send on what may be sent; True once the engine has finished.

        Raises:
            NodeRefusedError: the engine does not keep to the dialect.
        """
        if not chunk.choices:
            return False
        choice = chunk.choices[0]
        if choice.token_ids is None:
            raise NodeRefusedError(node, "streams without token ids")
        try:
            flush = self.commit.accept(turn, Piece(choice.token_ids, choice.text, choice.finish_reason, chunk.is_whole))
        except EngineOverrunError as error:
            raise NodeRefusedError(node, str(error)) from error
        likely: Document | None = None
        if flush is not None and self.logprobs is not None:
            count = len(choice.token_ids)
            self.logprobs.add(self.commit.output_tokens - count, count, choice.logprobs)
            likely = self.logprobs.take(len(flush.token_ids)) if flush.token_ids else None
        if flush is not None and (flush.token_ids or flush.text or flush.finish):
            self.unsent_tokens += len(flush.token_ids)
            if self.answer.put(flush, likely):
                self.timeline.sent(self.unsent_tokens)
                self.unsent_tokens = 0
        return choice.finish_reason is not None

    def record(self, gateway: str, site: str, outcome: Outcome, status: int) -> RequestRecord:
        """The request's record, without a word of its text."""
        facts, times, route = self.facts, self.timeline, self.facts.first_route
        inputs = route.inputs if route else None
        elapsed_s = times.elapsed_s
        return RequestRecord(
            request_id=self.headers.request_id,
            gateway=gateway,
            site=site,
            received_at_s=times.received_at_s,
            model=self.request.model,
            pipeline=route.pipeline.wire if route else "",
            reason=route.reason.wire if route else "",
            outcome=outcome.value,
            status=status,
            policy_revision=self.config.revision,
            traffic=self.headers.traffic,
            tenant=self.headers.caller.tenant,
            service_class=self.headers.caller.service_class,
            stream=self.request.is_stream,
            prefill_node=facts.prefill_node,
            relay_node=facts.relay_node,
            main_node=facts.main_node,
            link=route.link if route else "",
            input_tokens=len(self.prompt),
            output_tokens=self.commit.output_tokens,
            eager_tokens=self.commit.eager_tokens,
            max_output_tokens=self.commit.max_tokens,
            cached_tokens=facts.cached_tokens,
            predicted_prefix_tokens=facts.predicted_prefix_tokens,
            drc_resident_tokens=inputs.resident_tokens if inputs else 0,
            drc_in_flight_tokens=inputs.in_flight_tokens if inputs else 0,
            uncached_tokens=inputs.uncached_tokens if inputs else 0,
            predicted_transfer_s=inputs.predicted_transfer_s if inputs else 0.0,
            transfer_s=facts.transfer_s,
            pulled_tokens=facts.pulled_tokens,
            pulled_bytes=facts.pulled_bytes,
            handoff_mode=facts.handoff_mode,
            handoff_batches=facts.handoff_batches,
            handoff_stall_s=facts.handoff_stall_s,
            expected_recomputed_tokens=facts.expected_recomputed_tokens,
            recomputed_tokens=facts.recomputed_tokens,
            resumes=facts.resumes,
            ttft_s=times.ttft_s,
            ttst_s=times.ttst_s,
            tpot_s=times.tpot_s,
            max_itl_s=times.max_itl_s,
            e2e_s=elapsed_s,
            gateway_overhead_s=times.overhead_s,
            relay_utilization=inputs.relay_utilization if inputs else 0.0,
            stages=times.stages,
            output_bound_tokens=self.bound.tokens,
            output_bound_source=self.bound.source.value,
            caught_up_tokens=facts.caught_up_tokens,
            repulls=facts.repulls,
            predicted_direct_ttft_s=inputs.predicted_direct_ttft_s if inputs else 0.0,
            relay_was_at_ceiling=inputs.relay_was_at_ceiling if inputs else False,
            reported_drc_tokens=facts.reported_drc_tokens,
            extend_resident_tokens=facts.extend_resident_tokens,
            trace_id=self.headers.trace_id,
            cache_lag_s=self._cache_lag_s(elapsed_s) if route else None,
        )


def note_failure(x: Exchange, error: NodeError) -> None:
    """A node failed this request, which goes on without it.

    A refused transfer does not say which side is at fault, so its node has a second try.
    """
    log.info("request %s: %s failed: %s %d", x.headers.request_id, error.node, type(error).__name__, error.status)
    x.facts.resumes += 1
    if not isinstance(error, TransferRefusedError) or error.node in x.doubted:
        x.excluded.add(error.node)
    x.doubted.add(error.node)
