"""The gateway's HTTP face: which request goes where, who asks, and which answer it gets."""

import logging
from collections.abc import Awaitable, Callable

import msgspec

from control.site_secret import SiteSecret
from control.tracing import RequestTrace
from engine_agents.gateway.admin import AdminApi
from engine_agents.gateway.errors import RefusalError, unavailable
from engine_agents.gateway.exchange import Headers
from engine_agents.gateway.gateway import Gateway, new_request_id
from engine_agents.gateway.http_messages import Header, Reply, Request
from engine_agents.gateway.http_server import MAX_BODY_BYTES
from engine_agents.gateway.openai_schema import GenerationRequest, parse_request
from engine_agents.gateway.parameters import CHAT, COMPLETIONS
from engine_agents.gateway.responses import Response, StreamResponse, WholeResponse, send_body, send_json, send_refusal
from engine_agents.gateway.tenants import Caller, identify
from engine_agents.gateway.timeline import Timeline

log = logging.getLogger(__name__)

Handler = Callable[[Request, Reply], Awaitable[None]]

MAX_REQUEST_ID_CHARS = 128
ADMIN_PREFIX = "/admin/v1/"
_ENDPOINTS = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETIONS}


class GatewayApp:
    """Handles the requests to one gateway."""

    def __init__(self, gateway: Gateway, site_secret: SiteSecret) -> None:
        self._gateway = gateway
        self._admin = AdminApi(gateway, site_secret)
        self._routes: dict[str, tuple[bytes, Handler]] = {
            "/v1/models": (b"GET", self._models),
            "/health": (b"GET", self._health),
            "/metrics": (b"GET", self._metrics),
        }

    async def __call__(self, request: Request, reply: Reply) -> None:
        """Answer one request."""
        try:
            await self._dispatch(request, reply)
        except RefusalError as refusal:
            send_refusal(reply, refusal)
        except Exception:
            log.exception("a request failed")
            if not reply.is_started:
                send_refusal(
                    reply, RefusalError(500, "The gateway failed.", kind="server_error", code="internal_error")
                )
            elif not reply.is_ended:
                raise

    async def _dispatch(self, request: Request, reply: Reply) -> None:
        path = request.path
        if path in _ENDPOINTS:
            _check_method(request, b"POST")
            await self._generate(_ENDPOINTS[path], request, reply)
        elif path in self._routes:
            expected, handler = self._routes[path]
            _check_method(request, expected)
            await handler(request, reply)
        elif path.startswith(ADMIN_PREFIX):
            _check_size(request)
            resource = path.removeprefix(ADMIN_PREFIX)
            status, document = await self._admin.handle(
                request.method.decode(), resource, request.query, request.header(b"authorization"), request.body
            )
            send_json(reply, status, msgspec.json.encode(document))
        else:
            raise RefusalError(404, f"There is nothing at {path}.", code="not_found")

    async def _generate(self, endpoint: str, request: Request, reply: Reply) -> None:
        timeline = Timeline()
        request_id = _request_id(request)
        echoed: tuple[Header, ...] = ((b"x-request-id", request_id.encode()),)
        try:
            headers = _headers(request, request_id, self._caller(request), self._trace(request))
            _check_size(request)
            wanted = parse_request(endpoint, request.body)
        except RefusalError as refusal:
            self._gateway.metrics.count_unread()
            send_refusal(reply, refusal, echoed)
            return
        await self._gateway.answer(wanted, headers, timeline, _response(wanted, request_id, reply, echoed))

    def _caller(self, request: Request) -> Caller:
        return identify(
            self._gateway.configs.running,
            request.header(b"authorization"),
            request.peer,
            request.header(b"x-pdd-service-class"),
        )

    def _trace(self, request: Request) -> RequestTrace | None:
        tracing = self._gateway.tracing
        return None if tracing is None else tracing.begin(request.header(b"traceparent"))

    async def _models(self, request: Request, reply: Reply) -> None:
        self._caller(request)
        config = self._gateway.running_config()
        cards = [{"id": model, "object": "model", "created": 0, "owned_by": "pdd"} for model in config.models]
        send_json(reply, 200, msgspec.json.encode({"object": "list", "data": cards}))

    async def _health(self, _request: Request, reply: Reply) -> None:
        if self._gateway.configs.running is None:
            raise unavailable("This gateway has no configuration yet.", "not_configured", retry_after_s=5)
        send_json(reply, 200, b'{"status":"ok"}')

    async def _metrics(self, _request: Request, reply: Reply) -> None:
        gateway = self._gateway
        text = gateway.metrics.render(gateway.state, gateway.configs.running, gateway.publisher.dropped_records)
        send_body(reply, 200, text, b"text/plain; version=0.0.4; charset=utf-8")


def _check_size(request: Request) -> None:
    if request.is_too_large:
        raise RefusalError(413, f"The body is larger than {MAX_BODY_BYTES} bytes.", code="body_too_large")


def _request_id(request: Request) -> str:
    request_id = request.header(b"x-request-id")
    is_usable = 0 < len(request_id) <= MAX_REQUEST_ID_CHARS and request_id.isascii() and request_id.isprintable()
    return request_id if is_usable else new_request_id()


def _headers(request: Request, request_id: str, caller: Caller, trace: RequestTrace | None) -> Headers:
    return Headers(
        request_id=request_id,
        traffic="demo" if request.header(b"x-pdd-traffic").lower() == "demo" else "live",
        wants_explanation=request.header(b"x-pdd-explain") == "1",
        caller=caller,
        session=request.header(b"x-pdd-session")[:MAX_REQUEST_ID_CHARS],
        trace=trace,
    )


def _response(request: GenerationRequest, request_id: str, reply: Reply, headers: tuple[Header, ...]) -> Response:
    response_id = f"{'chatcmpl' if request.is_chat else 'cmpl'}-{request_id}"
    if request.is_stream:
        return StreamResponse(
            reply,
            response_id,
            request.model,
            headers,
            is_chat=request.is_chat,
            with_ids=request.return_token_ids,
            with_usage=request.include_usage,
        )
    return WholeResponse(
        reply, response_id, request.model, headers, is_chat=request.is_chat, with_ids=request.return_token_ids
    )


def _check_method(request: Request, expected: bytes) -> None:
    if request.method != expected and (request.method, expected) != (b"HEAD", b"GET"):
        allow = "GET, HEAD" if expected == b"GET" else expected.decode()
        raise RefusalError(405, f"Use {expected.decode()} here.", code="method_not_allowed", allow=allow)
