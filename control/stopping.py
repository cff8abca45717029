"""Ends asyncio work for certain, also work that talks to Redis."""

import asyncio
import signal
from typing import Any

RETRY_S = 0.1


async def cancel_until_done(*work: "asyncio.Future[Any]", every_s: float = RETRY_S) -> None:
    """Cancel, and cancel again every so many seconds until all has ended; how it ended is of no interest any more.

    Once is not enough: the Redis client can swallow a cancellation that meets the end of a command.
    """
    while waiting := {future for future in work if not future.done()}:
        for future in waiting:
            future.cancel()
        await asyncio.wait(waiting, timeout=every_s)
    for future in work:
        if not future.cancelled():
            future.exception()  # a cancelled gather keeps its cancellation as an error, and warns if nobody reads it


async def run_until_signalled(work: "asyncio.Future[Any]") -> None:
    """Run until SIGTERM or SIGINT comes, or the work ends by itself; its own error is raised."""
    loop, signalled = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.set)
    waiter = asyncio.ensure_future(signalled.wait())
    try:
        await asyncio.wait({work, waiter}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        await cancel_until_done(work, waiter)
