"""The HTTP face of a node: vLLM's P/D dialect over any engine, with our extensions beside it."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from control.site_secret import SiteSecret
from control.tracing import RequestTrace, Tracing
from engine_agents.nodes.completions import Completion, completion_of
from engine_agents.nodes.errors import RequestError, error_reply
from engine_agents.nodes.extensions import EndProcess, extension_routes
from engine_agents.nodes.metrics import registry_of
from engine_agents.nodes.node import Node
from engine_agents.nodes.responses import ClientClosedError, EventStream, JsonWork, WatchedResponse
from engine_agents.nodes.schemas import (
    MAX_BODY_BYTES,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    decode_body,
    decode_completion,
)
from engine_agents.nodes.spans import completion_span


def node_app(
    node: Node, site_secret: SiteSecret, end_process: EndProcess | None = None, tracing: Tracing | None = None
) -> Starlette:
    """The ASGI application of one node; an empty secret shuts the routes that change something."""
    routes = [
        *_serving_routes(node, tracing),
        *_watching_routes(node),
        *extension_routes(node, site_secret, end_process),
    ]
    handlers = {RequestError: _on_error, HTTPException: _on_http_exception, ClientDisconnect: _on_disconnect}
    return Starlette(routes=routes, exception_handlers=handlers)


def fleet_app(apps: dict[str, ASGIApp]) -> Starlette:
    """Several nodes in one process, each under /nodes/<name>."""
    return Starlette(routes=[Mount(f"/nodes/{name}", app=app) for name, app in apps.items()])


def _serving_routes(node: Node, tracing: Tracing | None) -> list[Route]:
    async def completions(request: Request) -> WatchedResponse | Response:
        trace = tracing.begin(request.headers.get("traceparent", "")) if tracing else None
        try:
            asked = decode_completion(await _body(request))
            completion = await completion_of(asked, node)
        except RequestError:
            node.counters.rejected += 1
            raise
        return _answer(asked, completion, _span_exporter(completion, tracing, trace))

    async def tokenize(request: Request) -> Response:
        asked = decode_body(await _body(request), TokenizeRequest)
        return JSONResponse(await _tokenize(asked, node))

    async def detokenize(request: Request) -> Response:
        asked = decode_body(await _body(request), DetokenizeRequest)
        _check_model(asked.model, node)
        try:
            data = await node.engine.detokenize(asked.tokens)
        except ValueError as error:
            raise RequestError(str(error), param="tokens") from None
        return JSONResponse({"prompt": data.decode(errors="replace")})

    return [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
    ]


def _watching_routes(node: Node) -> list[Route]:
    registry = registry_of(node)

    async def health(_: Request) -> Response:
        if node.progress.is_stalled():
            return JSONResponse({"status": "stalled", "last_progress_s": node.progress.age_s()}, 503)
        return Response()

    async def load(_: Request) -> Response:
        return JSONResponse({"server_load": node.admission.admitted})

    async def show_version(_: Request) -> Response:
        return JSONResponse({"version": _own_version(), "engine": node.engine.kind})

    async def models(_: Request) -> Response:
        card = {
            "id": node.engine.model,
            "object": "model",
            "created": 0,
            "owned_by": "pdd",
            "root": node.engine.model,
            "parent": None,
            "max_model_len": node.engine.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [
        Route("/health", health),
        Route("/load", load),
        Route("/version", show_version),
        Route("/v1/models", models),
        Route("/metrics", metrics),
    ]


def _answer(asked: CompletionRequest, completion: Completion, export: Callable[[str], None]) -> WatchedResponse:
    on_outcome = _outcome_counter(completion, export)
    if asked.stream:
        return EventStream(completion.events(), on_outcome)
    return JsonWork(completion.document, on_outcome)


def _span_exporter(
    completion: Completion, tracing: Tracing | None, trace: RequestTrace | None
) -> Callable[[str], None]:
    def export(error: str) -> None:
        if tracing is not None and trace is not None:
            tracing.export([completion_span(completion, trace, error)])

    return export


def _outcome_counter(completion: Completion, export: Callable[[str], None]) -> Callable[[Exception | None], None]:
    counters = completion.node.counters

    def count(outcome: Exception | None) -> None:
        is_error = outcome is not None and not isinstance(outcome, ClientClosedError)
        export(type(outcome).__name__ if is_error else "")
        if outcome is None:
            counters.completed += 1
        elif isinstance(outcome, ClientClosedError):
            counters.client_closed += 1
            completion.abandon()
        elif error_reply(outcome).status < 500 or error_reply(outcome).status == 503:
            counters.rejected += 1
        else:
            counters.failed += 1

    return count


async def _body(request: Request) -> bytes:
    """The request's body, as long as it is of a reasonable size.

    Raises:
        RequestError: it is not; 413.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise RequestError(f"a body of more than {MAX_BODY_BYTES} bytes", status=413)
    return bytes(body)


async def _tokenize(asked: TokenizeRequest, node: Node) -> dict[str, object]:
    _check_model(asked.model, node)
    if (asked.prompt is None) == (asked.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if asked.prompt is not None:
        text, adds_special = asked.prompt, asked.add_special_tokens is not False
    else:
        messages = asked.messages or []
        text = await _render(messages, asked.tools or [], node, add_generation_prompt=asked.add_generation_prompt)
        adds_special = bool(asked.add_special_tokens)
    tokens = await node.engine.tokenize(text, add_special=adds_special)
    return {"count": len(tokens), "max_model_len": node.engine.max_model_len, "tokens": tokens, "token_strs": None}


async def _render(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]], node: Node, *, add_generation_prompt: bool
) -> str:
    try:
        return await node.engine.render_chat(messages, tools=tools, add_generation_prompt=add_generation_prompt)
    except ValueError as error:
        raise RequestError(str(error), param="messages") from None


def _check_model(model: str | None, node: Node) -> None:
    if model is not None and model != node.engine.model:
        raise RequestError(f"no model {model} here", status=404, param="model", code="model_not_found")


def _own_version() -> str:
    try:
        return version("pdd")
    except PackageNotFoundError:
        return "0"


async def _on_error(_: Request, error: Exception) -> Response:
    return error_reply(error).response()


async def _on_http_exception(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return await _on_error(request, RequestError(f"{request.method} {request.url.path}: {error}", status=status))


async def _on_disconnect(_: Request, __: Exception) -> Response:
    """The client went while it was still sending; nobody reads this."""
    return Response(status_code=499)
