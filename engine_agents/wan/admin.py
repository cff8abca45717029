"""The relay's admin HTTP API: link states, live changes under the site's secret, health and metrics."""

import hmac
import logging
from dataclasses import replace
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from engine_agents.wan.config import check_shape
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.metrics import link_registry
from engine_agents.wan.relay import Relay

logger = logging.getLogger(__name__)


class LinkChange(msgspec.Struct, forbid_unknown_fields=True):
    """Fields to change; one that is left out stays, a null cap is no cap."""

    rate_cap_bytes_per_s: float | msgspec.UnsetType | None = msgspec.UNSET
    flow_cap_bytes_per_s: float | msgspec.UnsetType | None = msgspec.UNSET
    rtt_s: float | msgspec.UnsetType = msgspec.UNSET
    paused: bool | msgspec.UnsetType = msgspec.UNSET


def is_authorized(header: str | None, secret: str) -> bool:
    """Whether an Authorization header carries the site's secret; an empty secret opens nothing."""
    expected = f"Bearer {secret}".encode()
    return hmac.compare_digest((header or "").encode(), expected) and bool(secret)


def build_admin_app(relay: Relay, secret: str) -> web.Application:
    """The admin API of one relay."""
    registry = link_registry(relay.links.values())

    async def get_links(_: web.Request) -> web.Response:
        return _json([link.state() for link in relay.links.values()])

    async def put_link(request: web.Request) -> web.Response:
        if not is_authorized(request.headers.get("Authorization"), secret):
            return _error(401, "the site's secret is required")
        link = relay.links.get(request.match_info["name"])
        if link is None:
            return _error(404, "unknown link")
        try:
            change_link(link, await request.read())
        except ValueError as error:
            return _error(400, str(error))
        return _json(link.state())

    async def get_health(_: web.Request) -> web.Response:
        return _json({"status": "ok"})

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application(client_max_size=1 << 16)
    app.add_routes(
        [
            web.get("/links", get_links),
            web.put("/links/{name}", put_link),
            web.get("/health", get_health),
            web.get("/metrics", get_metrics),
        ]
    )
    return app


def change_link(link: ShapedLink, body: bytes) -> None:
    """Apply a partial change.

    Raises:
        ValueError: the body is no change, or the shape it makes is impossible; then nothing changed.
    """
    change = msgspec.json.decode(body, type=LinkChange)
    fields = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}
    check_shape(replace(link.shape, **fields))
    link.reshape(fields)
    logger.info("link %s changed: %s", link.name, fields)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _error(status: int, text: str) -> web.Response:
    return _json({"error": text}, status)
