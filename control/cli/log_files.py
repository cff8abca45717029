"""Log files of child processes, bounded in size."""

import os
import shutil
from pathlib import Path

MAX_LOG_BYTES = 4_000_000


def open_log(path: Path) -> int:
    """A file descriptor that always appends, so that the file can be cut short while its process writes."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def bound_log(path: Path, max_bytes: int = MAX_LOG_BYTES) -> bool:
    """Move an over-long log to `<name>.1` and empty it in place; at most two files of `max_bytes` remain.

    Lines written between the copy and the cut are lost; the process never has to reopen its log.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    older = path.with_name(path.name + ".1")
    shutil.copyfile(path, older)
    older.chmod(0o600)
    os.truncate(path, 0)
    return True


def last_lines(path: Path, count: int = 15, max_bytes: int = 16_384) -> list[str]:
    """The end of a log; empty where there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - max_bytes))
            return stream.read().decode(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []
