"""Work ends for certain, also work that swallows a cancellation."""

import asyncio
import contextlib
import os
import signal

import pytest

from control.stopping import cancel_until_done, run_until_signalled


class Stubborn:
    """Swallows its first cancellations, as a client library may."""

    def __init__(self, swallows: int) -> None:
        self.swallows = swallows
        self.started = asyncio.Event()

    async def run(self) -> None:
        self.started.set()
        while self.swallows:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            self.swallows -= 1
        await asyncio.sleep(60)


async def test_a_swallowed_cancellation_is_repeated() -> None:
    stubborn = Stubborn(2)
    task = asyncio.create_task(stubborn.run())
    await stubborn.started.wait()
    await cancel_until_done(task, every_s=0.01)
    assert task.cancelled()
    assert stubborn.swallows == 0


async def test_a_signal_ends_stubborn_work() -> None:
    stubborn = Stubborn(1)
    work = asyncio.gather(stubborn.run(), asyncio.sleep(60))
    await stubborn.started.wait()
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
    await run_until_signalled(work)
    assert work.done()
    assert stubborn.swallows == 0


async def test_an_error_of_the_work_is_raised() -> None:
    async def fail() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await run_until_signalled(asyncio.ensure_future(fail()))


async def test_work_that_is_done_already_is_left_alone() -> None:
    task = asyncio.create_task(asyncio.sleep(0, "result"))
    await task
    await cancel_until_done(task)
    assert task.result() == "result"
