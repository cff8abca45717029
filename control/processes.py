"""Ties the life of a process to the life of the one that started it."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent_pid: int | None = None, number: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send this process a signal as soon as its parent is gone, however it went.

    The request survives `exec` but not `fork`, so each forked worker asks again. It is bound to the parent's
    thread that forked, so start children from a thread that lives as long as the process. Only Linux offers this;
    elsewhere the call does nothing.

    Args:
        parent_pid: who the parent must be. When it is already another, the parent died before the request took
            hold, and this process ends at once.
        number: the signal; the usual one kills.
    """
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)
