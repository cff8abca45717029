"""A fleet of real processes for operations: Valkey, control, agents, observers, a gateway, a relay, emulated nodes.

Sites `ams` (three P, one RLD) and `fra` (two MD). `ams-p-03` lives in a process of its own, which is started again when
it ends, behind a `Gate` that can hold what it is asked. The rig is synchronous; traffic runs in threads.
"""

import json
import os
import random
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import httpx

from control.api.app import open_plane
from control.cli.valkey_config import valkey_binary
from control.domain.operations import Kind, OperationState, Stage
from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from control.domain.staleness import Health, judge_health
from control.domain.topology import FleetSnapshot, Gateway, Link, Node, NodeState, Role, Site
from control.services.access import Principal
from control.services.access import Role as AccessRole
from control.services.bootstrap import prepare
from control.services.fleet import load_snapshot
from control.services.operation_store import Stored, load_operation
from control.services.operations import open_operation
from control.services.sightings import load_sightings
from control.services.site_secret import Rotation, load_rotation
from control.settings import Settings
from tests.processes import running_process, running_worker, wait_until
from tests.services import free_port

MODEL = "emulated-test"
DUTY = b"/pdd/v1/duty"
SECRET = "a site's secret"
OPERATOR = Principal("olga", AccessRole.OPERATOR)
VICTIM = "ams-p-03"
ROLES = {
    "ams-p-01": Role.PREFILL,
    "ams-p-02": Role.PREFILL,
    VICTIM: Role.PREFILL,
    "ams-rld-01": Role.RELAY,
    "fra-md-01": Role.MAIN,
    "fra-md-02": Role.MAIN,
}
RELAY_ALWAYS = {"routing.relay_when_transfer_exceeds_s": 0.0, "routing.direct_hit_rate": None}

# Starts a program again whenever it ends, and takes it along when it is killed itself.
KEEP_RUNNING = """
import os, subprocess, sys, time
from control.processes import die_with_parent
keeper = os.getpid()
while True:
    subprocess.run(sys.argv[1:], preexec_fn=lambda: die_with_parent(keeper), check=False)
    time.sleep(0.2)
"""


class Gate:
    """A port before another one, which forwards all and can hold a request, or its answer, by its first words."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.caught = threading.Event()
        self._released = threading.Event()
        self._held = b""
        self._holds_answer = False
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, words: bytes, *, answer: bool = False) -> None:
        """Hold the next connection whose first request has these words: before the node, or behind it."""
        self.caught.clear()
        self._released.clear()
        self._held, self._holds_answer = words, answer

    def release(self) -> None:
        """Let all go on; what nobody waits for any more does not reach the node."""
        self._held = b""
        self._released.set()

    def close(self) -> None:
        self.release()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            first = _read_request(client)
            is_held = bool(self._held) and self._held in first
            if is_held and not self._holds_answer:
                self._wait()
                if _has_left(client):
                    return
            with socket.create_connection(("127.0.0.1", self._target)) as node:
                node.sendall(first)
                if is_held and self._holds_answer:
                    answer = node.recv(1 << 16)
                    self._wait()
                    client.sendall(answer)
                there = threading.Thread(target=_pump, args=(client, node), daemon=True)
                there.start()
                _pump(node, client)

    def _wait(self) -> None:
        self.caught.set()
        self._released.wait(120)


def _read_request(client: socket.socket) -> bytes:
    """The first request with its body, which may come apart from its head."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(1 << 16)
        if not piece:
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing_bytes = int(lengths[0]) - len(body) if lengths else 0
    while missing_bytes > 0 and (piece := client.recv(1 << 16)):
        data += piece
        missing_bytes -= len(piece)
    return data


def _has_left(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        client.setblocking(True)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class OperationRig:
    """All the processes; each that a test kills can be started again."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.ports = {name: free_port() for name in ("valkey", "nodes", "victim", "gateway", "wan", "wan.admin")}
        self.gate = Gate(self.ports["victim"])
        stack.callback(self.gate.close)
        self.environment = {
            "PDD_DATA_DIR": str(folder),
            "PDD_REDIS_URL": f"redis://127.0.0.1:{self.ports['valkey']}/0",
            "PDD_DATABASE_URL": f"sqlite:///{folder / 'control.sqlite3'}",
            "PDD_SITE_SECRET": SECRET,
        }
        self.gateway_url = f"http://127.0.0.1:{self.ports['gateway']}"
        self.fleet = FleetSnapshot(
            sites=(Site("ams"), Site("fra")),
            nodes=tuple(
                Node(name, name[:3], role, self.url_of(name), "emulated", MODEL, slots=8)
                for name, role in ROLES.items()
            ),
            links=(
                Link(
                    "ams-fra",
                    "ams",
                    "fra",
                    4e6,
                    0.02,
                    None,
                    "127.0.0.1",
                    self.ports["wan"],
                    f"http://127.0.0.1:{self.ports['wan.admin']}",
                ),
            ),
            gateways=(Gateway("ams-gw-01", "ams", self.gateway_url),),
            model=MODEL,
            kv_bytes_per_token=512,
        )
        settings = Settings.from_environment(self.environment)
        prepare(
            settings, self.fleet.to_document(), policy_document=apply_changes(DEFAULT_POLICY_DOCUMENT, RELAY_ALWAYS)
        )
        self.plane = open_plane(settings)
        stack.callback(self.plane.database.engine.dispose)
        self.valkey = self._restartable(self._valkey)
        self.control = self._restartable(lambda: self._worker("control.worker", "control", "-B"))
        self.agents = {
            site: self._restartable(lambda site=site: self._worker("engine_agents.tasks", f"site.{site}"))
            for site in ("ams", "fra")
        }

        self.observers = {site: self._restartable(lambda site=site: self._observer(site)) for site in self.agents}
        self.consumer = self._restartable(self._consumer)

    def url_of(self, node: str) -> str:
        port = self.gate.port if node == VICTIM else self.ports["nodes"]
        return f"http://127.0.0.1:{port}/nodes/{node}"

    def start(self) -> None:
        """Everything, until every node has been seen to be healthy and the gateway runs the fleet."""
        (self.folder / "fleet.json").write_text(json.dumps(self.fleet.to_document()))
        self.valkey.start()
        self._start_nodes()
        self._start_relay()
        argv = ["engine_agents.gateway", "--port", str(self.ports["gateway"]), "--site", "ams", "--name", "ams-gw-01"]
        self._run(*argv)
        self.control.start()
        for agent in self.agents.values():
            agent.start()
        for observer in self.observers.values():
            observer.start()
        self.consumer.start()
        wait_until(self.is_healthy, 90)
        wait_until(self.runs_the_stored_fleet, 90)

    def is_healthy(self) -> bool:
        seen = load_sightings(self.plane)
        return all(judge_health(seen.get(node.name)) is Health.HEALTHY for node in self.fleet.nodes)

    def health(self, node: str) -> str:
        return judge_health(load_sightings(self.plane).get(node)).value

    def stored(self) -> FleetSnapshot:
        with self.plane.database.reading() as session:
            return load_snapshot(session)

    def node(self, name: str) -> Node:
        return next(node for node in self.stored().nodes if node.name == name)

    def rotation(self) -> Rotation:
        with self.plane.database.reading() as session:
            rotation = load_rotation(session, self.plane.now())
        assert rotation is not None
        return rotation

    def runs_the_stored_fleet(self) -> bool:
        headers = {"Authorization": f"Bearer {SECRET}"}
        try:
            config = httpx.get(f"{self.gateway_url}/admin/v1/config", headers=headers, trust_env=False).json()
        except httpx.HTTPError:
            return False
        return config["revision"] is not None and config["fleet_revision"] == self.stored().revision

    def open(self, kind: Kind, **parameters: object) -> int:
        return open_operation(self.plane, OPERATOR, kind, parameters, "a test").stored.id

    def load(self, number: int) -> Stored:
        with self.plane.database.reading() as session:
            return load_operation(session, number)

    def is_in(self, number: int, stage: Stage) -> bool:
        current = self.load(number).operation.current
        return current is not None and current.plan.stage is stage and current.state.is_active

    def wait_over(self, number: int, timeout_s: float = 110.0) -> Stored:
        try:
            wait_until(lambda: not self.load(number).operation.state.is_open, timeout_s)
        except TimeoutError:
            raise AssertionError(f"still {self.load(number).operation.current}") from None
        return self.load(number)

    def effects(self, node: str, number: int) -> list[str]:
        """What the orders of one operation did, as the node itself has kept it."""
        port = self.ports["victim"] if node == VICTIM else self.ports["nodes"]
        reply = httpx.get(f"http://127.0.0.1:{port}/nodes/{node}/pdd/v1/orders", trust_env=False).json()
        return [o["effect"] for o in reply["orders"] if o["step"].startswith(f"{number}.")]

    def assert_fleet_is_legal(self) -> None:
        """Every role is in use by a ready node, none is left draining, and the gateway runs what is stored."""
        nodes = self.stored().nodes
        assert {node.state for node in nodes} == {NodeState.READY}
        assert {node.role for node in nodes} == set(Role)
        wait_until(self.runs_the_stored_fleet)

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-6000:]}" for log in sorted(self.folder.glob("*.log")))

    def _start_nodes(self) -> None:
        chip = {"slots": 8, "decode_step_s": 0.01, "prefill_tokens_per_s": 20_000.0, "kv_bytes_per_token": 512}
        chip |= {"eos_period": 0, "capacity_tokens": 200_000}
        for name, members in (("nodes", [n for n in ROLES if n != VICTIM]), ("victim", [VICTIM])):
            config = self.folder / f"{name}.json"
            config.write_text(
                json.dumps({"model": MODEL, "nodes": [{"name": member, "chip": chip} for member in members]})
            )
            nodes = [sys.executable, "-m", "engine_agents.nodes.emulated", "--config", str(config)]
            self._keep(name, [sys.executable, "-c", KEEP_RUNNING, *nodes, "--port", str(self.ports[name])])

    def _start_relay(self) -> None:
        link = {"name": "ams-fra", "source": "ams", "target": "fra", "capacity_bytes_per_s": 4e6, "rtt_s": 0.02}
        config = self.folder / "links.json"
        config.write_text(json.dumps({"links": [link]}))
        ports = ["--port", str(self.ports["wan"]), "--admin-port", str(self.ports["wan.admin"])]
        self._run("engine_agents.wan", *ports, "--config", str(config))

    def _run(self, module: str, *arguments: str) -> None:
        self._keep(
            module.rpartition(".")[2] + "".join(arguments[-1:]).replace("/", "_"),
            [
                sys.executable,
                "-m",
                module,
                *arguments,
            ],
        )

    def _keep(self, name: str, argv: list[str]) -> None:
        log = self.stack.enter_context((self.folder / f"{name[-40:]}.log").open("ab"))
        self.stack.enter_context(running_process(argv, log, self.environment))

    def _valkey(self) -> AbstractContextManager:
        # Nothing on disk: a killed one comes back empty.
        argv = [str(valkey_binary()), "--bind", "127.0.0.1", "--port", str(self.ports["valkey"]), "--save", ""]
        log = self.stack.enter_context((self.folder / "valkey.log").open("ab"))
        return running_process([*argv, "--dir", str(self.folder)], log)

    def _observer(self, site: str) -> AbstractContextManager:
        log = self.stack.enter_context((self.folder / f"observer-{site}.log").open("ab"))
        argv = [sys.executable, "-m", "engine_agents.observer", "--site", site]
        return running_process(argv, log, self.environment)

    def _consumer(self) -> AbstractContextManager:
        log = self.stack.enter_context((self.folder / "consumer.log").open("ab"))
        argv = [sys.executable, "-m", "control.telemetry.ingest", "--site", "ams", "--site", "fra"]
        return running_process(argv, log, self.environment)

    def _worker(self, module: str, queue: str, *options: str) -> AbstractContextManager:
        return running_worker(module, queue, self.folder / f"{queue}.log", self.environment, *options)

    def _restartable(self, make) -> "Restartable":
        part = Restartable(make)
        self.stack.callback(part.kill)
        return part


class Restartable:
    """A process that a test may kill without warning and start again."""

    def __init__(self, make) -> None:
        self._make = make
        self._stack = ExitStack()
        self._process = None

    def start(self) -> None:
        self._process = self._stack.enter_context(self._make())

    def kill(self) -> None:
        """SIGKILL; the kernel takes its children with it."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process = None
        self._stack.close()


@contextmanager
def operation_rig(folder: Path):
    with ExitStack() as stack:
        rig = OperationRig(folder, stack)
        try:
            rig.start()
            yield rig
        finally:
            sys.stdout.write(rig.logs())


class Traffic:
    """Closed-loop clients that stream answers through the gateway; every request is counted, every answer compared.

    An answer must have the tokens of `known`, or else of the first one to the same prompt.
    """

    PROMPTS = 6
    MAX_TOKENS = 40

    def __init__(self, url: str, clients: int = 3, known: Mapping[int, list[int]] | None = None) -> None:
        self._url = f"{url}/v1/completions"
        self._stop = threading.Event()
        self._answers = dict(known or {})
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._threads = [threading.Thread(target=self._client, args=(seed,)) for seed in range(clients)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _client(self, seed: int) -> None:
        chance = random.Random(seed)
        with httpx.Client(trust_env=False, timeout=90) as http:
            while not self._stop.is_set():
                number = chance.randrange(self.PROMPTS)
                with self._lock:
                    self.counts["sent"] += 1
                fault = self._ask(http, number)
                with self._lock:
                    self.counts["whole" if not fault else "broken"] += 1
                    if fault:
                        self.faults.append(fault)

    def body(self, number: int) -> dict[str, object]:
        """What a client asks."""
        prompt = random.Random(f"prompt {number}").choices(range(97, 123), k=300 + 50 * (number % 6))
        return {"model": MODEL, "prompt": prompt, "max_tokens": self.MAX_TOKENS, "temperature": 0}

    def _ask(self, http: httpx.Client, number: int) -> str:
        """What was wrong with one answer; empty for nothing."""
        body = {**self.body(number), "stream": True, "return_token_ids": True}
        tokens: list[int] = []
        is_done = False
        try:
            with http.stream("POST", self._url, json=body) as reply:
                if reply.status_code != 200:
                    return f"{reply.status_code}: {reply.read()[:200]!r}"
                for line in reply.iter_lines():
                    if line == "data: [DONE]":
                        is_done = True
                    elif line.startswith("data: "):
                        chunk = json.loads(line.removeprefix("data: "))
                        if "error" in chunk:
                            return str(chunk["error"])
                        tokens += [token for choice in chunk["choices"] for token in choice["token_ids"] or ()]
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
        if not is_done:
            return "the stream ended early"
        with self._lock:
            known = self._answers.setdefault(number, tokens)
        return "" if tokens == known else f"prompt {number} got another answer"

    def wait_for(self, more: int, timeout_s: float = 60.0) -> None:
        """Until so many further answers have come."""
        wanted = self.counts["whole"] + self.counts["broken"] + more
        wait_until(lambda: self.counts["whole"] + self.counts["broken"] >= wanted, timeout_s)


def switch(rig: OperationRig) -> int:
    wait_until(lambda: rig.health(VICTIM) == "healthy", 90)
    return rig.open(Kind.SWITCH_ROLE, node=VICTIM, role="relay")


def switch_back(rig: OperationRig) -> None:
    rig.gate.release()
    wait_until(rig.is_healthy, 90)
    if rig.node(VICTIM).role is not Role.PREFILL:
        back = rig.wait_over(rig.open(Kind.SWITCH_ROLE, node=VICTIM, role="prefill"))
        assert back.operation.state is OperationState.DONE, back.row.error
    rig.assert_fleet_is_legal()


def switch_held_at(rig: OperationRig, words: bytes, stage: Stage, *, answer: bool = False) -> int:
    """A switch whose stage does not get beyond a request with these words, or beyond its answer."""
    rig.gate.hold(words, answer=answer)
    number = switch(rig)
    # An order of an earlier test may come once more and be held as well.
    wait_until(lambda: rig.is_in(number, stage) and rig.gate.caught.is_set(), 90)
    return number


def assert_switched_once(rig: OperationRig, number: int) -> Stored:
    stored = rig.wait_over(number, 150)
    assert (stored.operation.state, stored.row.error) == (OperationState.DONE, "")
    assert (rig.node(VICTIM).role, rig.node(VICTIM).state) == (Role.RELAY, NodeState.READY)
    effects = rig.effects(VICTIM, number)
    assert effects.count("applied") == 1, effects
    rig.assert_fleet_is_legal()
    return stored


def restart_agent(rig: OperationRig) -> None:
    """SIGKILL, and a new one; what the gate held for the old one does not reach the node."""
    rig.agents["ams"].kill()
    rig.gate.release()
    rig.agents["ams"].start()
