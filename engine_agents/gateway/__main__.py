"""Starts a gateway: `python -m engine_agents.gateway --host 127.0.0.1 --port 8000 --site ams --name ams-gw-01`."""

import argparse
import gc
import logging
import socket
import sys

import uvloop

from control.settings import Settings
from control.site_secret import SiteSecret
from control.tracing import open_tracing
from engine_agents.gateway.app import GatewayApp
from engine_agents.gateway.config import ConfigError
from engine_agents.gateway.server import listen, running_gateway, serve_until_stopped
from engine_agents.gateway.telemetry import RedisStream

_GC_THRESHOLDS = (50_000, 20, 100)
"""Requests leave hardly any cycles behind; by default, looking for them takes a twentieth of the gateway's time."""


def main() -> int:
    """Serve until told to stop; 1 if it could not start."""
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        listener = listen(arguments.host, arguments.port)
    except OSError as error:
        print(f"cannot listen on {arguments.host}:{arguments.port}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 1
    try:
        uvloop.run(_serve(arguments, Settings.from_environment(), listener))
    except (ConfigError, OSError) as error:
        print(f"cannot start: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


async def _serve(arguments: argparse.Namespace, settings: Settings, listener: socket.socket) -> None:
    stream = RedisStream(settings.redis_url, arguments.site)
    secret = SiteSecret.of(settings)
    async with running_gateway(
        arguments.name,
        arguments.site,
        data_dir=settings.data_dir,
        site_secret=secret,
        stream=stream,
        tracing=open_tracing(settings.otlp_endpoint, "pdd-gateway", arguments.name),
    ) as gateway:
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        await serve_until_stopped(GatewayApp(gateway, secret), listener)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine_agents.gateway", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--site", required=True)
    parser.add_argument("--name", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
