"""The least a proxy in Python can do, as the floor of a benchmark: whole requests in, replies passed on as they are."""

import argparse
import asyncio
import socket
from collections import deque
from urllib.parse import SplitResult, urlsplit

import httptools
import uvloop

_HEAD = b"POST %b%b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Upstream(asyncio.Protocol):
    """One kept connection to the backend."""

    def __init__(self, idle: "deque[Upstream]") -> None:
        self._idle = idle
        self.client: Client | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Keep the transport."""
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, client: "Client", request: list[bytes]) -> None:
        """Send a request for a client."""
        self.client = client
        self._parser = httptools.HttpResponseParser(self)
        self.transport.writelines(request)

    def data_received(self, data: bytes) -> None:
        """Pass on."""
        if self.client is not None:
            self.client.transport.write(data)
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """Free for the next request."""
        self.client = None
        self._idle.append(self)


class Client(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, backend: SplitResult, idle: deque[Upstream]) -> None:
        self._backend = backend
        self._idle = idle
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Keep the transport."""
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self._parser.feed_data(data)

    def on_url(self, part: bytes) -> None:
        """Part of the URL."""
        self._url += part

    def on_body(self, part: bytes) -> None:
        """Part of the body."""
        self._body.append(part)

    def on_message_complete(self) -> None:
        """Ask the backend the same."""
        backend, size = self._backend, sum(map(len, self._body))
        head = _HEAD % (backend.path.encode(), self._url, backend.netloc.encode(), size)
        request, self._url, self._body = [head, *self._body], b"", []
        if self._idle:
            self._idle.pop().ask(self, request)
        else:
            task = asyncio.ensure_future(self._connect(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, request: list[bytes]) -> None:
        loop, backend = asyncio.get_running_loop(), self._backend
        _, upstream = await loop.create_connection(lambda: Upstream(self._idle), backend.hostname, backend.port)
        upstream.ask(self, request)


async def serve(backend: str) -> None:
    idle: deque[Upstream] = deque()
    target = urlsplit(backend)
    server = await asyncio.get_running_loop().create_server(lambda: Client(target, idle), "127.0.0.1", 0, backlog=2048)
    print(f"ready http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend", help="base URL of the backend")
    uvloop.run(serve(parser.parse_args().backend))
