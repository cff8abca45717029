"""Our KV wire, checksums and all, against plain blocking sockets on loopback, and its goodput on a shaped link.

Both ends of each way are processes of their own. Runs alternate, so that a busy machine slows all; ratios are medians
over rounds. Three ways carry the same bytes:

- wire: a node's real code, its KV server, its puller, and block stores that are full, as a node's are, so that what
  arrives evicts what came before. Every block is hashed once by each side in every run: by the sender's store when the
  block is made, which is before the transfer and outside its time, and by the puller within it.
- raw: `sendall` and `recv_into` with one buffer of 1 MiB at each end that stays in the processor's cache, so that
  nothing is kept. It is what a socket can do; `loopback_ratio` is wire / raw.
- kept: the same from and into the same kind of memory as the wire: the sender's blocks, and new ones that the receiver
  keeps in the place of those of the run before. It is what a socket can do with KV; `kept_ratio` is wire / kept.

Run: `python benchmarks/bench_kv.py`; the last line is JSON.
"""

import argparse
import asyncio
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import uvloop

from control.domain.prefix import BLOCK_TOKENS
from engine_agents.nodes.counters import NodeCounters
from engine_agents.nodes.kv_blocks import Block, BlockStore
from engine_agents.nodes.kv_connection import PullSource, RelayRoute
from engine_agents.nodes.kv_layout import PayloadLayout
from engine_agents.nodes.kv_prefix import Cut, cut_blocks
from engine_agents.nodes.kv_puller import KvPuller
from engine_agents.nodes.kv_server import KvServer
from engine_agents.nodes.leases import LeaseTable
from engine_agents.nodes.progress import Progress

RAW_BUFFER_BYTES = 1 << 20
KV_BYTES_PER_TOKEN = 23_040
BLOCK_BYTES = KV_BYTES_PER_TOKEN * BLOCK_TOKENS
FINGERPRINT = "bench"
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=200, help=f"blocks of {BLOCK_BYTES} bytes in one run")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shaped-runs", type=int, default=3)
    parser.add_argument("--gbit", type=float, default=1.0, help="cap of the shaped link")
    parser.add_argument("--rtt", type=float, default=0.03, help="round trip of the shaped link, s")
    parser.add_argument("--role", choices=sorted(ROLES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        ROLES[arguments.role](arguments.blocks)
    else:
        measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    """Run the pairs and the shaped pulls and print them."""
    size_bytes = arguments.blocks * BLOCK_BYTES
    with ExitStack() as stack:
        raw_send, raw_receive, wire_serve, wire_pull = (
            stack.enter_context(child(role, arguments.blocks)) for role in ROLES
        )

        def raw(*, reused: bool) -> Figures:
            return timed(raw_send, raw_receive, {"reused": reused}, size_bytes)

        def wire(via: dict[str, Any] | None = None) -> Figures:
            return timed(wire_serve, wire_pull, {"via": via}, size_bytes)

        def once() -> tuple[Figures, Figures, Figures]:
            return raw(reused=True), raw(reused=False), wire()

        for _ in range(2):  # fills the stores, and the second run evicts the first
            once()
        rounds = [once() for _ in range(arguments.rounds)]
        relay = stack.enter_context(shaped_relay(arguments.gbit * 1e9 / 8, arguments.rtt))
        shaped = [wire(relay).bytes_per_s for _ in range(arguments.shaped_runs)]
    for plain, kept, ours in rounds:
        print(f"raw {plain}, kept {kept}, wire {ours}, ratio {ours.bytes_per_s / plain.bytes_per_s:.2f}")
    cap = arguments.gbit * 1e9 / 8
    print(f"shaped {', '.join(f'{rate / cap:.1%}' for rate in shaped)} of {arguments.gbit:g} Gbit/s")
    result = {
        "loopback_ratio": statistics.median(ours.bytes_per_s / plain.bytes_per_s for plain, _, ours in rounds),
        "raw_gb_per_s": statistics.median(plain.bytes_per_s for plain, _, _ in rounds) / 1e9,
        "wire_gb_per_s": statistics.median(ours.bytes_per_s for _, _, ours in rounds) / 1e9,
        "shaped_ratio": statistics.median(shaped) / cap,
        "cpu_s_per_gb": statistics.median(ours.cpu_s_per_gb for _, _, ours in rounds),
        "raw_cpu_s_per_gb": statistics.median(plain.cpu_s_per_gb for plain, _, _ in rounds),
        "kept_ratio": statistics.median(ours.bytes_per_s / kept.bytes_per_s for _, kept, ours in rounds),
        "kept_gb_per_s": statistics.median(kept.bytes_per_s for _, kept, _ in rounds) / 1e9,
        "block_bytes": BLOCK_BYTES,
        "run_bytes": size_bytes,
    }
    print(json.dumps({name: round(value, 3) for name, value in result.items()}))


class Figures(NamedTuple):
    """One run: its speed, and the CPU time of both ends."""

    bytes_per_s: float
    cpu_s_per_gb: float

    def __str__(self) -> str:
        return f"{self.bytes_per_s / 1e9:.2f} GB/s {self.cpu_s_per_gb:.2f} CPU s/GB"


class Child:
    """A process that answers JSON lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Send one line and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def cpu_s(self) -> float:
        """CPU seconds it has used, to the kernel's clock tick."""
        ticks = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def timed(sender: Child, receiver: Child, question: dict[str, Any], size_bytes: int) -> Figures:
    """Measure one run.

    The CPU includes what the sender does before the clock runs: storing the blocks, which hashes them.
    """
    before_s = sender.cpu_s() + receiver.cpu_s()
    took_s = receiver.ask({**question, **sender.ask(question)})["took_s"]
    used_s = sender.cpu_s() + receiver.cpu_s() - before_s
    return Figures(size_bytes / took_s, used_s / (size_bytes / 1e9))


@contextmanager
def child(role: str, blocks: int) -> Iterator[Child]:
    command = [sys.executable, __file__, "--role", role, "--blocks", str(blocks)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield Child(process)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def shaped_relay(capacity_bytes_per_s: float, rtt_s: float) -> Iterator[dict[str, Any]]:
    link = {"name": "bench", "source": "a", "target": "b", "capacity_bytes_per_s": capacity_bytes_per_s, "rtt_s": rtt_s}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "links.json"
        config.write_text(json.dumps({"links": [link]}))
        command = [sys.executable, "-m", "engine_agents.wan", "--port", "0", "--admin-port", "0", "--config", config]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert process.stdout is not None
        try:
            host, port = process.stdout.readline().split()[1].split(":")
            yield {"host": host, "port": int(port), "link": "bench", "transfer_id": "bench"}
        finally:
            process.terminate()
            process.wait()


def raw_send(blocks: int) -> None:
    """The sender of the plain ways: `sendall` of all blocks, or of one buffer until as much is sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept = [memoryview(os.urandom(BLOCK_BYTES)) for _ in range(blocks)]
    for line in sys.stdin:
        sources = [kept[0][:RAW_BUFFER_BYTES]] if json.loads(line)["reused"] else kept
        say({"port": listener.getsockname()[1]})
        connection, _ = listener.accept()
        with connection:
            for piece in pieces(sources, blocks * BLOCK_BYTES):
                connection.sendall(piece)


def pieces(sources: Sequence[memoryview], size_bytes: int) -> Iterator[memoryview]:
    """So many bytes of the sources, round and round, in pieces of at most RAW_BUFFER_BYTES."""
    for source in itertools.cycle(sources):
        for start in range(0, len(source), RAW_BUFFER_BYTES):
            piece = source[start : min(start + RAW_BUFFER_BYTES, start + size_bytes)]
            yield piece
            size_bytes -= len(piece)
            if not size_bytes:
                return


def raw_receive(blocks: int) -> None:
    """The receiver of the plain ways: `recv_into` new blocks that it keeps, or one buffer."""
    buffer = memoryview(bytearray(RAW_BUFFER_BYTES))
    kept = [memoryview(b"")] * blocks
    for line in sys.stdin:
        order = json.loads(line)
        began_s = time.perf_counter()
        with socket.create_connection(("127.0.0.1", order["port"])) as connection:
            if order["reused"]:
                left = blocks * BLOCK_BYTES
                while left:
                    left -= connection.recv_into(buffer)
            else:
                for index in range(blocks):
                    kept[index] = received(connection, np.empty(BLOCK_BYTES, np.uint8).data)
        say({"took_s": time.perf_counter() - began_s})


def received(connection: socket.socket, block: memoryview) -> memoryview:
    """The block, filled."""
    at = 0
    while at < len(block):
        at += connection.recv_into(block[at : at + RAW_BUFFER_BYTES])
    return block


def wire_serve(blocks: int) -> None:
    """A node's KV server; each line it reads is answered with a new lease on newly made blocks."""
    payloads = [os.urandom(BLOCK_BYTES) for _ in range(blocks)]

    async def serve() -> None:
        store = BlockStore(blocks * BLOCK_TOKENS)
        leases = LeaseTable(store)
        server = KvServer(
            store,
            leases,
            fingerprint=FINGERPRINT,
            block_tokens=BLOCK_TOKENS,
            layout=PayloadLayout((KV_BYTES_PER_TOKEN,)),
            counters=NodeCounters(),
            progress=Progress(),
        )
        port = await server.start("127.0.0.1", 0)
        run = 0
        while await asyncio.to_thread(sys.stdin.readline):
            run += 1
            while len(leases):  # noqa: ASYNC110 - the last run's release is still on its way through the link
                await asyncio.sleep(0.005)
            cuts = prompt_cuts(blocks, run)
            store.put_chain([Block(cut.hash, cut.token_count, data) for cut, data in zip(cuts, payloads, strict=True)])
            lease = leases.grant([cut.hash for cut in cuts], blocks * BLOCK_TOKENS)
            say({"port": port, "lease_id": lease.id, "run": run})

    uvloop.run(serve())


def wire_pull(blocks: int) -> None:
    """A node's puller into a store full of the last run's blocks."""

    async def pull() -> None:
        store = BlockStore(blocks * BLOCK_TOKENS)
        puller = KvPuller(store, fingerprint=FINGERPRINT, counters=NodeCounters(), progress=Progress())
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            cuts = prompt_cuts(blocks, order["run"])
            via = RelayRoute(**order["via"]) if order["via"] else None
            source = PullSource("127.0.0.1", order["port"], order["lease_id"], via)
            began_s = time.perf_counter()
            report = await puller.pull("bench", cuts, source)
            took_s = time.perf_counter() - began_s
            assert report.pulled_bytes == blocks * BLOCK_BYTES
            store.unpin("bench")
            say({"took_s": took_s})

    uvloop.run(pull())


def prompt_cuts(blocks: int, run: int) -> list[Cut]:
    """The blocks of a prompt that no earlier run had."""
    return cut_blocks([run, *range(1, blocks * BLOCK_TOKENS)])


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


ROLES: dict[str, Callable[[int], None]] = {
    "raw-send": raw_send,
    "raw-receive": raw_receive,
    "wire-serve": wire_serve,
    "wire-pull": wire_pull,
}

if __name__ == "__main__":
    main()
