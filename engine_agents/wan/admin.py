"""The relay's admin HTTP API: link states, live changes to links and transfers under the site's secret, metrics."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from control.site_secret import SiteSecret, parse_rotation
from engine_agents.wan.config import check_shape
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.metrics import link_registry
from engine_agents.wan.relay import Relay
from engine_agents.wan.shaping import ClassShare
from engine_agents.wan.transfer import Transfer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = logging.getLogger(__name__)


class LinkChange(msgspec.Struct, forbid_unknown_fields=True):
    """Fields to change; one that is left out stays, a null cap or limit is none. `classes` replaces all classes.

    A change that carries the policy's revision is refused after one that carried a higher one.
    """

    capacity_bytes_per_s: float | msgspec.UnsetType = msgspec.UNSET
    rate_cap_bytes_per_s: float | msgspec.UnsetType | None = msgspec.UNSET
    flow_cap_bytes_per_s: float | msgspec.UnsetType | None = msgspec.UNSET
    rtt_s: float | msgspec.UnsetType = msgspec.UNSET
    paused: bool | msgspec.UnsetType = msgspec.UNSET
    max_transfers: int | msgspec.UnsetType | None = msgspec.UNSET
    classes: dict[str, ClassShare] | msgspec.UnsetType = msgspec.UNSET
    policy_revision: int | msgspec.UnsetType = msgspec.UNSET


class TransferChange(msgspec.Struct, forbid_unknown_fields=True):
    """What can be changed of one transfer."""

    paused: bool


class AdminApi:
    """Handlers over one relay's links."""

    def __init__(self, relay: Relay, secret: SiteSecret) -> None:
        self._secret = secret
        self._links = relay.links
        self._registry = link_registry(relay.links.values())

    async def get_links(self, _: web.Request) -> web.Response:
        """All links with their transfers."""
        return _json([link.state() for link in self._links.values()])

    async def put_link(self, request: web.Request) -> web.Response:
        """Change a link's shape; in force from the next tick on."""
        link = self._link(request)
        try:
            change_link(link, await request.read(), force=request.query.get("force") == "true")
        except OldRevisionError as error:
            return _error(409, str(error))
        except ValueError as error:
            return _error(400, str(error))
        return _json(link.state())

    async def put_transfer(self, request: web.Request) -> web.Response:
        """Pause a transfer or let it go on."""
        link, transfer = self._transfer(request)
        try:
            change = msgspec.json.decode(await request.read(), type=TransferChange)
        except msgspec.DecodeError as error:
            return _error(400, str(error))
        link.pause_transfer(transfer, paused=change.paused)
        logger.info("transfer %s on %s: paused %s", transfer.id, link.name, change.paused)
        return _json(transfer.state(link.clock()))

    async def cut_transfer(self, request: web.Request) -> web.Response:
        """Reset a transfer's streams; its puller goes on with the blocks it lacks."""
        link, transfer = self._transfer(request)
        streams = link.cut_transfer(transfer)
        logger.info("transfer %s on %s: %d streams cut", transfer.id, link.name, streams)
        return _json({"transfer_id": transfer.id, "streams": streams, "bytes": transfer.sent_bytes})

    async def put_secret(self, request: web.Request) -> web.Response:
        """Take a new site secret; the present one is accepted for a while."""
        try:
            order = parse_rotation(await request.read())
            if self._secret.rotate(order.secret, order.previous_until_s, order.rotation):
                logger.info("the site's secret was changed by rotation %d", order.rotation)
        except ValueError as error:
            return _error(400, str(error))
        return _json({"rotation": self._secret.rotation})

    async def get_health(self, _: web.Request) -> web.Response:
        """The process answers."""
        return _json({"status": "ok"})

    async def get_metrics(self, _: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _link(self, request: web.Request) -> ShapedLink:
        link = self._links.get(request.match_info["name"])
        if link is None:
            raise _NotFoundError("unknown link")
        return link

    def _transfer(self, request: web.Request) -> tuple[ShapedLink, Transfer]:
        link = self._link(request)
        transfer = link.transfer(request.match_info["transfer_id"])
        if transfer is None:
            raise _NotFoundError("no such transfer on this link")
        return link, transfer


def build_admin_app(relay: Relay, secret: SiteSecret) -> web.Application:
    """The admin API of one relay; whatever changes something needs the site's secret."""
    api = AdminApi(relay, secret)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        accepts = secret.accepts_rotation if request.path == "/secret" else secret.accepts
        if request.method != "GET" and not accepts(request.headers.get("Authorization")):
            return _error(401, "the site's secret is required")
        try:
            return await handler(request)
        except _NotFoundError as error:
            return _error(404, str(error))

    app = web.Application(client_max_size=1 << 16, middlewares=[guard])
    app.add_routes(
        [
            web.get("/links", api.get_links),
            web.put("/links/{name}", api.put_link),
            web.put("/links/{name}/transfers/{transfer_id}", api.put_transfer),
            web.delete("/links/{name}/transfers/{transfer_id}", api.cut_transfer),
            web.put("/secret", api.put_secret),
            web.get("/health", api.get_health),
            web.get("/metrics", api.get_metrics),
        ]
    )
    return app


class OldRevisionError(Exception):
    """An order that came late."""


class _NotFoundError(Exception):
    """The path names nothing that exists."""


def change_link(link: ShapedLink, body: bytes, *, force: bool = False) -> None:
    """Apply a partial change; `force` lets the policy's revision fall.

    Raises:
        OldRevisionError: a newer revision of the policy is in force.
        ValueError: the body is no change, or the shape it makes is impossible; then nothing changed.
    """
    change = msgspec.json.decode(body, type=LinkChange)
    fields = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not msgspec.UNSET}
    revision = fields.pop("policy_revision", None)
    if revision is not None and not force and revision < (link.policy_revision or 0):
        raise OldRevisionError(f"revision {link.policy_revision} is in force")
    shape = replace(link.shape, **fields)
    check_shape(shape)
    if revision is not None:
        link.policy_revision = revision
    if shape != link.shape:
        link.reshape(fields)
        logger.info("link %s changed: %s", link.name, fields)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _error(status: int, text: str) -> web.Response:
    return _json({"error": text}, status)
