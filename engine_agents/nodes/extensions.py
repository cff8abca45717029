"""What our nodes offer beyond the stock dialect: who they are, a grip on leases and cache, and orders they take."""

import logging
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from control.site_secret import SiteSecret, parse_rotation
from engine_agents.nodes.duty import APPLIED, Fence, StaleOrderError
from engine_agents.nodes.errors import RequestError
from engine_agents.nodes.node import Node
from engine_agents.nodes.schemas import DutyRequest, RestartRequest, decode_body

log = logging.getLogger(__name__)

STEP_HEADER = "PDD-Step"
FENCE_HEADER = "PDD-Fencing-Token"

EndProcess = Callable[[], None]


def node_info(node: Node) -> dict[str, Any]:
    """NodeInfo: identity, load, store and totals; `last_progress_s` is the age of the last movement in seconds."""
    engine, store, stranded = node.engine, node.engine.store, node.leases.stranded()
    return {
        "name": node.name,
        "engine": engine.kind,
        "engine_id": node.id,
        "model": engine.model,
        "fingerprint": engine.fingerprint,
        "block_tokens": node.block_tokens,
        "kv_bytes_per_token": engine.payload_layout.token_bytes,
        "max_model_len": engine.max_model_len,
        "slots": engine.slots,
        "running": node.admission.running,
        "waiting": node.admission.waiting,
        "pulling": node.puller.running,
        "kv_host": node.kv_host,
        "kv_port": node.kv_port,
        "store": {
            "resident_tokens": store.resident_tokens,
            "resident_bytes": store.resident_bytes,
            "capacity_tokens": store.capacity_tokens,
            "pinned_bytes": store.pinned_bytes,
            "leased_bytes": node.leases.leased_bytes(),
            "leases": len(node.leases),
            "stranded_bytes": stranded.size_bytes,
            "stranded_age_s": stranded.oldest_age_s,
        },
        "duty": {"role": node.duty.role, "draining": node.duty.draining},
        "counters": node.counters.to_document(),
        "exact": engine.exact,
        "last_progress_s": node.progress.age_s(),
    }


def lease_list(node: Node) -> list[dict[str, Any]]:
    """All live leases, the oldest first; `expires_in_s` is null while one is being read."""
    return [
        {
            "id": lease.id,
            "tokens": lease.token_count,
            "blocks": len(lease.hashes),
            "bytes": node.engine.store.bytes_of(lease.hashes),
            "age_s": node.leases.age_s(lease),
            "expires_in_s": node.leases.remaining_s(lease),
            "attached": lease.attached,
        }
        for lease in node.leases
    ]


def fence_of(request: Request) -> Fence:
    """Which order this is.

    Raises:
        RequestError: it does not say.
    """
    try:
        return Fence(request.headers.get(STEP_HEADER, ""), int(request.headers[FENCE_HEADER]))
    except (KeyError, ValueError):
        raise RequestError(f"an order needs a number in {FENCE_HEADER}") from None


class _Guard:
    """Lets nobody pass without the site's secret."""

    def __init__(self, secret: SiteSecret) -> None:
        self.secret = secret

    def check(self, request: Request, *, is_rotation: bool = False) -> None:
        """Let this request pass; a rotation only under the newest secret.

        Raises:
            RequestError: 401, or 403 where there is none.
        """
        if not self.secret.is_set:
            raise RequestError("no site secret is set, so nothing can be changed here", status=403)
        accepts = self.secret.accepts_rotation if is_rotation else self.secret.accepts
        if not accepts(request.headers.get("authorization")):
            raise RequestError("this needs the site's secret as a bearer token", status=401)


def extension_routes(node: Node, site_secret: SiteSecret, end_process: EndProcess | None = None) -> list[Route]:
    """The routes under /pdd/v1; those that change something need the site's secret, and without one are shut.

    Without `end_process` the node cannot be restarted from here: its process has other nodes as well.
    """
    guard = _Guard(site_secret)
    return [*_own_routes(node, guard), *_order_routes(node, guard, end_process)]


def _own_routes(node: Node, guard: _Guard) -> list[Route]:
    """Who it is, its leases and its cache."""

    async def show_node(_: Request) -> Response:
        return JSONResponse(node_info(node))

    async def list_leases(_: Request) -> Response:
        node.leases.expire()
        return JSONResponse({"leases": lease_list(node)})

    async def release_lease(request: Request) -> Response:
        guard.check(request)
        lease_id = request.path_params["lease_id"]
        if not node.leases.release(lease_id):
            raise RequestError(f"no lease {lease_id}", status=404, code="lease_gone")
        return JSONResponse({"released": lease_id})

    async def drop_cache(request: Request) -> Response:
        guard.check(request)
        return JSONResponse({"dropped_tokens": node.engine.store.clear()})

    return [
        Route("/pdd/v1/node", show_node),
        Route("/pdd/v1/leases", list_leases),
        Route("/pdd/v1/leases/{lease_id}", release_lease, methods=["DELETE"]),
        Route("/pdd/v1/cache", drop_cache, methods=["DELETE"]),
    ]


def _order_routes(node: Node, guard: _Guard, end_process: EndProcess | None) -> list[Route]:
    """Orders that a fence guards: what the node is meant for, and its restart."""

    async def assign_duty(request: Request) -> Response:
        guard.check(request)
        duty = decode_body(await request.body(), DutyRequest)
        try:
            effect = node.duty.assign(duty.role, fence_of(request), draining=duty.draining)
        except StaleOrderError as error:
            raise RequestError(str(error), status=409, code="stale_order") from None
        return JSONResponse({"effect": effect})

    async def restart(request: Request) -> Response:
        guard.check(request)
        if end_process is None:
            raise RequestError("this process hosts other nodes as well", status=501)
        asked = decode_body(await request.body(), RestartRequest)
        try:
            effect = node.duty.end(fence_of(request), is_this_incarnation=asked.incarnation == node.id)
        except StaleOrderError as error:
            raise RequestError(str(error), status=409, code="stale_order") from None
        if effect == APPLIED:
            end_process()
        return JSONResponse({"effect": effect})

    async def rotate_secret(request: Request) -> Response:
        guard.check(request, is_rotation=True)
        try:
            order = parse_rotation(await request.body())
            if guard.secret.rotate(order.secret, order.previous_until_s, order.rotation):
                log.info("the site's secret was changed by rotation %d", order.rotation)
        except ValueError as error:
            raise RequestError(str(error)) from None
        return JSONResponse({"rotation": guard.secret.rotation})

    async def list_orders(_: Request) -> Response:
        return JSONResponse({"orders": node.duty.orders()})

    return [
        Route("/pdd/v1/duty", assign_duty, methods=["PUT"]),
        Route("/pdd/v1/restart", restart, methods=["POST"]),
        Route("/pdd/v1/orders", list_orders),
        Route("/pdd/v1/secret", rotate_secret, methods=["PUT"]),
    ]
