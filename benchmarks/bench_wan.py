"""Goodput of the WAN relay against the cap it was given, and the CPU it takes per gigabyte.

Run: `python benchmarks/bench_wan.py --gbit 1 --flows 4 --seconds 5`
"""

import argparse
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CHUNK_BYTES = 1 << 20


def serve_zeros(listener: socket.socket) -> None:
    """Send zeros to whoever connects until they leave."""
    chunk = bytes(CHUNK_BYTES)

    def feed(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(chunk)

    with contextlib.suppress(OSError):
        while True:
            threading.Thread(target=feed, args=(listener.accept()[0],), daemon=True).start()


def pull(address: tuple[str, int], target: str, until_s: float, received: list[int], index: int) -> None:
    """Pull through the relay until a time, counting bytes."""
    buffer = bytearray(CHUNK_BYTES)
    with socket.create_connection(address) as connection:
        preamble = {"link": "bench", "target": target, "transfer_id": str(index), "pipeline": "direct"}
        connection.sendall(json.dumps(preamble).encode() + b"\n")
        assert connection.recv(100) == b'{"ok":true}\n'
        while time.monotonic() < until_s:
            received[index] += connection.recv_into(buffer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gbit", type=float, default=1.0)
    parser.add_argument("--flows", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rtt", type=float, default=0.03)
    arguments = parser.parse_args()
    capacity = arguments.gbit * 1e9 / 8
    link = {"name": "bench", "source": "a", "target": "b", "capacity_bytes_per_s": capacity, "rtt_s": arguments.rtt}
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        config = Path(folder) / "links.json"
        config.write_text(json.dumps({"links": [link]}))
        command = [sys.executable, "-m", "engine_agents.wan", "--port", "0", "--admin-port", "0", "--config", config]
        relay = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."})
        assert relay.stdout is not None
        host, port = relay.stdout.readline().split()[1].split(":")
        threading.Thread(target=serve_zeros, args=(listener,), daemon=True).start()
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        received = [0] * arguments.flows
        began_s = time.monotonic()
        pulls = [
            threading.Thread(
                target=pull, args=((host, int(port)), target, began_s + arguments.seconds, received, index)
            )
            for index in range(arguments.flows)
        ]
        for thread in pulls:
            thread.start()
        for thread in pulls:
            thread.join()
        took_s = time.monotonic() - began_s
        relay.terminate()
        relay.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    goodput = sum(received) / took_s
    print(f"goodput {goodput * 8 / 1e9:.3f} Gbit/s = {goodput / capacity:.1%} of the cap, {arguments.flows} flows")
    print(f"smallest / largest flow {min(received) / max(received):.3f}")
    print(
        f"relay CPU {(used.ru_utime + used.ru_stime) / (sum(received) / 1e9):.2f} s per GB, {used.ru_maxrss >> 10} MiB"
    )


if __name__ == "__main__":
    main()
