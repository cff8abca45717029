"""One request for a page or a fragment: who asks, in which language, and how it is answered."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse

from control.api.dependencies import Operator, Person, Plane, Viewer
from control.services.access import Principal
from control.services.plane import ControlPlane
from webapp.render import Pages, PagesDep
from webapp.strings import Strings


@dataclass(frozen=True, slots=True)
class Visit:
    """What handlers of pages need of a request."""

    request: Request
    pages: Pages
    plane: ControlPlane
    principal: Principal

    @property
    def t(self) -> Strings:
        """Texts in the visitor's language."""
        return self.pages.strings(self.request)

    @property
    def base(self) -> str:
        """Scheme and host of this server."""
        return f"{self.request.url.scheme}://{self.request.url.netloc}"

    def page(self, key: str, template: str, **context: Any) -> HTMLResponse:
        """A whole page of the registry inside its frame."""
        return self.pages.page(self.request, self.plane, self.principal, key, template, **context)

    def render(self, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
        """A fragment of a page."""
        return self.pages.render(self.request, template, self.principal, status=status, **context)


def go_to(address: str) -> HTMLResponse:
    """Let htmx load another page."""
    return HTMLResponse("", headers={"HX-Redirect": address})


def _looking(request: Request, pages: PagesDep, plane: Plane, principal: Viewer) -> Visit:
    return Visit(request, pages, plane, principal)


def _operating(request: Request, pages: PagesDep, plane: Plane, principal: Operator) -> Visit:
    return Visit(request, pages, plane, principal)


def _own(request: Request, pages: PagesDep, plane: Plane, principal: Person) -> Visit:
    return Visit(request, pages, plane, principal)


# Whoever may look; whoever may change the fleet; somebody who looks after what is their own.
Looking = Annotated[Visit, Depends(_looking)]
Operating = Annotated[Visit, Depends(_operating)]
OwnVisit = Annotated[Visit, Depends(_own)]
