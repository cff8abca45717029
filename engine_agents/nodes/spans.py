"""What a node did for one request, as a span."""

import time

from control.tracing import Kind, RequestTrace, Span
from engine_agents.nodes.completions import Completion


def completion_span(completion: Completion, trace: RequestTrace, error: str) -> Span:
    """The span of a completion that is over; `error` is empty or the kind of its failure."""
    work, node = completion.work, completion.node
    figures = work.figures()
    return Span(
        name=f"text_completion {node.engine.model}",
        context=trace.context,
        parent_id=trace.parent_id,
        start_s=trace.started_at_s,
        end_s=time.time(),
        kind=Kind.SERVER,
        attributes={
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "pdd",
            "gen_ai.request.model": node.engine.model,
            "gen_ai.request.max_tokens": work.max_tokens,
            "gen_ai.usage.input_tokens": len(work.prompt),
            "gen_ai.usage.output_tokens": completion.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": work.cached_tokens,
            "error.type": error or None,
            "pdd.node": node.name,
            "pdd.gives_lease": work.wants_lease,
            "pdd.pulls": work.source is not None,
            "pdd.computed_tokens": figures.computed_tokens,
            "pdd.resident_tokens": figures.resident_tokens,
            "pdd.pulled_tokens": figures.pulled_tokens,
            "pdd.pulled_bytes": figures.pulled_bytes,
        },
        error=error,
    )
