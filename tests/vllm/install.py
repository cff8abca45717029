"""Brings a stock vLLM for CPUs and a tiny model into the tree's own folders, where this machine can run them."""

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-vllm"
PYTHON = VENV / "bin" / "python"
MODEL = ROOT / ".data" / "vllm-model"
TORCH = ROOT / "requirements" / "vllm-torch.txt"
LOCK = ROOT / "requirements" / "vllm.lock"
MODEL_MAKER = Path(__file__).with_name("model.py")
CPU_FLAGS = ("avx2", "avx512f", "avx512bw")
MEMORY_BYTES = 10 * 2**30
INSTALL_LIMIT_S = 1500
SPINNING = "agent_config.pthrDelay = 0\n"
RESTING = "agent_config.pthrDelay = 1000\n"


class UnavailableError(Exception):
    """Stock vLLM cannot run here; the text says why."""


class UnfitError(UnavailableError):
    """This machine cannot run it, whatever is installed."""


def ensure_vllm() -> None:
    """Install what is missing: some minutes and 3 GB the first time, nothing later.

    Raises:
        UnavailableError: it cannot be had or run here.
    """
    check_machine()
    if not is_made_from(VENV, TORCH, LOCK):
        install()
        stamp(VENV, TORCH, LOCK)
    if not is_made_from(MODEL, MODEL_MAKER):
        run([str(PYTHON), str(MODEL_MAKER), str(MODEL)], {"HF_HUB_OFFLINE": "1"})
        stamp(MODEL, MODEL_MAKER)


def is_made_from(folder: Path, *sources: Path) -> bool:
    """Whether a folder was completed from these files as they are now."""
    made = folder / ".made"
    return made.exists() and made.read_text() == digest(*sources)


def stamp(folder: Path, *sources: Path) -> None:
    """Note what a folder was completed from."""
    (folder / ".made").write_text(digest(*sources))


def digest(*sources: Path) -> str:
    """One hash for the content of all."""
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


def check_machine() -> None:
    """See that three instances can run here.

    Raises:
        UnfitError: they cannot.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnfitError("vLLM's CPU wheel is used on x86-64 Linux only")
    flags = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    missing = [flag for flag in CPU_FLAGS if flag not in flags]
    if missing:
        raise UnfitError(f"this CPU lacks {', '.join(missing)}")
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    if int(memory["MemAvailable"].split()[0]) * 1024 < MEMORY_BYTES:
        raise UnfitError(f"three instances need {MEMORY_BYTES >> 30} GiB of free memory")


def install() -> None:
    """Make the virtual environment.

    Raises:
        UnavailableError: a step failed.
    """
    print("setup: installing vLLM for CPUs into .venv-vllm (first time only, some minutes)", flush=True)  # noqa: T201
    run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input"]
    run([*pip, "-r", str(TORCH)])
    run([*pip, "--require-hashes", "--no-deps", "-r", str(LOCK)])
    calm_nixl()


def calm_nixl() -> None:
    """Let NIXL's progress thread sleep between looks: it would keep a core busy per idle instance.

    Raises:
        UnavailableError: the line is not where it was.
    """
    (api,) = VENV.glob("lib/python*/site-packages/nixl_cu12/_api.py")
    source = api.read_text()
    if source.count(SPINNING) != 1:
        raise UnavailableError("this NIXL sets its progress thread's delay elsewhere")
    api.write_text(source.replace(SPINNING, RESTING))


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run one step, politely.

    Raises:
        UnavailableError: it failed; its last lines are in the text.
    """
    try:
        done = subprocess.run(
            ["nice", "-n", "10", *command],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{command[1:4]} did not end: {type(error).__name__}") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-6:])
        raise UnavailableError(f"{' '.join(command[1:4])} failed:\n{tail}")
