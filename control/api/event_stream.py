"""Server-sent events as an answer."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from control.stopping import cancel_until_done

STREAM_HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}


class EventStream(StreamingResponse):
    """Server-sent events whose source is closed as soon as the reader has gone.

    A server may swallow what is sent to a closed connection. One task waits for the reader to leave: to look before
    each event would cost a browser at one event a second more than all the rest.
    """

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until either side ends."""
        del scope
        sending = asyncio.ensure_future(self.stream_response(send))
        leaving = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
        finally:
            await cancel_until_done(sending, leaving)

    async def stream_response(self, send: Send) -> None:
        """Send until the source ends."""
        if not isinstance(self.body_iterator, AsyncGenerator):
            raise TypeError("events must come from an asynchronous generator")
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
