"""The server that clients talk to: how it reads requests, whom it cuts off, and what it does when told to stop."""

import asyncio
import contextlib
import json
import socket

import pytest

from engine_agents.gateway.http_requests import MAX_HEAD_BYTES
from engine_agents.gateway.http_server import Limits, _Connection, serving

LIMIT_S = 30.0
LARGE = 16 << 20
SOON_S = 0.05
"""A limit that a test waits for."""
POST = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
ENDLESS = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b"4\r\nmore\r\n" * 10


def get(path, *headers, version="1.1"):
    return "\r\n".join((f"GET {path} HTTP/{version}", "Host: h", *headers, "", "")).encode()


class Handler:
    """Answers with what it was asked; some paths do something else."""

    def __init__(self):
        self.requests = []
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.clogged = asyncio.Event()
        self.drained = asyncio.Event()

    async def __call__(self, request, reply):
        self.requests.append(request)
        self.began.set()
        if request.path in {"/flood", "/half", "/large", "/stream"}:
            reply.start(200, ((b"x-a", b"b"),))
            await getattr(self, request.path[1:])(reply)
        elif request.path == "/fail":
            raise ValueError
        else:
            if request.path == "/wait":
                await self.wait()
            asked = [request.method.decode(), request.path, request.query.decode(), request.body.decode()]
            reply.send(413 if request.is_too_large else 200, (), json.dumps(asked).encode())

    async def large(self, reply):
        reply.write(bytes(LARGE))
        reply.end()

    async def wait(self):
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def stream(self, reply):
        for part in (b"one", b"two"):
            reply.write(part)
            await asyncio.sleep(0)
        reply.end()

    async def half(self, reply):
        reply.write(b"half")
        raise ValueError

    async def flood(self, reply):
        while not reply.is_clogged:
            reply.write(bytes(1 << 16))
        self.clogged.set()
        try:
            await reply.drained()
        finally:
            self.drained.set()
        reply.end()


@pytest.fixture
def handler():
    return Handler()


@contextlib.asynccontextmanager
async def server(handler, **limits):
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    async with asyncio.timeout(LIMIT_S * 2), serving(handler, listener, Limits(**limits)):
        yield listener.getsockname()[1]


class Client:
    """One connection, and the replies that come on it."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.write = writer.write
        self.drain = writer.drain

    async def head(self):
        """Status and headers."""
        lines = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        return int(lines[0].split()[1]), dict(line.split(b": ", 1) for line in lines[1:])

    async def reply(self):
        """Status, headers and body."""
        status, headers = await self.head()
        if b"content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers[b"content-length"]))
        if b"transfer-encoding" not in headers:
            return status, headers, await self.reader.read()
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"
        return status, headers, body

    async def ask(self, data):
        """Status and what the handler was asked."""
        self.write(data)
        status, _, body = await self.reply()
        return status, json.loads(body)


@contextlib.asynccontextmanager
async def connected(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("wire", [POST, CHUNKED], ids=["length", "chunked"])
async def test_a_request_may_come_byte_by_byte_and_its_connection_is_kept(handler, wire):
    async with server(handler) as port, connected(port) as client:
        for _ in range(2):
            for at in range(len(wire)):
                client.write(wire[at : at + 1])
                await client.drain()
                await asyncio.sleep(0)
            status, headers, body = await client.reply()
            assert (status, json.loads(body)) == (200, ["POST", "/x", "", "hello"])
            assert b"connection" not in headers


async def test_of_equal_headers_the_first_counts_and_names_have_no_case(handler):
    async with server(handler) as port, connected(port) as client:
        await client.ask(get("/y?b=2", "X-Who: me", "x-WHO: you"))
    (request,) = handler.requests
    assert (request.path, request.query, request.header(b"x-who"), request.header(b"x-none")) == (
        "/y",
        b"b=2",
        "me",
        "",
    )
    assert request.peer == "127.0.0.1"


async def test_requests_sent_at_once_are_answered_one_after_the_other(handler):
    async with server(handler) as port, connected(port) as client:
        client.write(get("/wait") + POST + get("/stream") + get("/last"))
        await handler.began.wait()
        assert [request.path for request in handler.requests] == ["/wait"]
        handler.go_on.set()
        assert [(await client.reply())[0] for _ in range(4)] == [200] * 4
    assert [request.path for request in handler.requests] == ["/wait", "/x", "/stream", "/last"]


async def test_a_stream_is_chunked_and_its_connection_is_kept(handler):
    async with server(handler) as port, connected(port) as client:
        for _ in range(2):
            client.write(get("/stream"))
            status, headers, body = await client.reply()
            assert (status, headers[b"x-a"], body) == (200, b"b", b"onetwo")


async def test_an_old_client_gets_a_stream_without_chunks_and_is_closed(handler):
    async with server(handler) as port, connected(port) as client:
        client.write(get("/stream", version="1.0"))
        status, headers, body = await client.reply()
        assert (status, headers[b"connection"], body) == (200, b"close", b"onetwo")
        assert b"transfer-encoding" not in headers


@pytest.mark.parametrize("path", ["/x", "/stream"])
async def test_head_has_a_head_only(handler, path):
    async with server(handler) as port, connected(port) as client:
        client.write(get(path).replace(b"GET", b"HEAD"))
        assert (await client.head())[0] == 200
        assert await client.ask(POST) == (200, ["POST", "/x", "", "hello"])


async def test_a_client_that_asks_is_told_to_go_on(handler):
    async with server(handler) as port, connected(port) as client:
        client.write(b"POST /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        assert (await client.head())[0] == 100
        assert await client.ask(b"hello") == (200, ["POST", "/x", "", "hello"])


@pytest.mark.parametrize("head", ["Connection: Upgrade, HTTP2-Settings", "Connection: Upgrade, close"])
@pytest.mark.parametrize("wire", [POST, CHUNKED], ids=["length", "chunked"])
async def test_an_offer_to_speak_another_protocol_is_ignored(handler, wire, head):
    wire = wire.replace(b"Host: h", b"Host: h\r\n%b\r\nUpgrade: h2c" % head.encode())
    async with server(handler) as port, connected(port) as client:
        client.write(wire + (b"" if "close" in head else POST))
        status, given, body = await client.reply()
        assert (status, json.loads(body)) == (200, ["POST", "/x", "", "hello"])
        assert (b"connection" in given) == ("close" in head)
        if "close" not in head:
            assert json.loads((await client.reply())[2])[3] == "hello"


@pytest.mark.parametrize("request_line", [get("/x", "Connection: close"), b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n"])
async def test_a_connection_that_will_not_be_used_again_is_closed(handler, request_line):
    async with server(handler, linger_s=SOON_S) as port, connected(port) as client:
        client.write(request_line)
        status, given, _ = await client.reply()
        assert (status, given[b"connection"]) == (200, b"close")
        assert await client.reader.read() == b""


@pytest.mark.parametrize("wire", [POST, ENDLESS], ids=["length", "chunks"])
async def test_a_body_that_is_too_large_is_refused_before_it_ends(handler, wire):
    async with server(handler, max_body_bytes=4, linger_s=SOON_S) as port, connected(port) as client:
        client.write(wire[:-2])
        status, headers, _ = await client.reply()
        assert (status, headers[b"connection"]) == (413, b"close")
        client.write(b"x" * 100)
        assert await client.reader.read() == b""
    assert handler.requests[0].body == b""


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (get("/x", *(f"A{n}: {'a' * 100}" for n in range(MAX_HEAD_BYTES // 100))), 431),
        (CHUNKED[:-2] + b"X: " + b"a" * (MAX_HEAD_BYTES + (1 << 18)), 431),
        (b"GET /x HTTP/1.1\r\nX: " + b"a" * (MAX_HEAD_BYTES + 1), 431),
        (b"GET /" + b"a" * (MAX_HEAD_BYTES + 1), 431),
    ],
    ids=[
        "no HTTP",
        "two lengths",
        "two hosts",
        "no host",
        "coded",
        "many headers",
        "large trailer",
        "large header",
        "large path",
    ],
)
async def test_what_is_no_request_never_reaches_the_handler(handler, wire, expected):
    async with server(handler, linger_s=SOON_S) as port, connected(port) as client:
        client.write(wire)
        status, headers, _ = await client.reply()
        assert (status, headers[b"connection"]) == (expected, b"close")
        assert await client.reader.read() == b""
    assert handler.requests == []


@pytest.mark.parametrize(
    ("wire", "limit"),
    [(b"", "idle_s"), (b"GET /x HT", "head_s"), (POST[:-1], "body_s"), (b"POST /x HTTP/1.1\r\nHo", "head_s")],
    ids=["nothing", "part of a head", "part of a body", "part of a header"],
)
async def test_a_client_that_is_too_slow_is_closed(handler, wire, limit):
    async with server(handler, **{limit: SOON_S}) as port, connected(port) as client:
        client.write(wire)
        with contextlib.suppress(ConnectionError):
            assert await client.reader.read() == b""
    assert handler.requests == []


async def test_a_request_that_takes_long_to_answer_is_not_idle(handler):
    async with server(handler, idle_s=SOON_S, head_s=SOON_S, body_s=SOON_S) as port, connected(port) as client:
        client.write(get("/wait"))
        await handler.began.wait()
        asyncio.get_running_loop().call_later(SOON_S * 4, handler.go_on.set)
        assert (await client.reply())[0] == 200
        assert await client.reader.read() == b""


async def test_a_client_that_leaves_cancels_its_request(handler):
    async with server(handler) as port:
        async with connected(port) as client:
            client.write(get("/wait"))
            await handler.began.wait()
        await handler.cancelled.wait()


async def test_a_client_that_does_not_read_holds_up_the_writer(handler):
    async with server(handler) as port, connected(port) as client:
        client.write(get("/flood"))
        await handler.clogged.wait()
        assert not handler.drained.is_set()
        _, _, body = await client.reply()
        assert set(body) == {0}
        assert await client.ask(POST) == (200, ["POST", "/x", "", "hello"])


async def test_a_client_that_leaves_unread_bytes_behind_frees_the_writer(handler):
    async with server(handler) as port:
        async with connected(port) as client:
            client.write(get("/flood"))
            await handler.clogged.wait()
        await handler.drained.wait()


async def test_a_handler_that_fails_is_a_500_or_a_stream_without_an_end(handler):
    async with server(handler) as port, connected(port) as client:
        client.write(get("/fail"))
        assert (await client.reply())[0] == 500
        client.write(get("/half"))
        assert (await client.head())[0] == 200
        assert await client.reader.read() == b"4\r\nhalf\r\n"


async def test_a_server_that_stops_lets_requests_end_and_closes_idle_connections(handler):
    async with contextlib.AsyncExitStack() as clients:
        async with server(handler) as port:
            idle = await clients.enter_async_context(connected(port))
            busy = await clients.enter_async_context(connected(port))
            assert (await idle.ask(POST))[0] == 200
            handler.began.clear()
            busy.write(get("/wait"))
            await handler.began.wait()
            asyncio.get_running_loop().call_later(SOON_S, handler.go_on.set)
        status, headers, _ = await busy.reply()
        assert (status, headers[b"connection"]) == (200, b"close")
        assert await busy.reader.read() == await idle.reader.read() == b""
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_a_server_that_stops_delivers_what_it_has_written(handler):
    async with contextlib.AsyncExitStack() as stack:
        async with server(handler, stop_s=LIMIT_S) as port:
            client = await stack.enter_async_context(connected(port))
            client.write(get("/large"))
            await handler.began.wait()
            reading = asyncio.create_task(client.reply())
        assert len((await reading)[2]) == LARGE


async def test_a_client_that_never_reads_does_not_keep_its_connection(handler, monkeypatch):
    lost, connection_lost = asyncio.Event(), _Connection.connection_lost

    def losing(connection, error):
        connection_lost(connection, error)
        lost.set()

    monkeypatch.setattr(_Connection, "connection_lost", losing)
    async with server(handler, idle_s=SOON_S, stall_s=SOON_S) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(get("/large"))
            await lost.wait()
    assert handler.began.is_set()


async def test_a_server_that_stops_cancels_what_goes_on_for_too_long(handler):
    async with contextlib.AsyncExitStack() as clients:
        async with server(handler, stop_s=SOON_S) as port:
            client = await clients.enter_async_context(connected(port))
            client.write(get("/wait"))
            await handler.began.wait()
        assert handler.cancelled.is_set()
        assert await client.reader.read() == b""


async def test_requests_before_one_that_is_refused_are_answered_first(handler):
    async with server(handler, linger_s=SOON_S) as port, connected(port) as client:
        client.write(POST * 3000 + b"nonsense\r\n\r\n")
        for _ in range(3000):
            assert (await client.reply())[0] == 200
        assert (await client.reply())[0] == 400
        assert await client.reader.read() == b""


async def test_the_bytes_of_a_body_do_not_count_as_the_next_head(handler):
    body = b"b" * (2 * MAX_HEAD_BYTES)
    first = b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with server(handler) as port, connected(port) as client:
        client.write(first + POST[:40])
        assert (await client.reply())[0] == 200
        assert await client.ask(POST[40:]) == (200, ["POST", "/x", "", "hello"])


async def test_a_client_that_takes_nothing_for_too_long_is_cut_off(handler):
    async with server(handler, stall_s=SOON_S) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(get("/flood"))
            await handler.drained.wait()


async def test_a_client_that_sends_requests_and_reads_no_reply_is_not_read_further(handler):
    async with server(handler) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            request, sent, before = get("/" + "a" * 40_000), 0, -1
            while before != sent:
                before = sent
                with contextlib.suppress(BlockingIOError):
                    while True:
                        sent += client.send(request[sent % len(request) :])
                await asyncio.sleep(SOON_S)
        assert sent < 64 << 20
        answered = len(handler.requests)
    assert answered * len(request) < 32 << 20


async def test_a_client_that_leaves_while_its_next_request_waits_is_noticed(handler):
    async with server(handler) as port:
        async with connected(port) as client:
            client.write(get("/wait") + POST)
            await handler.began.wait()
        await handler.cancelled.wait()


async def test_a_target_may_name_its_server(handler):
    async with server(handler) as port, connected(port) as client:
        assert (await client.ask(get("http://h:1/x?y")))[1][1:3] == ["/x", "y"]
        assert (await client.ask(get("http://h")))[1][1] == "/"
