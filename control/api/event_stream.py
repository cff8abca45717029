"""Server-sent events as an answer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Send

STREAM_HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}


class EventStream(StreamingResponse):
    """Server-sent events whose source is closed as soon as the reader has gone."""

    media_type = "text/event-stream"

    async def stream_response(self, send: Send) -> None:
        """Send until either side ends."""
        if not isinstance(self.body_iterator, AsyncGenerator):
            raise TypeError("events must come from an asynchronous generator")
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


async def until_gone(request: Request, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """A server may swallow what is sent to a closed connection, so look before each event."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if await request.is_disconnected():
                return
            yield chunk
