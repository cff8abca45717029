"""The check that a fleet holds nothing any more of the requests that it was asked: whatever they did, it is given back.

::

    await configured(rig, DIRECT_ALWAYS)       # what lives as long as the gateway does is there now
    async with nothing_is_kept(rig):
        ...                                    # requests that go wrong, clients that leave
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.fleet import prompt_of
from tests.gateways import DIRECT_ALWAYS, SETTLE_S, Rig

WARM_UP = prompt_of(100, 9090)


async def configured(rig: Rig, changes: dict[str, Any] = DIRECT_ALWAYS) -> None:
    """Have one request served, so that connections and tasks that stay are there; it leaves no record."""
    await rig.configure(changes)
    assert (await rig.complete(WARM_UP, max_tokens=30)).status == 200
    assert await rig.settled() == {}
    rig.records.clear()


@contextlib.asynccontextmanager
async def nothing_is_kept(rig: Rig) -> AsyncIterator[None]:
    """In the end all that `Rig.busy` counts is zero, and open files and tasks are no more than they were."""
    files, tasks = files_in_use(rig), len(asyncio.all_tasks())
    yield
    assert await rig.settled() == {}
    deadline_s = asyncio.get_running_loop().time() + SETTLE_S
    while files_in_use(rig) > files or len(asyncio.all_tasks()) > tasks:
        assert asyncio.get_running_loop().time() < deadline_s, (files_in_use(rig) - files, asyncio.all_tasks())
        await asyncio.sleep(0.05)


def files_in_use(rig: Rig) -> int:
    """Open files without the connections that are kept idle, each of which has both its ends in this process."""
    kept = sum(len(target.idle) for target in rig.gateway.client._http._targets.values())
    for client in {rig.http, *(node.http for node in rig.nodes.values())}:
        kept += sum(connection.is_idle() for connection in client._transport._pool.connections)
    return len(list(Path("/proc/self/fd").iterdir())) - 2 * kept
