"""Times the control plane at size: a policy to every gateway, one round of an observer, lists of many nodes.

Everything is real but the nodes: Valkey, the API's process, the control worker with its beat, one Celery worker that
serves the queues of all ten sites, ten gateways, ten observers that ask 1,000 nodes once a second over HTTP. Ten
agents of their own would not fit two cores; their orders share one worker's processes instead.
"""

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np

from control.domain.topology import FleetSnapshot, Gateway, Link, Node, Role, Site
from control.services.bootstrap import prepare
from control.settings import Settings
from engine_agents.observer.config import ObserverConfig, WatchedNode
from engine_agents.observer.scrape import Scraper
from tests.processes import running_process, running_valkey, running_worker, wait_until
from tests.services import free_port

SITES = 10
NODES = 1_000
WATCHED = 200
LISTED = 10_000
RELAY = "routing.relay_when_transfer_exceeds_s"
ROLES = (Role.PREFILL, Role.RELAY, Role.MAIN)


def fleet_of(nodes: int, nodes_url: str, gateway_ports: list[int]) -> FleetSnapshot:
    """Ten sites in a ring of links, the nodes dealt over them, and a gateway at each site that has a port."""
    sites = [f"s{index:02d}" for index in range(SITES)]
    return FleetSnapshot(
        sites=tuple(Site(site) for site in sites),
        nodes=tuple(
            Node(name, sites[index % SITES], ROLES[index // SITES % 3], f"{nodes_url}/nodes/{name}", "emulated", "m")
            for index in range(nodes)
            for name in [f"n{index:05d}"]
        ),
        links=tuple(
            Link(f"{here}-{there}", here, there, 1.25e9, 0.03, 1.25e8, "127.0.0.1", 1, "")
            for here, there in zip(sites, sites[1:] + sites[:1], strict=True)
        ),
        gateways=tuple(
            Gateway(f"{site}-gw", site, f"http://127.0.0.1:{port}")
            for site, port in zip(sites, gateway_ports, strict=False)
        ),
        model="m",
        kv_bytes_per_token=50_000,
        block_tokens=64,
        labels={"engine": "emulated"},
    )


class Rig:
    """A folder, a database and the processes around them; all end with the stack."""

    def __init__(self, stack: ExitStack, folder: Path, fleet: FleetSnapshot, redis_url: str) -> None:
        self.stack, self.folder = stack, folder
        self.environment = {
            "PDD_DATA_DIR": str(folder),
            "PDD_REDIS_URL": redis_url,
            "PDD_DATABASE_URL": f"sqlite:///{folder / 'pdd.sqlite3'}",
            "PDD_SITE_SECRET": "bench",
            "PDD_SESSION_SECRET": "bench",
        }
        document = fleet.to_document()
        (folder / "fleet.json").write_text(json.dumps(document))
        token = prepare(Settings.from_environment(self.environment), document).operator_token
        self.url = f"http://127.0.0.1:{self._start_web()}"
        headers = {"Authorization": f"Bearer {token}"}
        self.http = stack.enter_context(httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=60))
        wait_until(self._answers)

    def start(self, name: str, *argv: str) -> None:
        """A Python module as a process of its own, with its log in the folder."""
        log = self.stack.enter_context((self.folder / f"{name}.log").open("ab"))
        self.stack.enter_context(running_process([sys.executable, "-m", *argv], log, self.environment))

    def work(self, module: str, queue: str, *options: str) -> None:
        """A Celery worker."""
        log = self.folder / f"{module}.log"
        self.stack.enter_context(running_worker(module, queue, log, self.environment, *options))

    def _start_web(self) -> int:
        port = free_port()
        self.start("web", "webapp", "--port", str(port))
        return port

    def _answers(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self.http.get("/api/v1/policies/active").is_success
        return False


def measure_apply(stack: ExitStack, folder: Path, rounds: int) -> list[float]:
    """Seconds from the request that applies a policy until every gateway is confirmed to run it."""
    redis_url = stack.enter_context(running_valkey(folder))
    gateway_ports = [free_port() for _ in range(SITES)]
    nodes_url = stack.enter_context(fake_nodes())
    fleet = fleet_of(NODES, nodes_url, gateway_ports)
    rig = Rig(stack, folder, fleet, redis_url)
    for gateway, port in zip(fleet.gateways, gateway_ports, strict=True):
        identity = ("--site", gateway.site, "--name", gateway.name)
        rig.start(gateway.name, "engine_agents.gateway", "--port", str(port), *identity)
        rig.start(f"{gateway.site}-observer", "engine_agents.observer", "--site", gateway.site)
    queues = ",".join(f"site.{site.name}" for site in fleet.sites)
    rig.work("engine_agents.tasks", queues, "--concurrency", "4")
    rig.work("control.worker", "control", "-B")
    rig.start("consumer", "control.telemetry.ingest", *(part for site in fleet.sites for part in ("--site", site.name)))
    wait_until(lambda: is_confirmed(rig), 180)
    return [apply_once(rig, number) for number in range(rounds)]


def apply_once(rig: Rig, number: int) -> float:
    """One new value, applied, until it runs everywhere."""
    active = rig.http.get("/api/v1/policies/active").json()["revision"]
    body = {"reason": "bench", "changes": {RELAY: (301 + number) / 1000}, "base_revision": active, "apply": True}
    begin = time.perf_counter()
    answer = rig.http.post("/api/v1/policies/revisions", json=body)
    if not answer.is_success:
        raise RuntimeError(answer.text)
    while not is_confirmed(rig):
        if time.perf_counter() - begin > 60:
            raise TimeoutError(f"not every gateway runs the policy after a minute; logs in {rig.folder}")
        time.sleep(0.02)
    return time.perf_counter() - begin


def is_confirmed(rig: Rig) -> bool:
    """Whether every gateway was seen to run the active revision."""
    gateways = rig.http.get("/api/v1/policies/active").json()["gateways"]
    return len(gateways) == SITES and all(gateway["state"] == "applied" for gateway in gateways)


def measure_observing(rounds: int) -> list[float]:
    """Seconds of an observer's rounds over 200 nodes."""
    with fake_nodes() as url:
        names = [f"n{index:03d}" for index in range(WATCHED)]
        config = ObserverConfig(nodes=tuple(WatchedNode(n, Role.PREFILL, f"{url}/nodes/{n}", 8) for n in names))
        return asyncio.run(_observe(config, rounds))


async def _observe(config: ObserverConfig, rounds: int) -> list[float]:
    taken, silent = [], 0
    async with aiohttp.ClientSession() as session:
        scraper = Scraper(session, "s00", config)
        await scraper.scrape()  # opens the connections
        for _ in range(rounds):
            begin = time.perf_counter()
            nodes, _ = await scraper.scrape()
            taken.append(time.perf_counter() - begin)
            silent += sum(node.state == "unreachable" for node in nodes)
    if silent:
        print(f"{silent} of {rounds * WATCHED} answers were late: the machine is busy, the figure below is too good")
    return taken


def measure_lists(stack: ExitStack, folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of requests for parts of 10,000 nodes, by kind of question."""
    rig = Rig(stack, folder, fleet_of(LISTED, "http://127.0.0.1:9", []), "redis://127.0.0.1:1/0")
    dice = random.Random(1)
    questions: dict[str, dict[str, Any]] = {
        "first page": {"limit": 50},
        "page of 200": {"limit": 200},
        "site and role": {"limit": 50, "site": "s03", "role": "relay"},
        "state": {"limit": 50, "state": "ready"},
        "nothing found": {"limit": 50, "chip": "none"},
    }
    taken: dict[str, list[float]] = {}
    for name, parameters in questions.items():
        times = taken[name] = []
        for _ in range(rounds):
            cursor = {} if name == "nothing found" else {"cursor": dice.choice(cursors(rig, parameters))}
            begin = time.perf_counter()
            rig.http.get("/api/v1/nodes", params=parameters | cursor).raise_for_status()
            times.append(time.perf_counter() - begin)
    return taken


_CURSORS: dict[str, list[str]] = {}


def cursors(rig: Rig, parameters: Mapping[str, Any]) -> list[str]:
    """Where the first pages of a question begin, so that a measurement also asks deep in the list."""
    key = json.dumps(parameters)
    if key not in _CURSORS:
        found, cursor = [], None
        for _ in range(20):
            page = rig.http.get("/api/v1/nodes", params={**parameters, **({"cursor": cursor} if cursor else {})}).json()
            cursor = page["next_cursor"]
            if cursor is None:
                break
            found.append(cursor)
        _CURSORS[key] = found
    return _CURSORS[key]


@contextlib.contextmanager
def fake_nodes() -> Iterator[str]:
    """The base address of a process full of nodes."""
    argv = [sys.executable, "-m", "benchmarks.fake_nodes"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def quantile(values: list[float], share: float) -> float:
    """A quantile in seconds, to 0.1 ms."""
    return round(float(np.quantile(values, share)), 4)


def main() -> None:
    """Run and print; the last line is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="policies to apply, and lists of each kind to ask for")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pdd-control-")))
        lists = measure_lists(stack, folder, arguments.rounds)
    for name, times in lists.items():
        print(f"list, {name}: P50 {quantile(times, 0.5)} s, P99 {quantile(times, 0.99)} s")
    rounds = measure_observing(arguments.rounds)
    print(f"observe {WATCHED} nodes: P50 {quantile(rounds, 0.5)} s, P99 {quantile(rounds, 0.99)} s")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pdd-control-")))
        applied = measure_apply(stack, folder, arguments.rounds)
    print(f"apply to {SITES} gateways with {NODES} nodes observed: longest {max(applied):.3f} s")
    result = {
        "apply_p50_s": quantile(applied, 0.5),
        "apply_p99_s": quantile(applied, 0.99),
        "observe_200_nodes_s": quantile(rounds, 0.5),
        "list_10000_p99_s": max(quantile(times, 0.99) for times in lists.values()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
