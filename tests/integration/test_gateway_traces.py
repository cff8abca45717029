"""One trace through gateway, P, RLD and MD, as a real OTLP receiver gets it."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from control.tracing import open_tracing
from tests.fleet import prompt_of
from tests.gateways import DIRECT_ALWAYS, ONE_SHOT, gateway_rig

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET_WORDS = "nobody may read this sentence in a trace"


class Receiver:
    """Spans that arrived: (service, span), with attributes as a dictionary."""

    def __init__(self):
        self.spans = []
        self.raw = b""

    def take(self, body):
        self.raw += body
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            service = attributes(of_resource.resource)["service.name"]
            self.spans += [(service, span) for scope in of_resource.scope_spans for span in scope.spans]


def attributes(carrier):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in carrier.attributes}


@contextmanager
def receiving():
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            receiver.take(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/traces"
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_spans_of_a_relayed_request_are_one_trace_without_a_word_of_its_text(tmp_path):
    with receiving() as (receiver, endpoint):
        of_gateway = open_tracing(endpoint, "pdd-gateway", "ams-gw-01")
        of_nodes = open_tracing(endpoint, "pdd-node", "nodes")
        async with gateway_rig(tmp_path, tracing=of_gateway, node_tracing=of_nodes) as rig:
            await rig.configure(ONE_SHOT)
            rig.http.headers["traceparent"] = PARENT
            answer = await rig.relayed([*SECRET_WORDS.encode(), *prompt_of(200)], eager=8, max_tokens=40)
            await rig.settled()
            del rig.http.headers["traceparent"]
            await rig.configure(DIRECT_ALWAYS)
            await rig.complete(prompt_of(100, seed=2), max_tokens=4)
            await rig.settled()
            relayed, direct = rig.records[-2:]
        of_nodes.close()
    assert answer.explained["pipeline"] == "relay"
    assert relayed.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    by_trace = {}
    for service, span in receiver.spans:
        by_trace.setdefault(span.trace_id.hex(), []).append((service, span))
    assert set(by_trace) == {relayed.trace_id, direct.trace_id}

    mine = by_trace[relayed.trace_id]
    [(_, root)] = [(service, span) for service, span in mine if span.parent_span_id.hex() == "00f067aa0ba902b7"]
    facts = attributes(root)
    assert (facts["gen_ai.operation.name"], facts["gen_ai.usage.output_tokens"]) == ("text_completion", 40)
    assert (facts["pdd.pipeline"], facts["pdd.eager_tokens"]) == ("relay", relayed.eager_tokens)
    assert all(span.parent_span_id == root.span_id for _, span in mine if span is not root)
    stages = {span.name for service, span in mine if service == "pdd-gateway"} - {root.name}
    assert stages >= {"prefill", "kv_wan", "relay_decode", "handoff", "main_decode"}
    nodes = {attributes(span)["pdd.node"] for service, span in mine if service == "pdd-node"}
    assert nodes == {relayed.prefill_node, relayed.relay_node, relayed.main_node}
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for _, span in receiver.spans)
    assert len({span.span_id for _, span in mine}) == len(mine)
    for word in (*SECRET_WORDS.split()[:2], answer.text[:12]):
        assert word.encode() not in receiver.raw
