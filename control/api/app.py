"""The REST API, on its own or as part of the dashboard's application."""

from collections.abc import Collection
from functools import partial

from fastapi import APIRouter, FastAPI

from control.api import (
    annotations,
    fleet,
    history,
    operation,
    operations,
    policies,
    pools,
    requests,
    rollouts,
    slos,
    tenants,
)
from control.api.alerts_router import router as alerts_router
from control.api.problems import PROBLEM_RESPONSES, PageErrorHandler, install_problems
from control.api.security import SecurityHeaders
from control.api.trust import install_trust
from control.api.trust import router as trust_router
from control.celery_app import count_waiting, create_celery, send_order
from control.domain.webhook_targets import parse_networks
from control.orders import Order
from control.services.plane import ControlPlane
from control.settings import Settings
from control.store.session import open_database
from control.telemetry.sightings import sightings_reader, transfers_reader

_ROUTERS = (
    *(fleet.router, tenants.router, policies.router, rollouts.router, pools.router, annotations.router),
    *(operations.router, operation.router, slos.router, requests.router, history.router),
)


def open_plane(settings: Settings) -> ControlPlane:
    """The control plane on the database and broker of the settings; connects on first use."""
    celery = create_celery(settings, "control")
    send = partial(send_order, celery)

    def send_later(order: Order) -> None:
        send(order)

    return ControlPlane(
        open_database(settings.database_url),
        send_later,
        sightings=sightings_reader(settings.redis_url),
        webhook_networks=parse_networks(settings.webhook_networks),
        waiting=partial(count_waiting, celery),
        transfers=transfers_reader(settings.redis_url),
    )


def include_api(
    app: FastAPI,
    plane: ControlPlane,
    page_error: PageErrorHandler | None = None,
    open_paths: Collection[str] = (),
) -> None:
    """Add /api/v1 and its error documents to an application, which then covers both in its /openapi.json.

    Args:
        app: the application; `app.state.plane` is set.
        plane: the edges that handlers act through.
        page_error: answers errors outside /api/, where pages have their own look.
        open_paths: where somebody unknown may post, because they want to sign in or out.
    """
    app.state.plane = plane
    root = APIRouter(prefix="/api/v1", responses=PROBLEM_RESPONSES)
    for router in _ROUTERS:
        root.include_router(router)
    root.include_router(trust_router)
    root.include_router(alerts_router)
    app.include_router(root)
    install_trust(app, plane, page_error, open_paths)
    install_problems(app, page_error)


def create_api(settings: Settings, plane: ControlPlane | None = None) -> FastAPI:
    """The API alone."""
    app = FastAPI(title="PDD control", version="0.1.0", docs_url=None, redoc_url=None)
    include_api(app, plane or open_plane(settings))
    app.add_middleware(SecurityHeaders)
    return app
