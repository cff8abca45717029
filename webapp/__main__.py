"""Starts the dashboard's process: `python -m webapp`."""

import argparse
import gc
import logging
import socket
import sys
from types import FrameType

import uvicorn

from control.settings import Settings
from webapp.app import create_app

GRACE_S = 3


class Server(uvicorn.Server):
    """Ends the live streams when it is told to stop; it would otherwise wait for browsers that never leave."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Remember the signal, and close the feeds."""
        self.config.app.state.feed.close()  # type: ignore[union-attr]
        self.config.app.state.events.close()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def main() -> None:
    """Serve until told to stop; prints `ready <url>` once the port is open."""
    settings = Settings.from_environment()
    parser = argparse.ArgumentParser(prog="python -m webapp", description="The dashboard and the REST API.")
    parser.add_argument("--host", default=settings.web_host)
    parser.add_argument("--port", type=int, default=settings.web_port, help="0 takes a free one")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = uvicorn.Config(
        create_app(settings),
        host=arguments.host,
        port=arguments.port,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    listener = socket.create_server((arguments.host, arguments.port), backlog=config.backlog)
    host, port = listener.getsockname()[:2]
    sys.stdout.write(f"ready http://{host}:{port}\n")
    sys.stdout.flush()
    gc.freeze()  # what is here stays for good: looking through it again and again held requests up
    Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
