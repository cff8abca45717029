"""A request's record as spans: the request itself, and under it each of its stages."""

from collections.abc import Iterator

from control.domain.outcome import Outcome
from control.telemetry.records import RequestRecord
from control.tracing import Kind, RequestTrace, Span
from engine_agents.gateway.timeline import Stage

_NODE_OF_STAGE = {
    Stage.PREFILL: "prefill_node",
    Stage.KV_RDMA: "relay_node",
    Stage.RELAY_DECODE: "relay_node",
    Stage.KV_WAN: "main_node",
    Stage.HANDOFF: "main_node",
    Stage.MAIN_DECODE: "main_node",
}
_FAILURES = frozenset({Outcome.FAILED.value, Outcome.SHED.value})


def request_spans(record: RequestRecord, trace: RequestTrace, *, is_chat: bool) -> Iterator[Span]:
    """The spans of a request that is over."""
    operation = "chat" if is_chat else "text_completion"
    start_s = record.received_at_s
    yield Span(
        name=f"{operation} {record.model}".strip(),
        context=trace.context,
        parent_id=trace.parent_id,
        start_s=start_s,
        end_s=start_s + record.e2e_s,
        kind=Kind.SERVER,
        attributes={
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "pdd",
            "gen_ai.request.model": record.model,
            "gen_ai.request.max_tokens": record.max_output_tokens or None,
            "gen_ai.usage.input_tokens": record.input_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.response.time_to_first_chunk": record.ttft_s,
            "error.type": record.outcome if record.outcome in _FAILURES else None,
            "http.response.status_code": record.status,
            "pdd.request.id": record.request_id,
            "pdd.site": record.site,
            "pdd.pipeline": record.pipeline,
            "pdd.reason": record.reason,
            "pdd.outcome": record.outcome,
            "pdd.tenant": record.tenant,
            "pdd.service_class": record.service_class,
            "pdd.policy_revision": record.policy_revision,
            "pdd.eager_tokens": record.eager_tokens,
            "pdd.uncached_tokens": record.uncached_tokens,
            "pdd.handoff.mode": record.handoff_mode,
            "pdd.handoff.stall_s": record.handoff_stall_s,
            "pdd.resumes": record.resumes,
        },
        error=record.outcome if record.outcome in _FAILURES else "",
    )
    for stage in record.stages:
        node = _NODE_OF_STAGE.get(Stage(stage.name))
        yield Span(
            name=stage.name,
            context=trace.context.child(),
            parent_id=trace.context.span_id,
            start_s=start_s + stage.start_s,
            end_s=start_s + stage.end_s,
            attributes={"pdd.node": getattr(record, node) if node else None},
        )
