"""The switch of the demo traffic."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse

from control.api.dependencies import Operator, Plane, Viewer
from control.services.demo import is_demo_wanted, set_demo_wanted
from webapp.render import PagesDep

router = APIRouter(prefix="/live/demo", include_in_schema=False)


@router.get("")
def demo_badge(request: Request, pages: PagesDep, plane: Plane, principal: Viewer) -> HTMLResponse:
    """Whether it should run, and the button that says otherwise."""
    with plane.database.reading() as session:
        running = is_demo_wanted(session)
    return pages.render(request, "live/demo.html", principal, running=running, may_change=principal.role != "viewer")


@router.post("")
def switch_demo(
    request: Request, pages: PagesDep, plane: Plane, principal: Operator, *, running: Annotated[bool, Form()]
) -> HTMLResponse:
    """Start or stop it; the generator follows within seconds."""
    set_demo_wanted(plane, principal, running=running)
    return pages.render(request, "live/demo.html", principal, running=running, may_change=True)
