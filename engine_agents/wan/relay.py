"""The relay's data port: reads a puller's preamble, connects to the target, hands both sockets to the link."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable

import msgspec

from engine_agents.wan.config import Network, first_allowed, parse_preamble, split_address
from engine_agents.wan.endpoint import Endpoint
from engine_agents.wan.flow import Flow
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.probe import PROBE_TARGET, ProbeSource

MAX_PREAMBLE_BYTES = 4096
PREAMBLE_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
MAX_FLOWS_PER_LINK = 1024
SOURCE_WINDOW_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """The relay will not carry this transfer; the text goes to the puller."""


class Relay:
    """Accepts pullers and starts their flows."""

    def __init__(self, links: Iterable[ShapedLink], networks: Iterable[Network]) -> None:
        self.links = {link.name: link for link in links}
        self._networks = tuple(networks)
        self._server: asyncio.Server | None = None
        self._handshakes: dict[asyncio.Task[None], Endpoint] = {}
        self._probes = ProbeSource()

    @property
    def handshakes(self) -> int:
        """Pullers that are connected but not carried yet."""
        return len(self._handshakes)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address in use, which matters for port 0."""
        self._server = await asyncio.get_running_loop().create_server(self._accept, host, port, backlog=1024)
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        """Stop listening and end all flows at once."""
        if self._server is not None:
            self._server.close()
        for task, puller in list(self._handshakes.items()):
            task.cancel()
            puller.abort()
        for link in self.links.values():
            link.close()
        await self._probes.close()
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self) -> Endpoint:
        puller = Endpoint()
        task = asyncio.get_running_loop().create_task(self._handshake(puller))
        self._handshakes[task] = puller
        task.add_done_callback(self._handshakes.pop)
        return puller

    async def _handshake(self, puller: Endpoint) -> None:
        """Read the preamble, connect, answer. A puller that leaves meanwhile cancels it."""
        puller.on_early_loss = _cancel_current_task()
        try:
            async with asyncio.timeout(PREAMBLE_TIMEOUT_S):
                line = await puller.read_line(MAX_PREAMBLE_BYTES)
            await self._carry(puller, line)
        except (RefusedError, TimeoutError, ValueError) as error:
            text = str(error) or "no preamble in time"
            logger.warning("transfer refused: %s", text)
            if not puller.is_lost:
                puller.transport.write(msgspec.json.encode({"ok": False, "error": text}) + b"\n")
                puller.transport.close()
        except asyncio.CancelledError:
            puller.abort()
            raise

    async def _carry(self, puller: Endpoint, line: bytes) -> None:
        preamble = parse_preamble(line)
        link = self.links.get(preamble.link)
        if link is None:
            raise RefusedError("unknown link")
        if len(link.flows) >= MAX_FLOWS_PER_LINK:
            raise RefusedError("too many flows on this link")
        source = await self._source_of(preamble.target)
        try:
            await asyncio.sleep(link.shape.rtt_s)  # what the handshake of a connection across the link would take
        except asyncio.CancelledError:
            source.abort()
            raise
        if source.is_lost:
            raise RefusedError("target closed the connection")
        puller.transport.write(b'{"ok":true}\n')
        flow = Flow(
            link.transfer_for(preamble.transfer_id, preamble.pipeline, preamble.service_class),
            puller,
            source,
            clock=link.clock,
            wake=link.wake,
            on_closed=link.remove,
        )
        link.add(flow)

    async def _source_of(self, target: str) -> Endpoint:
        """The node that KV comes from, or the relay's own source for whoever measures the link."""
        if target != PROBE_TARGET:
            return await self._connect(target)
        host, port = split_address(await self._probes.address())
        return await _connect_endpoint(host, port)

    async def _connect(self, target: str) -> Endpoint:
        """Connect to an allowed target; the address checked is the address connected to."""
        host, port = split_address(target)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                address = first_allowed((str(entry[4][0]) for entry in found), self._networks)
                if address is None:
                    raise RefusedError("target is outside the allowed networks")
                return await _connect_endpoint(address, port)
        except TimeoutError:
            raise RefusedError("target did not answer in time") from None
        except OSError:
            raise RefusedError("target cannot be reached") from None


async def _connect_endpoint(address: str, port: int) -> Endpoint:
    """Connect with a bounded receive window, so that a slow link is felt by the source and not by our kernel."""
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.settimeout(0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOURCE_WINDOW_BYTES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, (address, port))
        _, endpoint = await loop.create_connection(Endpoint, sock=sock)
    except BaseException:
        sock.close()
        raise
    return endpoint


def _cancel_current_task() -> Callable[[], object]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a handshake runs in a task")
    return task.cancel
