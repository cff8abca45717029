"""Renders templates with what every page needs: who is signed in, language, theme, frame, and where its files are."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from control.services.access import Principal
from control.services.plane import ControlPlane
from webapp.assets import Assets
from webapp.frame import load_frame
from webapp.numbers import FILTERS
from webapp.page_registry import PAGES
from webapp.spans import clock, scaled, span, stamp
from webapp.strings import HTML_LANGUAGES, LANGUAGES, Strings, choose_language, load_strings
from webapp.words import ago

TEMPLATES: Final = Path(__file__).parent / "templates"
THEME_COOKIE: Final = "pdd_theme"
LANGUAGE_COOKIE: Final = "pdd_language"
THEMES: Final = frozenset({"dark", "light"})


class Pages:
    """The templates of one application, once for each language."""

    def __init__(self, assets: Assets) -> None:
        self._strings = {language: load_strings(language) for language in LANGUAGES}
        self._environments = {language: _environment(assets, strings) for language, strings in self._strings.items()}

    def strings(self, request: Request) -> Strings:
        """Texts in the language of whoever asks."""
        accepted = request.headers.get("Accept-Language", "")
        return self._strings[choose_language(request.cookies.get(LANGUAGE_COOKIE, ""), accepted)]

    def page(
        self,
        request: Request,
        plane: ControlPlane,
        principal: Principal,
        key: str,
        template: str,
        *,
        scripts: tuple[str, ...] = (),
        filters_sites: bool = False,
        **context: Any,
    ) -> HTMLResponse:
        """A whole page of the registry inside its frame; `scripts` are sections whose `js` texts its scripts need.

        `filters_sites` where it shows only what `Selection.site` selects.
        """
        strings = self.strings(request)
        frame = load_frame(plane, request)
        shared: dict[str, Any] = {
            "page": key,
            "pages": PAGES,
            "frame": frame,
            "policy_age": ago(frame.policy.at, frame.now, strings) if frame.policy else "",
            "browser_strings": strings.browser("common", *scripts),
            "languages": LANGUAGES,
            "filters_sites": filters_sites,
        }
        return self.render(request, template, principal, **(shared | context))

    def render(
        self, request: Request, template: str, principal: Principal | None = None, *, status: int = 200, **context: Any
    ) -> HTMLResponse:
        """A fragment of a page, or one without a frame; `principal` is whoever is signed in."""
        theme = request.cookies.get(THEME_COOKIE, "")
        strings = self.strings(request)
        shared = {
            "theme": theme if theme in THEMES else "auto",
            "language": strings.language,
            "html_language": HTML_LANGUAGES[strings.language],
            "csrf": (principal.csrf_token if principal else None) or "",
            "user": principal.name if principal else "",
            "role": principal.role.value if principal else "",
            "path": request.url.path,
        }
        body = self._environments[strings.language].get_template(template).render(shared | context)
        return HTMLResponse(body, status_code=status, headers={"Vary": "Accept-Language, Cookie"})


def _environment(assets: Assets, strings: Strings) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    environment.globals |= {"asset": assets.url, "version": _version(), "t": strings}
    environment.globals |= {"ago": ago, "span": span, "clock": clock, "stamp": stamp, "scaled": scaled}
    environment.globals["named"] = strings.named
    return environment


def get_pages(request: Request) -> Pages:
    """The templates that the application was made with."""
    pages = request.app.state.pages
    if not isinstance(pages, Pages):
        raise TypeError("the application was made without templates")
    return pages


PagesDep = Annotated[Pages, Depends(get_pages)]


def _version() -> str:
    try:
        return version("pdd")
    except PackageNotFoundError:
        return ""
