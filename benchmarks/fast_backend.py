"""A node of the engine dialect that computes nothing: canned prefills, pulls and streams, for the gateway's benchmark.

The first part of the path says how a stream comes: `/burst` all at once, `/paced` one chunk every 10 ms, with pulls
that take half of a 50-chunk answer.
"""

import argparse
import asyncio
import re
import socket
from collections.abc import Callable

import httptools
import uvloop

PACE_S = 0.01
PULL_S = 0.25
TOKEN_ID = 7
MAX_MODEL_LEN = 1 << 20
_MAX_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')
_EVENT = b'data: {"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" tok",'
_EVENT += b'"logprobs":null,"finish_reason":%b,"stop_reason":null,"token_ids":[7]}],"usage":null}\n\n'
_USAGE = (
    b'data: {"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":'
)
_USAGE += b'1024,"total_tokens":1074,"completion_tokens":50},"pdd":{"computed_tokens":1,"resident_tokens":1024,'
_USAGE += b'"pulled_tokens":1024,"pulled_bytes":1048576,"pull_s":0.01,"waited_bytes_tokens":0}}\n\ndata: [DONE]\n\n'
_WHOLE = (
    b'{"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"%b","logprobs":'
)
_WHOLE += b'null,"finish_reason":"length","stop_reason":null,"token_ids":[%b]}],"usage":{"prompt_tokens":1024,'
_WHOLE += b'"total_tokens":1025,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":64}},'
_WHOLE += (
    b'"pdd":{"computed_tokens":1,"resident_tokens":0,"pulled_tokens":1024,"pulled_bytes":1048576,"pull_s":0.01}%b}'
)
_LEASE = b',"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"bench-0",'
_LEASE += b'"remote_request_id":"lease-%d","remote_block_ids":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],'
_LEASE += b'"remote_host":"127.0.0.1","remote_port":9,"remote_num_tokens":1024}'
_SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(*, is_last: bool) -> bytes:
    """One chunk of a stream."""
    return _EVENT % (b'"length"' if is_last else b"null")


def framed(data: bytes) -> bytes:
    """A chunk of chunked transfer encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Backend(asyncio.Protocol):
    """One connection."""

    served = 0

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._url = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Keep the transport."""
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, _: Exception | None) -> None:
        """The other side has gone."""
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Part of the URL."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """Part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """All of it is here."""
        url, body = self._url, b"".join(self._body)
        self._url = b""
        self._body.clear()
        Backend.served += 1
        _, mode, path = url.split(b"/", 2)
        if path == b"v1/completions":
            self._complete(body, is_paced=mode == b"paced")
        elif path == b"tokenize":
            # The prompt's length follows the text's; its first id is another each time, so that no prefix repeats.
            ids = b",7" * (body.count(b" tok") - 1)
            count = body.count(b" tok")
            self._reply(
                b'{"tokens":[%d%b],"count":%d,"max_model_len":%d}' % (Backend.served, ids, count, MAX_MODEL_LEN)
            )
        elif path == b"v1/models":
            self._reply(b'{"object":"list","data":[{"id":"m","object":"model","max_model_len":%d}]}' % MAX_MODEL_LEN)
        elif path == b"health" or path.startswith(b"pdd/v1/leases/"):
            self._reply(b"{}")
        else:
            self._reply(b"{}", b"404 Not Found")

    def _complete(self, body: bytes, *, is_paced: bool) -> None:
        # The prompt may be long and its place in the body is the sender's choice, so both ends are looked at.
        ends = body if len(body) < 4096 else body[:512] + body[-2048:]
        found = _MAX_TOKENS.search(ends)
        tokens = int(found.group(1)) if found else 16
        if b'"do_remote_decode":true' in ends:
            self._reply(_WHOLE % (b" tok", b"7", _LEASE % Backend.served))
        elif b'"stream":true' in ends:
            self._stream(tokens, is_paced=is_paced)
        else:
            reply = _WHOLE % (b" tok" * tokens, b",".join([b"7"] * tokens), b"")
            if is_paced and b"kv_transfer_params" in ends:
                self._later(PULL_S, lambda: self._reply(reply))
            else:
                self._reply(reply)

    def _stream(self, tokens: int, *, is_paced: bool) -> None:
        if is_paced:
            self._transport.write(_SSE_HEAD)
            self._pace(tokens, asyncio.get_running_loop().time())
        else:
            events = [framed(event(is_last=left == 1)) for left in range(tokens, 0, -1)]
            self._transport.write(b"".join([_SSE_HEAD, *events, framed(_USAGE), b"0\r\n\r\n"]))

    def _pace(self, left: int, due_s: float) -> None:
        self._transport.write(framed(event(is_last=left == 1)))
        if left > 1:
            due_s += PACE_S
            delay_s = due_s - asyncio.get_running_loop().time()
            self._later(max(0.0, delay_s), lambda: self._pace(left - 1, due_s))
        else:
            self._transport.write(framed(_USAGE) + b"0\r\n\r\n")

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, action)

    def _reply(self, body: bytes, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", port, backlog=2048)
    print(f"ready http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    uvloop.run(serve(parser.parse_args().port))
