"""Who comes in and what is remembered: guard, bodies, idempotency keys, accounts, tokens, sessions, audit trail."""

from collections.abc import Collection

from fastapi import APIRouter, FastAPI

from control.api import audit, events, problem_types, site_secret, tokens, users
from control.api.body_bound import BodyBound
from control.api.event_hub import EventHub
from control.api.guard import Guard
from control.api.idempotency import Idempotency
from control.api.openapi import install_openapi
from control.api.problems import PageErrorHandler
from control.services.plane import ControlPlane

router = APIRouter()
for _module in (users, tokens, site_secret, audit, events, problem_types):
    router.include_router(_module.router)


def install_trust(
    app: FastAPI, plane: ControlPlane, page_error: PageErrorHandler | None, open_paths: Collection[str]
) -> None:
    """Put the guard before everything, behind it the bound of bodies and the store of repeated answers."""
    app.state.events = EventHub(plane)
    install_openapi(app)
    app.add_middleware(Idempotency, plane=plane)
    app.add_middleware(BodyBound, page_error=page_error)
    app.add_middleware(Guard, plane=plane, page_error=page_error, open_paths=open_paths)
