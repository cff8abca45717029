"""Runs nodes: engine, KV port and HTTP face up together, and down together on SIGTERM or cancellation."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import uvicorn
from starlette.types import ASGIApp

from control.site_secret import SiteSecret
from control.tracing import Tracing
from engine_agents.nodes.dialect_app import fleet_app, node_app
from engine_agents.nodes.engine import Engine
from engine_agents.nodes.node import Node, NodeLimits

BACKLOG = 1024
SHUTDOWN_S = 1
END_AFTER_S = 0.1


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node to host; `kv_port` 0 takes a free one."""

    engine: Engine
    name: str
    kv_host: str = "127.0.0.1"
    kv_port: int = 0
    limits: NodeLimits = field(default_factory=NodeLimits)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which ends the process before anything else could be closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: ASGIApp, *, host: str, port: int) -> AsyncIterator[int]:
    """Serve an ASGI application while the context is open; gives the port (0 took a free one).

    Raises:
        OSError: the address cannot be bound.
    """
    listener = _listen(host, port)
    config = uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
        timeout_keep_alive=30,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                await task
                raise OSError(f"the server on {host}:{port} ended at once")
            await asyncio.sleep(0.005)
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        await task
        listener.close()


@asynccontextmanager
async def running_node(spec: NodeSpec) -> AsyncIterator[Node]:
    """A node with its engine started and its KV port open, while the context is open."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(spec.engine.close)
        await spec.engine.start()
        node = Node(spec.engine, name=spec.name, limits=spec.limits)
        stack.push_async_callback(node.close)
        await node.start(spec.kv_host, spec.kv_port)
        yield node


async def serve_node(
    engine: Engine,
    *,
    name: str,
    host: str,
    port: int,
    kv_host: str,
    kv_port: int,
    site_secret: SiteSecret,
    limits: NodeLimits | None = None,
    tracing: Tracing | None = None,
) -> None:
    """Run one node at the root of its own port until SIGTERM, SIGINT or cancellation; prints `ready <url>`.

    Raises:
        OSError: an address cannot be bound.
    """
    spec = NodeSpec(engine, name, kv_host, kv_port, limits or NodeLimits())
    async with (
        _closing(tracing),
        running_node(spec) as node,
        serving(node_app(node, site_secret, end_soon, tracing), host=host, port=port) as bound,
    ):
        announce(f"http://{host}:{bound}")
        await stopped()


async def serve_nodes(
    specs: Sequence[NodeSpec], *, host: str, port: int, site_secret: SiteSecret, tracing: Tracing | None = None
) -> None:
    """Run many nodes in this process, each under /nodes/<name>; prints one `ready <url>` for each.

    Raises:
        OSError: an address cannot be bound.
    """
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_closing(tracing))
        nodes = [await stack.enter_async_context(running_node(spec)) for spec in specs]
        end_process = end_soon if len(nodes) == 1 else None
        apps: dict[str, ASGIApp] = {node.name: node_app(node, site_secret, end_process, tracing) for node in nodes}
        bound = await stack.enter_async_context(serving(fleet_app(apps), host=host, port=port))
        for node in nodes:
            announce(f"http://{host}:{bound}/nodes/{node.name}")
        await stopped()


@asynccontextmanager
async def _closing(tracing: Tracing | None) -> AsyncIterator[None]:
    """Send the last spans at the end."""
    try:
        yield
    finally:
        if tracing is not None:
            await asyncio.to_thread(tracing.close)


def end_soon() -> None:
    """Have this process end as if it had been asked to, once the answer that said so is out."""
    asyncio.get_running_loop().call_later(END_AFTER_S, os.kill, os.getpid(), signal.SIGTERM)


def announce(url: str, write: Callable[[str], object] = sys.stdout.write) -> None:
    """Tell whoever started this process that a node listens."""
    write(f"ready {url}\n")
    sys.stdout.flush()


async def stopped() -> None:
    """Returns when the process is told to stop."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.create_server((host, port), backlog=BACKLOG)
    listener.setblocking(False)  # noqa: FBT003 - the standard library's own signature
    return listener
