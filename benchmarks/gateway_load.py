"""Closed-loop load over raw connections, in a process of its own: `python benchmarks/gateway_load.py '{"url": …}'`.

Prints `{"requests", "errors", "took_s", "first_s": {"p50", "p99"}, "whole_s": {"p50", "p99"}}`: seconds from sending to
the first byte of the reply's body and to its end.
"""

import asyncio
import json
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools
import uvloop


@dataclass
class Load:
    """What to send for how long, and what came of it. `unique_at` is where in the body each request differs."""

    path: str
    host: str
    prefix: bytes
    suffix: bytes
    until_s: float
    count: int = 0
    errors: int = 0
    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)

    def next_request(self) -> list[bytes]:
        """A request whose prompt begins like no other's."""
        self.count += 1
        unique = b"%d" % (10_000 + self.count)
        length = len(self.prefix) + len(unique) + len(self.suffix)
        head = f"POST {self.path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        return [f"{head}Content-Length: {length}\r\n\r\n".encode(), self.prefix, unique, self.suffix]


class Client(asyncio.Protocol):
    """One connection that sends its next request as soon as it has the last reply."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.is_done = asyncio.get_running_loop().create_future()
        self._first_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Keep the transport."""
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send()

    def _send(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._first_s = None
        self._sent_s = time.perf_counter()
        self._transport.writelines(self._load.next_request())

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self._parser.feed_data(data)

    def on_body(self, _: bytes) -> None:
        """Part of the body."""
        if self._first_s is None:
            self._first_s = time.perf_counter() - self._sent_s

    def on_message_complete(self) -> None:
        """All of it is here."""
        if self._parser.get_status_code() == 200 and self._first_s is not None:
            self._load.first_s.append(self._first_s)
            self._load.whole_s.append(time.perf_counter() - self._sent_s)
        else:
            self._load.errors += 1
        if time.perf_counter() < self._load.until_s:
            asyncio.get_running_loop().call_soon(self._send)
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        """The other side has gone."""
        if not self.is_done.done():
            self.is_done.set_result(None)


async def drive(spec: dict[str, Any]) -> dict[str, Any]:
    url = urlsplit(spec["url"])
    began_s = time.perf_counter()
    load = Load(
        url.path, url.netloc, spec["prefix"].encode(), spec["suffix"].encode(), began_s + spec["seconds"], spec["first"]
    )
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(spec["streams"]):
        _, client = await loop.create_connection(lambda: Client(load), url.hostname, url.port)
        clients.append(client)
    await asyncio.gather(*(client.is_done for client in clients))
    return {
        "requests": len(load.whole_s),
        "errors": load.errors,
        "took_s": time.perf_counter() - began_s,
        "first_s": percentiles(load.first_s),
        "whole_s": percentiles(load.whole_s),
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """The values below which half and nearly all lie; none of no values."""
    ordered = sorted(values)
    return {f"p{rank}": ordered[min(len(ordered) - 1, rank * len(ordered) // 100)] for rank in (50, 99) if ordered}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(drive(json.load(sys.stdin)))))
