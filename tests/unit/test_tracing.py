"""Trace contexts as W3C has them."""

import pytest

from control.tracing import Span, Tracing, new_trace, open_tracing, read_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_context_is_read_and_written_as_it_was():
    context = read_traceparent(f"00-{TRACE}-{SPAN}-01")
    assert (f"{context.trace_id:032x}", f"{context.span_id:016x}", context.is_sampled) == (TRACE, SPAN, True)
    assert context.traceparent == f"00-{TRACE}-{SPAN}-01"
    assert read_traceparent(new_trace().traceparent)
    child = context.child()
    assert (child.trace_id, child.is_sampled) == (context.trace_id, True)
    assert child.span_id != context.span_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
    ],
)
def test_what_is_no_context_is_none(text):
    assert read_traceparent(text) is None


def test_a_later_version_may_say_more():
    assert read_traceparent(f"01-{TRACE}-{SPAN}-00-more").is_sampled is False


def test_without_an_endpoint_there_is_no_tracing():
    assert open_tracing("", "pdd-gateway", "gw") is None


def test_what_a_caller_does_not_want_recorded_is_passed_on_and_not_sent():
    sent = []
    tracing = Tracing(sent.append, lambda: None)
    trace = tracing.begin(f"00-{TRACE}-{SPAN}-00")
    assert trace.context.traceparent.startswith(f"00-{TRACE}-")
    assert trace.context.traceparent.endswith("-00")
    tracing.export([Span("x", trace.context, trace.parent_id, 0.0, 1.0)])
    assert (sent, trace.trace_id) == ([], "")
