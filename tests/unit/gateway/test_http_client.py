"""The client that talks to engines: how it reads replies, which connections it keeps and which it closes."""

import asyncio
import contextlib
import socket
import struct

import pytest

from engine_agents.gateway.http_client import HttpClient
from engine_agents.gateway.http_reply import MAX_UNREAD_BYTES, BrokenOffError

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LIMIT_S = 10.0


class Server:
    """Answers each request with the next script: bytes to send, seconds to wait, or None to hang up."""

    def __init__(self):
        self.scripts = []
        self.requests = []
        self.connections = 0
        self.left = asyncio.Event()
        self.go_on = asyncio.Event()
        self._tasks = set()

    async def serve(self, reader, writer):
        self.connections += 1
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    self.requests.append((head, await reader.readexactly(length)))
                    for step in self.scripts.pop(0):
                        if step is None:
                            return
                        if step == "wait":
                            await self.go_on.wait()
                        elif step == "until the client leaves":
                            assert await reader.read(1) == b""
                            self.left.set()
                            return
                        else:
                            writer.write(step)
                            await writer.drain()
                            await asyncio.sleep(0)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def stop(self):
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def server():
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/base"
    yield server
    listener.close()
    await server.stop()
    await listener.wait_closed()


@pytest.fixture
async def client():
    client = HttpClient()
    yield client
    await client.close()
    assert not client.connections


async def send(client, server, body=(b"{}",), silence_s=LIMIT_S):
    return await client.send(server.url, "/v1/x", body, connect_s=LIMIT_S, silence_s=silence_s)


async def fetch(client, server, body=(b"{}",)):
    async with await send(client, server, body) as reply:
        return reply.status, await reply.read(LIMIT_S)


async def test_sends_the_body_in_parts_under_the_base_path(client, server):
    server.scripts = [[WHOLE]]
    assert await fetch(client, server, (b'{"a":', b"1", b"}")) == (200, b"hello")
    head, body = server.requests[0]
    assert head.startswith(b"POST /base/v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert body == b'{"a":1}'


@pytest.mark.parametrize(
    "wire",
    [
        WHOLE,
        CHUNKED_HEAD + b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WHOLE,
    ],
    ids=["length", "chunked", "after an interim reply"],
)
async def test_reads_a_reply_that_comes_byte_by_byte(client, server, wire):
    server.scripts = [[wire[at : at + 1] for at in range(len(wire))]] * 2
    assert await fetch(client, server) == (200, b"hello")
    assert await fetch(client, server) == (200, b"hello")
    assert server.connections == 1


async def test_a_body_without_a_length_ends_with_its_connection(client, server):
    server.scripts = [[b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", None]]
    assert await fetch(client, server) == (200, b"hello")


async def test_error_statuses_and_headers_are_given_as_they_are(client, server):
    server.scripts = [[b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}"]]
    async with await send(client, server) as reply:
        assert (reply.status, reply.headers[b"retry-after"]) == (503, b"7")
        assert await reply.read(LIMIT_S) == b"{}"


async def test_parts_of_a_stream_are_there_before_its_end(client, server):
    server.scripts = [[CHUNKED_HEAD, b"3\r\none\r\n", "wait", b"3\r\ntwo\r\n0\r\n\r\n"]]
    async with await send(client, server) as reply:
        assert await reply.read_some(LIMIT_S) == b"one"
        server.go_on.set()
        assert await reply.read_some(LIMIT_S) == b"two"
        assert await reply.read_some(LIMIT_S) == b""


async def test_concurrent_requests_have_their_own_connections_which_are_kept(client, server):
    server.scripts = [["wait", WHOLE], ["wait", WHOLE], [WHOLE]]
    both = [asyncio.create_task(fetch(client, server)) for _ in range(2)]
    while len(server.requests) < 2:
        await asyncio.sleep(0.001)
    server.go_on.set()
    await asyncio.gather(*both)
    await fetch(client, server)
    assert server.connections == 2


async def test_a_connection_is_not_kept_where_the_server_says_so(client, server):
    server.scripts = [[b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"], [WHOLE]]
    await fetch(client, server)
    await fetch(client, server)
    assert server.connections == 2


async def test_a_request_is_sent_again_where_an_idle_server_had_hung_up(client, server):
    server.scripts = [[WHOLE], [None], [WHOLE]]
    await fetch(client, server)
    assert await fetch(client, server) == (200, b"hello")  # the second script hangs up without a byte
    assert (server.connections, len(server.requests)) == (2, 3)


async def test_a_request_is_not_sent_again_once_its_reply_has_begun(client, server):
    server.scripts = [[WHOLE], [b"HTTP/1.1 200", None]]
    await fetch(client, server)
    with pytest.raises(BrokenOffError):
        await send(client, server)
    assert len(server.requests) == 2


async def test_a_request_on_a_new_connection_is_not_sent_again(client, server):
    server.scripts = [[None]]
    with pytest.raises(BrokenOffError):
        await send(client, server)
    assert len(server.requests) == 1


async def test_connections_idle_for_too_long_are_left(server):
    client = HttpClient(keep_idle_s=-1.0)
    server.scripts = [[WHOLE], [WHOLE]]
    await fetch(client, server)
    await fetch(client, server)
    assert server.connections == 2
    await client.close()


async def test_a_lost_body_gives_what_came_and_then_fails(client, server):
    server.scripts = [[CHUNKED_HEAD + b"3\r\none\r\n", None]]
    async with await send(client, server) as reply:
        assert await reply.read_some(LIMIT_S) == b"one"
        with pytest.raises(BrokenOffError):
            await reply.read_some(LIMIT_S)


async def test_what_is_not_http_fails(client, server):
    server.scripts = [[b"SSH-2.0-nonsense\r\n\r\n", "until the client leaves"]]
    with pytest.raises(BrokenOffError, match="not HTTP"):
        await send(client, server)
    await server.left.wait()


@pytest.mark.parametrize("before", [(), (CHUNKED_HEAD,)], ids=["before the head", "before the body"])
async def test_silence_fails_and_closes_the_socket(client, server, before):
    server.scripts = [[*before, "until the client leaves"]]
    with pytest.raises(TimeoutError):
        async with await send(client, server, silence_s=0.05) as reply:
            await reply.read_some(0.05)
    await server.left.wait()


async def test_a_shorter_silence_counts_after_a_longer_one(client, server):
    server.scripts = [[CHUNKED_HEAD + b"3\r\none\r\n", "until the client leaves"]]
    async with await send(client, server) as reply:
        await reply.read_some(LIMIT_S)
        with pytest.raises(TimeoutError):
            await reply.read_some(0.05)


async def test_closing_a_stream_closes_its_socket(client, server):
    server.scripts = [[CHUNKED_HEAD + b"3\r\none\r\n", "until the client leaves"]]
    async with await send(client, server) as reply:
        await reply.read_some(LIMIT_S)
    await server.left.wait()


@pytest.mark.parametrize("before", [(), (CHUNKED_HEAD,)], ids=["before the head", "before the body"])
async def test_cancelling_a_reader_closes_its_socket(client, server, before):
    server.scripts = [[*before, "until the client leaves"]]
    reading = asyncio.create_task(fetch(client, server))
    while not server.requests:
        await asyncio.sleep(0.001)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await server.left.wait()


async def test_a_stream_about_to_end_keeps_its_connection_once_it_has(client, server):
    server.scripts = [[CHUNKED_HEAD + b"6\r\n[DONE]\r\n", "wait", b"0\r\n\r\n"], [WHOLE]]
    reply = await send(client, server)
    assert await reply.read_some(LIMIT_S) == b"[DONE]"
    reply.close(is_ending=True)
    server.go_on.set()
    while not reply.is_complete:
        await asyncio.sleep(0.001)
    await fetch(client, server)
    assert server.connections == 1


async def test_a_stream_that_only_says_it_ends_is_closed_after_all(client, server):
    server.scripts = [[CHUNKED_HEAD + b"6\r\n[DONE]\r\n", "until the client leaves"]]
    reply = await send(client, server)
    await reply.read_some(LIMIT_S)
    reply.close(is_ending=True)
    await server.left.wait()


async def test_bytes_that_nobody_asked_for_end_a_kept_connection(client, server):
    server.scripts = [[WHOLE + b"more", "until the client leaves"], [WHOLE]]
    await fetch(client, server)
    assert await fetch(client, server) == (200, b"hello")
    assert server.connections == 2


async def test_a_slow_reader_stops_a_fast_server(client, server):
    part = bytes(MAX_UNREAD_BYTES)
    framed = b"%x\r\n%b\r\n" % (len(part), part)
    server.scripts = [[CHUNKED_HEAD, *[framed] * 64, b"0\r\n\r\n"]]
    reply = await send(client, server)
    await asyncio.sleep(0.05)
    first = await reply.read_some(LIMIT_S)
    assert len(first) < 16 * len(part)
    async with reply:
        assert len(first) + len(await reply.read(LIMIT_S)) == 64 * len(part)


async def test_a_server_that_is_not_there_fails(client):
    with pytest.raises(OSError):
        await client.send("http://127.0.0.1:1", "/", connect_s=LIMIT_S, silence_s=LIMIT_S)


async def test_closing_the_client_fails_who_still_waits(server):
    client = HttpClient()
    server.scripts = [["until the client leaves"]]
    waiting = asyncio.create_task(send(client, server))
    while not server.requests:
        await asyncio.sleep(0.001)
    await client.close()
    with pytest.raises(BrokenOffError):
        await waiting
    await server.left.wait()


@pytest.mark.parametrize("size", [5, 4 * MAX_UNREAD_BYTES], ids=["small", "larger than a stream may leave unread"])
async def test_a_whole_reply_is_here_when_it_is_given_and_its_connection_is_free(client, server, size):
    part = bytes(size // 5)
    wire = [CHUNKED_HEAD, *[b"%x\r\n%b\r\n" % (len(part), part)] * 5, b"0\r\n\r\n"]
    server.scripts = [wire, wire]
    for _ in range(2):
        reply = await client.send(server.url, "/", connect_s=LIMIT_S, silence_s=LIMIT_S, is_whole=True)
        assert (reply.status, reply.body) == (200, part * 5)
    assert server.connections == 1


async def test_a_whole_reply_that_breaks_off_is_none(client, server):
    server.scripts = [[CHUNKED_HEAD + b"3\r\none\r\n", None]]
    with pytest.raises(BrokenOffError):
        await client.send(server.url, "/", connect_s=LIMIT_S, silence_s=LIMIT_S, is_whole=True)


async def test_a_request_cancelled_when_its_whole_reply_is_here_leaves_the_next_one_alone(client, server):
    server.scripts = [["wait", WHOLE], [WHOLE]]
    first = asyncio.create_task(
        client.send(server.url, "/", (b"{}",), connect_s=LIMIT_S, silence_s=LIMIT_S, is_whole=True)
    )
    while not server.requests:
        await asyncio.sleep(0.001)
    (connection,) = client.connections
    server.go_on.set()
    while not connection.idle_since_s:
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert await fetch(client, server) == (200, b"hello")
    assert server.connections == 1


async def test_giving_a_server_up_fails_all_who_wait_for_it_and_asks_it_nothing_again(client, server):
    server.scripts = [[WHOLE], [CHUNKED_HEAD + b"3\r\none\r\n", "until the client leaves"], ["until the client leaves"]]
    await fetch(client, server)
    async with await send(client, server) as reply:
        await reply.read_some(LIMIT_S)
        waiting = asyncio.create_task(send(client, server))
        while len(server.requests) < 3:
            await asyncio.sleep(0.001)
        client.give_up(server.url)
        with pytest.raises(TimeoutError):
            await reply.read_some(LIMIT_S)
        with pytest.raises(TimeoutError):
            await waiting
    assert len(server.requests) == 3


class Sink:
    """Keeps parts; wants no more after those that are named, and fails at others."""

    def __init__(self, *, enough=(), bad=()):
        self.parts = []
        self._enough = enough
        self._bad = bad

    def __call__(self, part):
        self.parts.append(part)
        if part in self._bad:
            raise ValueError(part)
        return part not in self._enough


ONE, TWO, END = b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"


async def test_a_pumped_body_goes_part_by_part_to_its_sink(client, server):
    server.scripts = [[CHUNKED_HEAD + ONE, "wait", TWO, END], [WHOLE]]
    reply, sink = await send(client, server), Sink()
    asyncio.get_running_loop().call_later(0.02, server.go_on.set)
    assert await reply.pump(sink, LIMIT_S) is True
    assert sink.parts == [b"one", b"two"]
    await fetch(client, server)
    assert server.connections == 1


async def test_a_sink_that_has_enough_can_go_on_later(client, server):
    server.scripts = [[CHUNKED_HEAD, ONE, "wait", TWO + END]]
    reply, sink = await send(client, server), Sink(enough=[b"one"])
    assert await reply.pump(sink, LIMIT_S) is False
    assert sink.parts == [b"one"]
    server.go_on.set()
    assert await reply.pump(sink, LIMIT_S) is True
    assert sink.parts == [b"one", b"two"]


@pytest.mark.parametrize("first", [(), (ONE,)], ids=["what has come", "what comes"])
async def test_what_a_sink_raises_is_raised_to_the_reader(client, server, first):
    server.scripts = [[CHUNKED_HEAD, *first, TWO, "until the client leaves"]]
    async with await send(client, server) as reply:
        with pytest.raises(ValueError, match="two"):
            await reply.pump(Sink(bad=[b"two"]), LIMIT_S)
    await server.left.wait()


async def test_a_pumped_body_that_stops_or_breaks_off_fails(client, server):
    server.scripts = [[CHUNKED_HEAD, ONE, "until the client leaves"], [CHUNKED_HEAD, ONE, None]]
    for silence_s, error in ((0.05, TimeoutError), (LIMIT_S, BrokenOffError)):
        sink = Sink()
        async with await send(client, server) as reply:
            with pytest.raises(error):
                await reply.pump(sink, silence_s)
        assert sink.parts == [b"one"]


async def test_a_cancelled_reader_gets_nothing_more(client, server):
    server.scripts = [[CHUNKED_HEAD, ONE, "wait", TWO]]
    sink = Sink()

    async def read():
        async with await send(client, server) as reply:
            await reply.pump(sink, LIMIT_S)

    reading = asyncio.create_task(read())
    while not sink.parts:
        await asyncio.sleep(0.001)
    reading.cancel()
    server.go_on.set()
    await asyncio.gather(reading, return_exceptions=True)
    while client.connections:
        await asyncio.sleep(0.001)
    assert sink.parts == [b"one"]


async def test_a_second_reply_that_nobody_asked_for_changes_nothing_and_ends_the_connection(client, server):
    second = b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno"
    server.scripts = [[WHOLE + second], [WHOLE]]
    for _ in range(2):
        assert await fetch(client, server) == (200, b"hello")
    assert server.connections == 2


async def test_a_reply_without_a_length_that_is_reset_is_no_whole_reply(client):
    async def reset(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhal")
        await writer.drain()
        await reading.wait()
        now = struct.pack("ii", 1, 0)  # closing drops what is unsent and resets the connection
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        writer.transport.abort()

    reading = asyncio.Event()
    async with await asyncio.start_server(reset, "127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        async with await client.send(url, "/", connect_s=LIMIT_S, silence_s=LIMIT_S) as reply:
            assert await reply.read_some(LIMIT_S) == b"hal"
            reading.set()
            with pytest.raises(BrokenOffError):
                await reply.read_some(LIMIT_S)


async def test_a_whole_reply_that_is_larger_than_any_may_be_is_refused(client, server, monkeypatch):
    monkeypatch.setattr("engine_agents.gateway.http_reply.MAX_WHOLE_BYTES", 4)
    server.scripts = [[WHOLE]]
    with pytest.raises(BrokenOffError, match="too large"):
        await client.send(server.url, "/", (b"{}",), connect_s=LIMIT_S, silence_s=LIMIT_S, is_whole=True)
