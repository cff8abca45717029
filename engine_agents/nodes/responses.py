"""ASGI responses whose work ends the moment the client goes, streaming or not."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from engine_agents.nodes.errors import ErrorReply, error_reply
from engine_agents.nodes.replies import DONE, event

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ClientClosedError(Exception):
    """The client closed the connection before it had its answer."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled, and waited for, when the client goes.

    Raises:
        ClientClosedError: the client went first.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientClosedError
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def reply_to(error: Exception) -> ErrorReply:
    """What the client is told; our own faults go to the log, without anything of the request."""
    reply = error_reply(error)
    if reply.status == 500:
        _log.error("a request failed: %s", type(error).__name__, exc_info=error)
    return reply


class WatchedResponse:
    """Does its work inside the response, so that refusals have a status and a gone client stops it."""

    def __init__(self, on_outcome: Callable[[Exception | None], None]) -> None:
        self._on_outcome = on_outcome

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as an ASGI application."""
        outcome: Exception | None = None
        try:
            outcome = await until_disconnect(receive, self._respond(scope, receive, send))
        except (ClientClosedError, OSError):
            outcome = ClientClosedError()
        finally:
            self._on_outcome(outcome)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> Exception | None:
        """Send the whole reply; gives back the error that it told the client, if any."""
        raise NotImplementedError


class JsonWork(WatchedResponse):
    """One JSON document that takes a while to make."""

    def __init__(
        self, make: Callable[[], Awaitable[dict[str, Any]]], on_outcome: Callable[[Exception | None], None]
    ) -> None:
        super().__init__(on_outcome)
        self._make = make

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> Exception | None:
        try:
            document = await self._make()
        except Exception as error:  # noqa: BLE001 - the door: every error gets a status
            await reply_to(error).response()(scope, receive, send)
            return error
        await JSONResponse(document)(scope, receive, send)
        return None


class EventStream(WatchedResponse):
    """Server-sent events; the status is sent with the first one, so that a refusal is a status code."""

    def __init__(
        self, events: AsyncGenerator[dict[str, Any], None], on_outcome: Callable[[Exception | None], None]
    ) -> None:
        super().__init__(on_outcome)
        self._events = events

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> Exception | None:
        async with aclosing(self._events) as events:
            try:
                first = await anext(events)
            except Exception as error:  # noqa: BLE001 - the door: every error gets a status
                await reply_to(error).response()(scope, receive, send)
                return error
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            failure = await self._send_events(first, events, send)
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
        return failure

    async def _send_events(
        self, first: dict[str, Any], events: AsyncGenerator[dict[str, Any], None], send: Send
    ) -> Exception | None:
        await send(_body(first))
        try:
            async for document in events:
                await send(_body(document))
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - the status is out: the error becomes the last event
            await send(_body(reply_to(error).body()))
            return error
        return None


def _body(document: dict[str, Any]) -> dict[str, Any]:
    return {"type": "http.response.body", "body": event(document), "more_body": True}
