"""Notices that make was interrupted while its child was not."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

_POLL_S = 0.3


async def watch_parent(on_interrupt: Callable[[], None]) -> None:
    """Call back when the parent stops catching SIGINT.

    A terminal's Ctrl-C reaches every process of its group, but a SIGINT sent to make alone does not: make then puts
    the signal back to its default and waits for a child that knows nothing of it. Returns where this cannot be seen.
    """
    parent = os.getppid()
    if not catches_interrupt(parent):
        return
    while catches_interrupt(parent):  # noqa: ASYNC110 - another process changes it, and tells nobody
        await asyncio.sleep(_POLL_S)
    on_interrupt()


def catches_interrupt(pid: int) -> bool:
    """Whether a process has a handler for SIGINT; False where that cannot be known."""
    try:
        lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
    except OSError:
        return False
    mask = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)
