"""An emulated node behind a front that makes it behave as a stock vLLM does, where the gateway could tell.

No extensions (`pdd`, `/pdd/v1/…`); text is released token by token by vLLM's rule and leaves out half a character at
the end; several tokens share a chunk, so a chunk's text may end before its ids do.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from engine_agents.nodes.emulated.vocabulary import Vocabulary
from engine_agents.nodes.serve import serving

VOCABULARY = Vocabulary()
_INCOMPLETE = "\ufffd"


class DecodeStream:
    """The rule of `tokenizers.decoders.DecodeStream`: emit when what is pending does not end in a broken character."""

    def __init__(self) -> None:
        self._pending = b""

    def step(self, token: int) -> str:
        self._pending += VOCABULARY.piece(token)
        text = self._pending.decode(errors="replace")
        if text.endswith(_INCOMPLETE):
            return ""
        self._pending = b""
        return text

    @property
    def is_at_end(self) -> bool:
        """Whether a cut could fall here."""
        return not self._pending


@dataclass
class StockFront:
    """The front of one node; `tokens_per_chunk` is what vLLM's `--stream-interval` sets."""

    upstream: str
    http: httpx.AsyncClient
    tokens_per_chunk: int = 1
    url: str = ""
    pulls_under_way: int = 0
    most_pulls_at_once: int = 0
    pulls: int = 0
    detokenized: int = 0
    formats: list[dict[str, Any]] = field(default_factory=list)
    """The `response_format` of each generation that had one; the emulated node behind writes what its script says."""
    breaks_after_tokens: int | None = None
    """The next stream under a grammar breaks off once it has said so many."""
    hold_pulls: asyncio.Event = field(default_factory=asyncio.Event)
    """Pulls wait until it is set."""

    async def forward(self, request: Request) -> Response:
        if request.url.path.startswith("/pdd/"):
            return JSONResponse({"detail": "Not Found"}, 404)
        body = await request.body()
        self.detokenized += request.url.path == "/detokenize"
        if request.url.path != "/v1/completions":
            reply = await self.http.request(request.method, self.upstream + request.url.path, content=body)
            return Response(reply.content, reply.status_code, media_type="application/json")
        asked = json.loads(body)
        is_pull = (asked.get("kv_transfer_params") or {}).get("do_remote_prefill") is True
        answer_format = asked.pop("response_format", None)
        if answer_format is not None:
            self.formats.append(answer_format)
            body = json.dumps(asked).encode()
        if asked.get("stream"):
            async with self._counted(is_pull):
                last_token = None
                if answer_format is not None:
                    last_token, self.breaks_after_tokens = self.breaks_after_tokens, None
                return await self._stream(body, last_token)
        reply = await _until_client_leaves(request, self._complete(body, is_pull))
        if reply is None:
            return Response(status_code=499)
        document = reply.json()
        document.pop("pdd", None)
        return JSONResponse(document, reply.status_code)

    async def _complete(self, body: bytes, is_pull: bool) -> httpx.Response:
        async with self._counted(is_pull):
            return await self.http.post(self.upstream + "/v1/completions", content=body)

    @asynccontextmanager
    async def _counted(self, is_pull: bool) -> AsyncIterator[None]:
        if not is_pull:
            yield
            return
        self.pulls += 1
        self.pulls_under_way += 1
        self.most_pulls_at_once = max(self.most_pulls_at_once, self.pulls_under_way)
        try:
            await self.hold_pulls.wait()
            yield
        finally:
            self.pulls_under_way -= 1

    async def _stream(self, body: bytes, last_token: int | None) -> Response:
        stack = contextlib.AsyncExitStack()
        response = await stack.enter_async_context(
            self.http.stream("POST", self.upstream + "/v1/completions", content=body)
        )
        if response.status_code != 200:
            async with stack:
                return JSONResponse(json.loads(await response.aread()), response.status_code)

        async def events() -> AsyncIterator[bytes]:
            said = 0
            async with stack:
                async for document in self._joined(response):
                    if last_token is not None and said >= last_token:
                        raise ConnectionAbortedError
                    said += len(document["choices"][0]["token_ids"]) if document and document["choices"] else 0
                    yield b"data: " + (b"[DONE]" if document is None else json.dumps(document).encode()) + b"\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _joined(self, response: httpx.Response) -> AsyncIterator[dict | None]:
        decoder, ids, text, is_first = DecodeStream(), [], "", True
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                yield None
                continue
            document = json.loads(line.removeprefix("data: "))
            document.pop("pdd", None)
            if not document["choices"]:
                yield document
                continue
            (choice,) = document["choices"]
            for token in choice["token_ids"]:
                ids.append(token)
                text += decoder.step(token)
            if is_first or choice["finish_reason"] or len(ids) >= self.tokens_per_chunk:
                yield {**document, "choices": [{**choice, "token_ids": ids, "text": text}]}
                ids, text, is_first = [], "", False


async def _until_client_leaves(request: Request, work: Coroutine[Any, Any, httpx.Response]) -> httpx.Response | None:
    """The reply, or None once nobody waits for it: vLLM gives up what its client has left."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(leave())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


@asynccontextmanager
async def stock_front(upstream: str, http: httpx.AsyncClient, tokens_per_chunk: int = 1) -> AsyncIterator[StockFront]:
    """A front on a port of its own; pulls go straight through."""
    front = StockFront(upstream, http, tokens_per_chunk)
    front.hold_pulls.set()
    app = Starlette(routes=[Route("/{path:path}", front.forward, methods=["GET", "POST", "DELETE"])])
    async with serving(app, host="127.0.0.1", port=0) as port:
        front.url = f"http://127.0.0.1:{port}"
        yield front
