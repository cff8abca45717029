"""The compiler of the twin's kernel, with the domain's marked rules known to it and a cache that notices their change.

numba's own disk cache looks at one source file only, so ours lies in a folder named by a hash of all of them.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.extending import register_jitable

from control.domain import handoff, performance, prefill, routing
from control.domain.compiled import COMPILED_RULES

Function = TypeVar("Function", bound=Callable[..., Any])


_MODULES_WITH_RULES = (prefill, performance, handoff, routing)
_PARTS = (
    "agenda",
    "decoding",
    "faults",
    "jit",
    "kernel",
    "planning",
    "prefixes",
    "sharing",
    "state",
    "transfers",
)


def _sources_hash() -> str:
    digest = hashlib.blake2b(numba.__version__.encode(), digest_size=8)
    paths = [Path(str(module.__file__)) for module in _MODULES_WITH_RULES]
    paths += [Path(__file__).with_name(f"{part}.py") for part in _PARTS]
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _cache_dir() -> Path | None:
    """Where compiled code is kept between runs; None where this user has no place for it."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "pdd" / "twin" / _sources_hash()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return folder


_FOLDER = _cache_dir()
if _FOLDER is not None:
    numba.config.CACHE_DIR = str(_FOLDER)  # type: ignore[attr-defined]

for _rule in COMPILED_RULES:
    register_jitable(_rule)


# The kernel allocates nothing: without reference counts (`_nrt`) and without wrappers for calls from Python its parts
# compile in half the time and run several times as fast.
_PART: dict[str, Any] = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
_ENTRY: dict[str, Any] = {"_nrt": False, "error_model": "numpy", "cache": _FOLDER is not None}


def jit(function: Function) -> Function:
    """A part of the kernel."""
    compiled: Function = numba.njit(**_PART)(function)
    return compiled


def entry(function: Function) -> Function:
    """What Python calls: kept on disk, with all that it calls."""
    compiled: Function = numba.njit(**_ENTRY)(function)
    return compiled
