"""Wires a gateway's parts and serves it until the process is told to stop."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from control.domain.policy import ServiceClass
from control.site_secret import SiteSecret
from control.stopping import cancel_until_done
from control.tracing import Tracing
from engine_agents.gateway.app import GatewayApp
from engine_agents.gateway.config import ConfigStore
from engine_agents.gateway.gateway import Gateway
from engine_agents.gateway.http_server import serving
from engine_agents.gateway.metrics import GatewayMetrics
from engine_agents.gateway.node_client import Deadlines, NodeClient
from engine_agents.gateway.spool import Spool
from engine_agents.gateway.state import GatewayState
from engine_agents.gateway.telemetry import Publisher, Stream
from engine_agents.gateway.watch import NodeWatch

BACKLOG = 2048
LAST_BATCH_S = 2.0


async def serve_until_stopped(app: GatewayApp, listener: socket.socket) -> None:
    """Serve; prints the address for whoever started the process, and ends on SIGTERM and SIGINT."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = listener.getsockname()[:2]
    try:
        async with serving(app, listener):
            print(f"ready http://{host}:{port}", flush=True)  # noqa: T201 - the starter waits for this line
            await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        OSError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)  # noqa: FBT003 - the socket module's own signature
    return listener


@asynccontextmanager
async def running_gateway(
    name: str,
    site: str,
    *,
    data_dir: Path,
    site_secret: SiteSecret,
    stream: Stream,
    deadlines: Deadlines | None = None,
    tracing: Tracing | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway with its client, its telemetry and its last configuration; all of it ends with the context.

    Raises:
        ConfigError: the configuration on disk is damaged.
        OSError: the data folder cannot be used.
    """
    folder = data_dir / "gateway"
    metrics = GatewayMetrics(site)
    state = GatewayState(on_transfer=metrics.count_transfer)
    configs = ConfigStore(folder / "config.json")
    configs.load()
    if configs.running is not None:
        state.adopt(configs.running)
    client = NodeClient(site_secret, deadlines)

    def vitals() -> tuple[int, int]:
        return (configs.running.revision if configs.running else 0), state.requests_in_flight

    def classes() -> Mapping[str, ServiceClass]:
        return configs.running.policy.classes if configs.running else {}

    spool = Spool(folder / "spool")
    publisher = Publisher(name, site, stream=stream, spool=spool, vitals=vitals, classes=classes)
    gateway = Gateway(name, site, configs, state, client, metrics, publisher, tracing)
    tasks = [asyncio.create_task(publisher.run()), asyncio.create_task(NodeWatch(client, state, configs).run())]
    try:
        yield gateway
    finally:
        await state.close()
        await cancel_until_done(*tasks, every_s=LAST_BATCH_S)
        await client.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close)
