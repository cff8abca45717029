"""Takes no more of a request's body than its route has use for."""

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control.api.problems import API_PREFIX, PageErrorHandler, problem_of
from control.errors import BodyTooLargeError

MAX_BYTES = 2**20
MAX_DOCUMENT_BYTES = 16 * 2**20
# Whole fleets, as a document or a table.
_DOCUMENTS = frozenset({"/api/v1/fleet", "/api/v1/nodes.csv", "/api/v1/links.csv"})
# No body has a length of more digits; longer numbers need not be read as such.
_MAX_DIGITS = 15


def bound_bytes(path: str) -> int:
    """How many bytes a body may have there."""
    return MAX_DOCUMENT_BYTES if path in _DOCUMENTS else MAX_BYTES


class BodyBound:
    """Refuses a body by its stated length before any of it is read, and else where it passes the bound."""

    def __init__(self, app: ASGIApp, page_error: PageErrorHandler | None = None) -> None:
        """`page_error` answers errors outside /api/."""
        self._app = app
        self._page_error = page_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whatever a handler makes of a body that broke off at the bound is replaced by the refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit_bytes = bound_bytes(scope["path"])
        if _is_stated_longer(Headers(scope=scope).get("content-length", ""), limit_bytes):
            await self._refuse(scope, receive, send, limit_bytes)
            return
        size_bytes = 0
        is_answered = False

        async def counted() -> Message:
            nonlocal size_bytes
            message = await receive()
            size_bytes += len(message.get("body", b""))
            if size_bytes > limit_bytes and not is_answered:
                raise BodyTooLargeError
            return message

        async def answer(message: Message) -> None:
            nonlocal is_answered
            if is_answered or size_bytes <= limit_bytes:
                is_answered = True
                await send(message)

        try:
            await self._app(scope, counted, answer)
        except Exception:
            if is_answered or size_bytes <= limit_bytes:
                raise
        if not is_answered and size_bytes > limit_bytes:
            await self._refuse(scope, receive, send, limit_bytes)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, limit_bytes: int) -> None:
        error = BodyTooLargeError(f"A body has at most {limit_bytes} bytes here.")
        reply: Response = problem_of(error)
        if self._page_error is not None and not scope["path"].startswith(API_PREFIX):
            reply = await self._page_error(Request(scope), error)
        # The rest of the body is still on its way, and nobody reads it.
        reply.headers["Connection"] = "close"
        await reply(scope, receive, send)


def _is_stated_longer(length: str, limit_bytes: int) -> bool:
    return length.isdecimal() and (len(length) > _MAX_DIGITS or int(length) > limit_bytes)
