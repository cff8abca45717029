"""`python -m engine_agents.nodes.emulated --config nodes.json`: many emulated nodes in one process."""

import argparse
import logging
from pathlib import Path

import uvloop

from control.settings import Settings
from control.site_secret import SiteSecret
from control.tracing import open_tracing
from engine_agents.nodes.emulated.config import load_host
from engine_agents.nodes.serve import serve_nodes


def main() -> None:
    """Host the nodes of a file until told to stop; prints one `ready <url>` per node."""
    parser = argparse.ArgumentParser(prog="engine_agents.nodes.emulated", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file: host, port, model, nodes")
    parser.add_argument("--host", help="instead of the file's")
    parser.add_argument("--port", type=int, help="instead of the file's; 0 takes a free one")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    host = load_host(arguments.config)
    settings = Settings.from_environment()
    tracing = open_tracing(settings.otlp_endpoint, "pdd-node", arguments.config.stem)
    port = host.port if arguments.port is None else arguments.port
    uvloop.run(
        serve_nodes(
            host.specs(),
            host=arguments.host or host.host,
            port=port,
            site_secret=SiteSecret.of(settings),
            tracing=tracing,
        )
    )


if __name__ == "__main__":
    main()
