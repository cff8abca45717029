"""How soon a change to a link or a transfer is felt: from the request to the relay's admin API to the bytes.

A puller receives without pause through a relay process. "stop" is the time to the last byte after a pause, "go" to the
first byte after it, "cut" to the reset, "slow" until a tenth of a second has carried no more than the new cap allows.
Run: `python -m benchmarks.bench_link_changes`; the last line is JSON, in seconds.
"""

import argparse
import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

SECRET = "bench"  # noqa: S105 - of a relay that lives as long as the benchmark
CAPACITY_BYTES_PER_S = 50e6
SLOW_BYTES_PER_S = 5e6
SLOW = {"rate_cap_bytes_per_s": SLOW_BYTES_PER_S}
SETTLE_S = 0.3
WINDOW_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    taken: dict[str, list[float]] = {"link_stop": [], "link_go": [], "slow": [], "stop": [], "go": [], "cut": []}
    with running_relay() as (data_port, admin), running_source() as target:
        link, transfer = "/links/bench", "/links/bench/transfers/t"
        for _ in range(arguments.rounds):
            with Puller(data_port, target) as puller:
                taken["link_stop"].append(puller.last_byte_after(lambda: admin("PUT", link, {"paused": True})))
                taken["link_go"].append(puller.first_byte_after(lambda: admin("PUT", link, {"paused": False})))
                taken["stop"].append(puller.last_byte_after(lambda: admin("PUT", transfer, {"paused": True})))
                taken["go"].append(puller.first_byte_after(lambda: admin("PUT", transfer, {"paused": False})))
                taken["slow"].append(puller.slowed_after(lambda: admin("PUT", link, SLOW)))
                admin("PUT", link, {"rate_cap_bytes_per_s": None})
                taken["cut"].append(puller.ended_after(lambda: admin("DELETE", transfer)))
    result = {
        name: {"p50_s": round(statistics.median(times), 4), "max_s": round(max(times), 4)}
        for name, times in taken.items()
    }
    print(json.dumps(result))


class Puller(threading.Thread):
    """Receives and notes when how much came."""

    def __init__(self, port: int, target: str) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_connection(("127.0.0.1", port))
        preamble = {"link": "bench", "target": target, "transfer_id": "t", "pipeline": "direct"}
        self._socket.sendall(json.dumps(preamble).encode() + b"\n")
        assert self._socket.recv(100).startswith(b'{"ok":true}\n')
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=1_000_000)
        self._ended_s = 0.0

    def __enter__(self) -> Self:
        self.start()
        time.sleep(SETTLE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.join()
        self._socket.close()

    def run(self) -> None:
        """Receive until the connection ends."""
        buffer = bytearray(1 << 16)
        with contextlib.suppress(ConnectionError):
            while count := self._socket.recv_into(buffer):
                self._arrivals.append((time.monotonic(), count))
        self._ended_s = time.monotonic()

    def last_byte_after(self, change: Callable[[], None]) -> float:
        """Seconds from the change to the last byte."""
        began_s = time.monotonic()
        change()
        time.sleep(SETTLE_S)
        return max(0.0, self._arrivals[-1][0] - began_s)

    def first_byte_after(self, change: Callable[[], None]) -> float:
        """Seconds from the change to the next byte."""
        began_s, seen = time.monotonic(), self._arrivals[-1]
        change()
        while self._arrivals[-1] is seen:
            time.sleep(0.0005)
        first_s = next(at_s for at_s, _ in list(self._arrivals) if at_s >= began_s)
        time.sleep(SETTLE_S)
        return first_s - began_s

    def slowed_after(self, change: Callable[[], None]) -> float:
        """Seconds from the change to the start of the first window that keeps to the new cap."""
        began_s = time.monotonic()
        change()
        time.sleep(2 * SETTLE_S + WINDOW_S)
        arrivals = [(at_s, count) for at_s, count in list(self._arrivals) if at_s >= began_s]
        for start_s, _ in arrivals:
            carried = sum(count for at_s, count in arrivals if start_s < at_s <= start_s + WINDOW_S)
            if carried <= 1.2 * SLOW_BYTES_PER_S * WINDOW_S:
                return start_s - began_s
        return float("inf")

    def ended_after(self, change: Callable[[], None]) -> float:
        """Seconds from the change to the end of the connection."""
        began_s = time.monotonic()
        change()
        self.join()
        return self._ended_s - began_s


@contextlib.contextmanager
def running_relay() -> Iterator[tuple[int, Callable[..., None]]]:
    """A relay process with one link and no delay: its data port, and a call to its admin API."""
    link = {
        "name": "bench",
        "source": "a",
        "target": "b",
        "capacity_bytes_per_s": CAPACITY_BYTES_PER_S,
        "rtt_s": 0.0,
    }
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "links.json"
        config.write_text(json.dumps({"links": [link]}))
        command = [sys.executable, "-m", "engine_agents.wan", "--port", "0", "--admin-port", "0", "--config", config]
        environment = {**os.environ, "PDD_SITE_SECRET": SECRET}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert process.stdout is not None
        try:
            ports = [int(process.stdout.readline().rpartition(":")[2]) for _ in range(2)]

            def admin(method: str, path: str, body: dict[str, Any] | None = None) -> None:
                connection = http.client.HTTPConnection("127.0.0.1", ports[1])
                headers = {"Authorization": f"Bearer {SECRET}"}
                connection.request(method, path, json.dumps(body) if body else None, headers)
                assert connection.getresponse().status == 200
                connection.close()

            yield ports[0], admin
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def running_source() -> Iterator[str]:
    """A target that sends zeros to whoever connects until they leave."""
    chunk = bytes(1 << 16)

    def feed(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(chunk)

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=feed, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


if __name__ == "__main__":
    main()
