"""The gateway's HTTP face as plain ASGI: a framework would cost more here than all the gateway does itself."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

import msgspec

from engine_agents.gateway.admin import AdminApi
from engine_agents.gateway.errors import RefusalError, unavailable
from engine_agents.gateway.exchange import Headers
from engine_agents.gateway.gateway import Gateway, new_request_id
from engine_agents.gateway.openai_schema import GenerationRequest, parse_request
from engine_agents.gateway.parameters import CHAT, COMPLETIONS
from engine_agents.gateway.responses import (
    Header,
    Response,
    Send,
    StreamResponse,
    WholeResponse,
    send_body,
    send_json,
    send_refusal,
)
from engine_agents.gateway.tenants import Caller, identify
from engine_agents.gateway.timeline import Timeline

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY_BYTES = 16 << 20
MAX_REQUEST_ID_CHARS = 128
ADMIN_PREFIX = "/admin/v1/"
_ENDPOINTS = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETIONS}


class ClientLeftError(Exception):
    """The client closed its connection before it had sent its request."""


class GatewayApp:
    """An ASGI application over one gateway."""

    def __init__(self, gateway: Gateway, site_secret: str, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._gateway = gateway
        self._admin = AdminApi(gateway, site_secret)
        self._max_body_bytes = max_body_bytes
        self._routes: dict[str, tuple[str, Handler]] = {
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/metrics": ("GET", self._metrics),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        try:
            await self._dispatch(scope, receive, send)
        except RefusalError as refusal:
            await send_refusal(send, refusal)
        except ClientLeftError:
            return

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path in _ENDPOINTS:
            _check_method(method, "POST")
            await self._generate(_ENDPOINTS[path], scope, receive, send)
        elif path in self._routes:
            expected, handler = self._routes[path]
            _check_method(method, expected)
            await handler(scope, receive, send)
        elif path.startswith(ADMIN_PREFIX):
            body = await read_body(scope, receive, self._max_body_bytes)
            status, document = await self._admin.handle(
                method, path.removeprefix(ADMIN_PREFIX), scope["query_string"], header(scope, b"authorization"), body
            )
            await send_json(send, status, msgspec.json.encode(document))
        else:
            raise RefusalError(404, f"There is nothing at {path}.", code="not_found")

    async def _generate(self, endpoint: str, scope: Scope, receive: Receive, send: Send) -> None:
        timeline = Timeline()
        request_id = _request_id(scope)
        echoed: tuple[Header, ...] = ((b"x-request-id", request_id.encode()),)
        try:
            headers = _headers(scope, request_id, self._caller(scope))
            body = await read_body(scope, receive, self._max_body_bytes)
            request = parse_request(endpoint, body)
        except RefusalError as refusal:
            self._gateway.metrics.count_unread()
            await send_refusal(send, refusal, echoed)
            return
        response = _response(request, request_id, send, echoed)
        work = self._gateway.answer(request, headers, timeline, response)
        await _while_connected(receive, work)

    def _caller(self, scope: Scope) -> Caller:
        peer = scope.get("client")
        return identify(
            self._gateway.configs.running,
            header(scope, b"authorization"),
            peer[0] if peer else "",
            header(scope, b"x-pdd-service-class"),
        )

    async def _models(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self._caller(scope)
        config = self._gateway.running_config()
        cards = [{"id": model, "object": "model", "created": 0, "owned_by": "pdd"} for model in config.models]
        await send_json(send, 200, msgspec.json.encode({"object": "list", "data": cards}))

    async def _health(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        if self._gateway.configs.running is None:
            raise unavailable("This gateway has no configuration yet.", "not_configured", retry_after_s=5)
        await send_json(send, 200, b'{"status":"ok"}')

    async def _metrics(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        gateway = self._gateway
        text = gateway.metrics.render(gateway.state, gateway.configs.running, gateway.publisher.dropped_records)
        await send_body(send, 200, text, b"text/plain; version=0.0.4; charset=utf-8")


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The whole body of a request.

    Raises:
        RefusalError: 413, it is larger than `max_bytes`.
        ClientLeftError: the client left while sending it.
    """
    too_large = RefusalError(413, f"The body is larger than {max_bytes} bytes.", code="body_too_large")
    length = header(scope, b"content-length")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise too_large
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def header(scope: Scope, name: bytes) -> str:
    """A header's value; empty if there is none."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run the work, and cancel it as soon as the client leaves."""
    task = asyncio.current_task()
    assert task is not None, "a server runs each request in a task"  # noqa: S101
    watcher = asyncio.ensure_future(_disconnected(receive))
    has_left = False

    def left(_: "asyncio.Future[None]") -> None:
        nonlocal has_left
        has_left = True
        task.cancel()

    watcher.add_done_callback(left)
    try:
        await work
    except asyncio.CancelledError:
        if not has_left:
            raise
        task.uncancel()
    finally:
        watcher.remove_done_callback(left)
        watcher.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _request_id(scope: Scope) -> str:
    request_id = header(scope, b"x-request-id")
    is_usable = 0 < len(request_id) <= MAX_REQUEST_ID_CHARS and request_id.isascii() and request_id.isprintable()
    return request_id if is_usable else new_request_id()


def _headers(scope: Scope, request_id: str, caller: Caller) -> Headers:
    return Headers(
        request_id=request_id,
        traffic="demo" if header(scope, b"x-pdd-traffic").lower() == "demo" else "live",
        wants_explanation=header(scope, b"x-pdd-explain") == "1",
        caller=caller,
    )


def _response(request: GenerationRequest, request_id: str, send: Send, headers: tuple[Header, ...]) -> Response:
    response_id = f"{'chatcmpl' if request.is_chat else 'cmpl'}-{request_id}"
    if request.is_stream:
        return StreamResponse(
            send,
            response_id,
            request.model,
            headers,
            is_chat=request.is_chat,
            with_ids=request.return_token_ids,
            with_usage=request.include_usage,
        )
    return WholeResponse(
        send, response_id, request.model, headers, is_chat=request.is_chat, with_ids=request.return_token_ids
    )


def _check_method(method: str, expected: str) -> None:
    if method != expected:
        raise RefusalError(405, f"Use {expected} here.", code="method_not_allowed")
