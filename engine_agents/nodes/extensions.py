"""What our nodes offer beyond the stock dialect: who they are, and a grip on leases and cache."""

import hmac
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine_agents.nodes.errors import RequestError
from engine_agents.nodes.node import Node


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


def extension_routes(node: Node, site_secret: str) -> list[Route]:
    """The routes under /pdd/v1; those that change something need the site's secret, and without one are shut."""

    def authorize(request: Request) -> None:
        if not site_secret:
            raise RequestError("no site secret is set, so nothing can be changed here", status=403)
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {site_secret}".encode()):
            raise RequestError("this needs the site's secret as a bearer token", status=401)

    async def show_node(_: Request) -> Response:
        return JSONResponse(node_info(node))

    async def list_leases(_: Request) -> Response:
        node.leases.expire()
        return JSONResponse({"leases": lease_list(node)})

    async def release_lease(request: Request) -> Response:
        authorize(request)
        lease_id = request.path_params["lease_id"]
        if not node.leases.release(lease_id):
            raise RequestError(f"no lease {lease_id}", status=404, code="lease_gone")
        return JSONResponse({"released": lease_id})

    async def drop_cache(request: Request) -> Response:
        authorize(request)
        return JSONResponse({"dropped_tokens": node.engine.store.clear()})

    return [
        Route("/pdd/v1/node", show_node),
        Route("/pdd/v1/leases", list_leases),
        Route("/pdd/v1/leases/{lease_id}", release_lease, methods=["DELETE"]),
        Route("/pdd/v1/cache", drop_cache, methods=["DELETE"]),
    ]
