"""One gateway: takes a parsed request from tokenizing to its record."""

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import Any

from control.domain.answer_parser import AnswerFormat, AnswerParser
from control.domain.commit import Commit
from control.domain.forced_calls import ForcedCallsParser
from control.domain.outcome import Outcome
from control.domain.output_bound import output_bound
from control.domain.topology import Node, NodeState, Role
from control.telemetry.records import RequestRecord
from control.tracing import Tracing
from engine_agents.gateway.config import ConfigStore, RunningConfig
from engine_agents.gateway.errors import RefusalError, failed_upstream, invalid, unavailable
from engine_agents.gateway.exchange import Exchange, Headers
from engine_agents.gateway.logprobs import JoinedLogprobs
from engine_agents.gateway.metrics import GatewayMetrics
from engine_agents.gateway.node_client import NodeClient, forget_trace, name_trace
from engine_agents.gateway.node_errors import NodeBusyError, NodeError, NodeRefusedError
from engine_agents.gateway.openai_schema import GenerationRequest
from engine_agents.gateway.parsed_answer import ParsedAnswer
from engine_agents.gateway.pipelines import serve
from engine_agents.gateway.prompt import Prompt
from engine_agents.gateway.responses import Response, Usage
from engine_agents.gateway.spans import request_spans
from engine_agents.gateway.state import GatewayState
from engine_agents.gateway.telemetry import Publisher
from engine_agents.gateway.timeline import Stage, Timeline

log = logging.getLogger(__name__)

_TOKENIZER_ROLES = (Role.PREFILL, Role.RELAY, Role.MAIN)


@dataclass(slots=True)
class Gateway:
    """Everything the request handlers share."""

    name: str
    site: str
    configs: ConfigStore
    state: GatewayState
    client: NodeClient
    metrics: GatewayMetrics
    publisher: Publisher
    tracing: Tracing | None = None

    def running_config(self) -> RunningConfig:
        """What to serve on.

        Raises:
            RefusalError: 503, nothing has been configured yet.
        """
        if self.configs.running is None:
            raise unavailable("This gateway has no configuration yet.", "not_configured", retry_after_s=5)
        return self.configs.running

    async def answer(
        self, request: GenerationRequest, headers: Headers, timeline: Timeline, response: Response
    ) -> None:
        """Answer one request; every way it can end sends the client something, makes one record and frees all it held.

        Cancelling it is how a client leaves.
        """
        self.state.requests_in_flight += 1
        named = name_trace(headers.trace.context.traceparent if headers.trace else "")
        x: Exchange | None = None
        outcome, status = Outcome.FAILED, 500
        try:
            x = await self._prepare(request, headers, timeline, response)
            await serve(x)
            outcome, status = Outcome.COMPLETED, 200
            if request.max_tokens is None:
                self.state.outputs.add(headers.caller.tenant, x.commit.output_tokens)
            explanation = _explain(x) if headers.wants_explanation else None
            response.finish(_usage(x), explanation)
        except RefusalError as refusal:
            outcome, status = _outcome_of(refusal), refusal.status
            response.fail(refusal)
        except asyncio.CancelledError:
            if outcome is not Outcome.COMPLETED:
                outcome, status = Outcome.CLIENT_CLOSED, 499
            raise
        except Exception:
            log.exception("request %s failed", headers.request_id)
            response.fail(RefusalError(500, "The gateway failed.", kind="server_error", code="internal_error"))
        finally:
            self.state.requests_in_flight -= 1
            if x is None:
                record = self._short_record(request, headers, timeline, outcome, status)
            else:
                record = x.record(self.name, self.site, outcome, status)
            self.metrics.count(record)
            self.publisher.add(record)
            if self.tracing is not None and headers.trace is not None:
                self.tracing.export(request_spans(record, headers.trace, is_chat=request.is_chat))
            forget_trace(named)

    async def _prepare(
        self, request: GenerationRequest, headers: Headers, timeline: Timeline, response: Response
    ) -> Exchange:
        config = self.running_config().for_request(self.site, headers.canary_key)
        if request.model not in config.models:
            raise RefusalError(
                404, f"The model `{request.model}` does not exist here.", param="model", code="model_not_found"
            )
        config = config.for_model(request.model)
        _check_grammar(config, request)
        parser = _parser_for(request, config.answer_format(request.model))
        start_s = timeline.elapsed_s
        try:
            prompt, limit = await self._tokenize(config, request)
        finally:
            timeline.add(Stage.TOKENIZE, start_s)
        if prompt is None:
            raise invalid("The prompt is empty.", "prompt", "empty_prompt")
        max_tokens = _checked_max_tokens(request, len(prompt), limit)
        likely_tokens = self.state.outputs.likely_tokens(headers.caller.tenant) if request.max_tokens is None else None
        return Exchange(
            headers=headers,
            request=request,
            config=config,
            state=self.state,
            client=self.client,
            timeline=timeline,
            prompt=prompt,
            commit=Commit(max_tokens, request.stop),
            answer=response if parser is None else ParsedAnswer(response, parser),
            logprobs=None if request.logprobs is None else JoinedLogprobs(request.logprobs, is_chat=request.is_chat),
            bound=output_bound(request.max_tokens, max_tokens, likely_tokens),
        )

    async def _tokenize(self, config: RunningConfig, request: GenerationRequest) -> tuple[Prompt | None, int]:
        """Token ids of the prompt, None for no ids, and how many tokens prompt and output may have together."""
        nodes = [node for role in _TOKENIZER_ROLES for node in config.nodes(role, request.model)]
        if request.prompt is not None:
            for node in nodes:
                if node.url in self.state.max_model_lens:
                    return request.prompt, self.state.max_model_lens[node.url]
        usable = [node for node in nodes if node.state is not NodeState.DISABLED]
        usable.sort(key=lambda node: not self.state.breakers.allows(node.name))
        failure: NodeError | None = None
        for node in usable:
            try:
                with self.state.work_on(node):
                    return await self._tokenize_on(node, request)
            except NodeRefusedError as error:
                if error.status == 400:
                    raise invalid(error.message, "messages" if request.is_chat else "prompt") from error
                failure = error
            except NodeError as error:
                failure = error
        if isinstance(failure, NodeBusyError) or failure is None:
            raise unavailable("No node can take the request.", "no_node")
        raise failed_upstream("No node could tokenize the prompt.") from failure

    async def _tokenize_on(self, node: Node, request: GenerationRequest) -> tuple[Prompt | None, int]:
        if request.prompt is not None:
            limit = self.state.max_model_lens[node.url] = await self.client.max_model_len(node)
            return request.prompt, limit
        body: dict[str, Any] = {"model": request.model, **request.template_options}
        body |= {"messages": request.messages} if request.is_chat else {"prompt": request.text}
        return await self.client.tokenize(node, body)

    def _short_record(
        self, request: GenerationRequest, headers: Headers, timeline: Timeline, outcome: Outcome, status: int
    ) -> RequestRecord:
        """The record of a request that was turned away before anything was decided."""
        config = self.configs.running
        if config is not None:
            config = config.for_request(self.site, headers.canary_key)
        return RequestRecord(
            request_id=headers.request_id,
            gateway=self.name,
            site=self.site,
            received_at_s=timeline.received_at_s,
            model=request.model if config and request.model in config.models else "",  # else it may be any text
            pipeline="",
            reason="",
            outcome=outcome.value,
            status=status,
            policy_revision=config.revision if config else 0,
            traffic=headers.traffic,
            tenant=headers.caller.tenant,
            service_class=headers.caller.service_class,
            stream=request.is_stream,
            e2e_s=timeline.elapsed_s,
            stages=timeline.stages,
            trace_id=headers.trace_id,
        )


def new_request_id() -> str:
    """An id for a request whose client gave none."""
    return os.urandom(16).hex()


def _checked_max_tokens(request: GenerationRequest, input_tokens: int, limit: int) -> int:
    room = limit - input_tokens
    if room < 1:
        raise invalid(
            f"The prompt has {input_tokens} tokens; the model holds {limit} with at least one of output.",
            "messages" if request.is_chat else "prompt",
            "context_length_exceeded",
        )
    if request.max_tokens is not None and request.max_tokens > room:
        raise invalid(
            f"The prompt's {input_tokens} tokens and {request.max_tokens} of output exceed the model's {limit}.",
            "max_tokens",
            "context_length_exceeded",
        )
    return request.max_tokens or room


def _check_grammar(config: RunningConfig, request: GenerationRequest) -> None:
    """Refuse a grammar that no main decode node of the model could keep to, now or later."""
    mains = config.nodes(Role.MAIN, request.model)
    if request.grammar_by and not any(node.is_stock and node.state is not NodeState.DISABLED for node in mains):
        raise invalid(
            f"`{request.grammar_by}` is not supported with this value: the nodes that decode `{request.model}` here "
            "work token by token and have no grammars; only stock vLLM nodes do.",
            request.grammar_by,
            "unsupported_parameter",
        )


def _parser_for(request: GenerationRequest, answer_format: AnswerFormat) -> AnswerParser | ForcedCallsParser | None:
    """What reads the answer's parts; None where all of it is plain text."""
    if request.forced_call is not None:
        return ForcedCallsParser(answer_format, request.forced_call, request.max_tool_calls)
    wants_tools = bool(request.tools)
    if wants_tools and not answer_format.tool_parser:
        raise invalid(
            "`tools` is not supported: this model's profile names no tool-call parser that is known here.",
            "tools",
            "unsupported_parameter",
        )
    if not request.is_chat or not (wants_tools or answer_format.reasoning_parser):
        return None
    return AnswerParser(answer_format, wants_tools=wants_tools, max_calls=request.max_tool_calls)


def _outcome_of(refusal: RefusalError) -> Outcome:
    if refusal.status == 503:
        return Outcome.SHED
    return Outcome.REJECTED if refusal.status < 500 else Outcome.FAILED


def _usage(x: Exchange) -> Usage:
    cached = x.facts.cached_tokens
    details = None if cached is None else {"cached_tokens": cached}
    prompt_tokens, completion_tokens = len(x.prompt), x.commit.output_tokens
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, details)


def _explain(x: Exchange) -> dict[str, Any]:
    """Why the request was served as it was, for clients that ask."""
    facts, route = x.facts, x.facts.first_route
    assert route is not None, "an answered request has been routed"  # noqa: S101
    cached = facts.cached_tokens
    return {
        "pipeline": route.pipeline.wire,
        "reason": route.reason.wire,
        "prefill_node": facts.prefill_node,
        "relay_node": facts.relay_node,
        "main_node": facts.main_node,
        "link": route.link,
        "handoff_mode": facts.handoff_mode,
        "handoff_batches": facts.handoff_batches,
        "handoff_stall_s": facts.handoff_stall_s,
        "input_tokens": len(x.prompt),
        "output_tokens": x.commit.output_tokens,
        "eager_tokens": x.commit.eager_tokens,
        "output_bound_tokens": x.bound.tokens,
        "output_bound_source": x.bound.source.value,
        "tenant": x.headers.caller.tenant,
        "service_class": x.headers.caller.service_class,
        "uncached_tokens": route.inputs.uncached_tokens,
        "predicted_transfer_s": route.inputs.predicted_transfer_s,
        "transfer_s": facts.transfer_s,
        "pulled_tokens": facts.pulled_tokens,
        "pulled_bytes": facts.pulled_bytes,
        "drc_hit_rate": route.inputs.drc_hit_rate,
        "reported_drc_tokens": facts.reported_drc_tokens,
        "extend_resident_tokens": facts.extend_resident_tokens,
        "prefix_hit_rate": None if cached is None else cached / len(x.prompt),
        "expected_recomputed_tokens": facts.expected_recomputed_tokens,
        "recomputed_tokens": facts.recomputed_tokens,
        "relay_utilization": route.inputs.relay_utilization,
        "resumes": facts.resumes,
        "policy_revision": x.config.revision,
        "ttft_s": x.timeline.ttft_s,
        "stages": [[stage.name, stage.start_s, stage.end_s] for stage in x.timeline.stages],
    }
