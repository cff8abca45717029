"""Traces of requests through gateway and nodes: W3C trace contexts in, spans out over OTLP where an endpoint is set.

Spans carry GenAI attribute names and figures, never a word of a prompt or an answer.
"""

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_OTHER_VERSION = "ff"

Attribute = str | int | float | bool


class Kind(Enum):
    """Which side of a call a span tells of; values are OpenTelemetry's names."""

    SERVER = "SERVER"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where a span stands: its trace, itself, and whether the trace is recorded."""

    trace_id: int
    span_id: int
    is_sampled: bool = True

    @property
    def traceparent(self) -> str:
        """As a W3C header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"

    def child(self) -> "TraceContext":
        """Another span of the same trace."""
        return TraceContext(self.trace_id, secrets.randbits(64) or 1, self.is_sampled)


def read_traceparent(text: str) -> TraceContext | None:
    """The context in a `traceparent` header; None if it is none, which then begins a trace of its own."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None or found[1] == _OTHER_VERSION or (found[1] == "00" and found[5]):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(found[4], 16) & _SAMPLED))


def new_trace() -> TraceContext:
    """The first span of a new trace."""
    return TraceContext(secrets.randbits(128) or 1, secrets.randbits(64) or 1)


@dataclass(frozen=True, slots=True)
class Span:
    """Something that is over; times are Unix seconds. Attributes without a value are left out."""

    name: str
    context: TraceContext
    parent_id: int | None
    start_s: float
    end_s: float
    kind: Kind = Kind.INTERNAL
    attributes: Mapping[str, Attribute | None] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """One request's place in its trace, since it was received."""

    context: TraceContext
    parent_id: int | None
    started_at_s: float

    @property
    def trace_id(self) -> str:
        """As people write it; empty where the trace is not recorded."""
        return f"{self.context.trace_id:032x}" if self.context.is_sampled else ""


class Tracing:
    """Sends spans of one process in batches, from a thread of their own."""

    def __init__(self, send: Callable[[Span], None], close: Callable[[], None]) -> None:
        """`send` must not wait, `close` sends what is left."""
        self._send = send
        self.close = close

    def begin(self, traceparent: str) -> RequestTrace:
        """A request's place in the trace that its caller names, or in a new one."""
        caller = read_traceparent(traceparent)
        if caller is None:
            return RequestTrace(new_trace(), None, time.time())
        return RequestTrace(caller.child(), caller.span_id, time.time())

    def export(self, spans: Iterable[Span]) -> None:
        """Send spans later; of a trace that its caller does not want recorded, none."""
        for span in spans:
            if span.context.is_sampled:
                self._send(span)


def open_tracing(endpoint: str, service: str, instance: str) -> Tracing | None:
    """Tracing to an OTLP/HTTP endpoint such as `http://127.0.0.1:4318`; None without one, and nothing is loaded."""
    if not endpoint:
        return None
    # Half a second and 20 MB that only a process with an endpoint should pay for.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    resource = Resource.create({"service.name": service, "service.instance.id": instance})
    processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))

    def send(span: Span) -> None:
        processor.on_end(_readable(span, resource))

    return Tracing(send, processor.shutdown)


def _readable(span: Span, resource: Any) -> Any:
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415

    flags = trace.TraceFlags(_SAMPLED)

    def context(span_id: int) -> trace.SpanContext:
        return trace.SpanContext(span.context.trace_id, span_id, is_remote=False, trace_flags=flags)

    return ReadableSpan(
        name=span.name,
        context=context(span.context.span_id),
        parent=None if span.parent_id is None else context(span.parent_id),
        resource=resource,
        attributes={name: value for name, value in span.attributes.items() if value is not None and value != ""},
        kind=trace.SpanKind[span.kind.value],
        status=trace.Status(trace.StatusCode.ERROR, span.error) if span.error else trace.Status(),
        start_time=int(span.start_s * 1e9),
        end_time=int(max(span.end_s, span.start_s) * 1e9),
    )
