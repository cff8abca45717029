"""The dashboard's application: pages, live feed and REST API under one roof."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from redis.asyncio import Redis
from starlette.exceptions import HTTPException

from control.api.app import include_api, open_plane
from control.api.security import SecurityHeaders
from control.errors import ControlError, UnauthenticatedError, face_of
from control.services.plane import ControlPlane
from control.settings import Settings
from webapp.assets import Assets
from webapp.feed import READ_BLOCK_MS, LiveFeed
from webapp.metrics import metrics_router
from webapp.pages import (
    access,
    alerts,
    audit,
    demo,
    inventory,
    knob,
    live,
    live_history,
    operations,
    policies,
    reference,
    requests,
    session,
    topology,
)
from webapp.render import Pages
from webapp.security import CONTENT_SECURITY_POLICY

STATIC = Path(__file__).parent.parent / "static"
FEED_TIMEOUT_S = READ_BLOCK_MS / 1000 + 5

log = logging.getLogger(__name__)


def create_app(settings: Settings, plane: ControlPlane | None = None, static: Path = STATIC) -> FastAPI:
    """Wire everything; nothing connects before the first request or the first tick.

    Raises:
        AssetsNotBuiltError: the browser packages have not been built.
    """
    assets = Assets(static)
    redis = Redis.from_url(settings.redis_url, socket_timeout=FEED_TIMEOUT_S, socket_connect_timeout=2)
    feed = LiveFeed(redis, time.time)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with redis, feed.running():
            yield

    app = FastAPI(title="PDD control", version="0.1.0", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.feed = feed
    app.state.pages = Pages(assets)
    include_api(app, plane or open_plane(settings), _page_error, session.OPEN_PATHS)
    for router in (
        session.router,
        live.router,
        live_history.router,
        knob.router,
        demo.router,
        requests.router,
        topology.router,
        policies.router,
        operations.router,
        inventory.router,
        alerts.router,
        audit.router,
        access.router,
        reference.router,
        metrics_router(feed),
        assets.router(),
    ):
        app.include_router(router)

    @app.get("/health", include_in_schema=False)
    def health() -> dict[str, str]:
        return {"status": "ok"}

    app.add_middleware(SecurityHeaders, content_security_policy=CONTENT_SECURITY_POLICY)
    return app


async def _page_error(request: Request, error: Exception) -> Response:
    """Nobody signed in: to the door. Anything else: a sentence, not a blank page."""
    if isinstance(error, UnauthenticatedError):
        wants_page = request.method == "GET" and not request.url.path.startswith("/live/")
        if wants_page:
            asked = request.url.path if request.url.path != "/" else ""
            return RedirectResponse(f"/login?next={asked}" if asked else "/login", 303)
        return JSONResponse({"detail": error.detail}, 401, headers={"HX-Redirect": "/login"})
    if isinstance(error, ControlError):
        return PlainTextResponse(error.detail, face_of(error).status)
    if isinstance(error, HTTPException):
        return PlainTextResponse(str(error.detail), error.status_code, headers=error.headers)
    if isinstance(error, RequestValidationError):
        return PlainTextResponse("Some fields of the form are not valid.", 422)
    return PlainTextResponse("Something went wrong; the server has logged it.", 500)
