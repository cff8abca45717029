"""Renders templates with what every page needs: who is signed in, the theme, and where its files are."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from control.services.access import Principal
from webapp.assets import Assets

THEME_COOKIE: Final = "pdd_theme"
THEMES: Final = frozenset({"dark", "light"})


class Pages:
    """The templates of one application."""

    def __init__(self, assets: Assets) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals |= {"asset": assets.url, "version": _version()}

    def render(
        self, request: Request, template: str, principal: Principal | None = None, *, status: int = 200, **context: Any
    ) -> HTMLResponse:
        """A page or a fragment of one; `principal` is whoever is signed in."""
        theme = request.cookies.get(THEME_COOKIE, "")
        shared = {
            "theme": theme if theme in THEMES else "auto",
            "csrf": (principal.csrf_token if principal else None) or "",
            "user": principal.name if principal else "",
            "role": principal.role.value if principal else "",
            "path": request.url.path,
        }
        body = self._environment.get_template(template).render(shared | context)
        return HTMLResponse(body, status_code=status)


def get_pages(request: Request) -> Pages:
    """The templates that the application was made with."""
    pages = request.app.state.pages
    if not isinstance(pages, Pages):
        raise TypeError("the application was made without templates")
    return pages


def _version() -> str:
    try:
        return version("pdd")
    except PackageNotFoundError:
        return ""
