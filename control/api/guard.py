"""Lets nobody change anything unknown or without the scope for it, before a byte of the body is read."""

from collections.abc import Collection

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from control.api.dependencies import PRINCIPAL_STATE, identify_request
from control.api.problems import API_PREFIX, PageErrorHandler, problem_of
from control.errors import ControlError
from control.services.plane import ControlPlane

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """Stands before every route that may change something; only those named to it are open."""

    def __init__(
        self,
        app: ASGIApp,
        plane: ControlPlane,
        page_error: PageErrorHandler | None = None,
        open_paths: Collection[str] = (),
    ) -> None:
        """`page_error` answers errors outside /api/; `open_paths` are those by which people sign in and out."""
        self._app = app
        self._plane = plane
        self._page_error = page_error
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handlers find who calls in the request's state and need not look again."""
        if scope["type"] == "http" and scope["method"] not in _SAFE_METHODS and scope["path"] not in self._open_paths:
            request = Request(scope)
            try:
                principal = await run_in_threadpool(identify_request, self._plane, request)
            except ControlError as error:
                is_page = self._page_error is not None and not scope["path"].startswith(API_PREFIX)
                reply = await self._page_error(request, error) if self._page_error and is_page else problem_of(error)
                await reply(scope, receive, send)
                return
            scope.setdefault("state", {})[PRINCIPAL_STATE] = principal
        await self._app(scope, receive, send)
