"""Starts the WAN relay: `python -m engine_agents.wan --port P --admin-port Q --config links.json`."""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import uvloop
from aiohttp import web

from control.settings import Settings
from control.site_secret import SiteSecret
from engine_agents.wan.admin import build_admin_app
from engine_agents.wan.config import RelayConfig, load_config
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.relay import Relay


def build_relay(config: RelayConfig) -> Relay:
    """A relay with the links of its configuration."""
    links = [ShapedLink(link.name, link.source, link.target, link.shape()) for link in config.links]
    return Relay(links, config.networks())


async def serve(arguments: argparse.Namespace, config: RelayConfig, secret: SiteSecret) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    relay = build_relay(config)
    host, port = await relay.start(arguments.host, arguments.port)
    runner = web.AppRunner(build_admin_app(relay, secret), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        await web.TCPSite(runner, arguments.host, arguments.admin_port).start()
        admin_host, admin_port = runner.addresses[0][:2]
        sys.stdout.write(f"ready {host}:{port}\nadmin {admin_host}:{admin_port}\n")
        sys.stdout.flush()
        await stop.wait()
    finally:
        await relay.close()
        await runner.cleanup()


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m engine_agents.wan", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True, help="data port; 0 picks a free one")
    parser.add_argument("--admin-port", type=int, required=True, help="admin HTTP port; 0 picks a free one")
    parser.add_argument("--config", type=Path, required=True, help="links.json")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        config = load_config(arguments.config)
    except (OSError, ValueError) as error:
        parser.error(f"{arguments.config}: {error}")
    secret = SiteSecret.of(Settings.from_environment())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(arguments, config, secret))


if __name__ == "__main__":
    main()
