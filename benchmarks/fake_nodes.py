"""Many nodes in one process that answer the observer's question over HTTP and compute nothing.

Started as `python -m benchmarks.fake_nodes`; prints the port. Every path `/nodes/<name>/pdd/v1/node` is a node.
"""

import socket

import msgspec
from aiohttp import web

ANSWER = msgspec.json.encode(
    {
        "running": 3,
        "waiting": 0,
        "slots": 8,
        "store": {"resident_tokens": 120_000, "capacity_tokens": 400_000},
        "exact": True,
    }
)


async def _tell(request: web.Request) -> web.Response:
    del request
    return web.Response(body=ANSWER, content_type="application/json")


def main() -> None:
    """Serve until the process is ended."""
    app = web.Application()
    app.router.add_get("/nodes/{name}/pdd/v1/node", _tell)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    web.run_app(app, sock=listener, print=None, access_log=None)


if __name__ == "__main__":
    main()
