"""Response headers that keep an answer to itself, and the refusal of requests that another site's page makes."""

from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control.api.problems import API_PREFIX, problem

# An answer for programs is no page: nothing in it may run, load or be framed.
API_CONTENT_SECURITY_POLICY = "default-src 'none'; frame-ancestors 'none'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
HSTS = "max-age=31536000"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class SecurityHeaders:
    """Plain ASGI: a middleware that copied streams would hold back the live feed."""

    def __init__(self, app: ASGIApp, content_security_policy: str = API_CONTENT_SECURITY_POLICY) -> None:
        self._app = app
        self._headers = {"Content-Security-Policy": content_security_policy, **HEADERS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers to every reply; nothing but static files may be kept by a cache."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                if scope["scheme"] == "https":
                    headers.setdefault("Strict-Transport-Security", HSTS)
            await send(message)

        if scope["method"] not in _SAFE_METHODS and is_cross_site(Headers(scope=scope)):
            await _refusal(scope["path"])(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)


def _refusal(path: str) -> Response:
    if path.startswith(API_PREFIX):
        return problem(403, "cross-site", "The request was made by another site's page", "Its Origin is another one.")
    return PlainTextResponse("This form came from another site.", 403)


def is_cross_site(headers: Headers) -> bool:
    """Whether a browser says that the request was made by another site's page."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site") in {"cross-site", "same-site"}
    return urlsplit(origin).netloc != headers.get("host")
