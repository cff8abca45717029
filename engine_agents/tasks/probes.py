"""Measures a link from its target site: a few round trips, then one transfer through the WAN relay."""

import contextlib
import json
import socket
import statistics
import time
import uuid
from dataclasses import dataclass
from typing import Any

from control.orders import PROBE_LINK
from engine_agents.tasks.celery import app
from engine_agents.tasks.steps import Outcome, StepHeader, report_outcome

ROUND_TRIPS = 5
# All of it ends well within a task's time: whoever measures a slow link gets what came until then.
MEASURE_FOR_S = 2.5
SOCKET_TIMEOUT_S = 3.0
SMALLEST_BYTES = 65_536
# A relay answers a greeting in one short line; what says more, or anything else, is none.
_MAX_ANSWER_BYTES = 4096
_TARGET = "probe"
_NO_RELAY = "it did not answer as a relay does"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one probe found: bytes and seconds once the flow was steady, behind its first eighth."""

    size_bytes: int
    duration_s: float
    rtt_s: float

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """What the link gave this one flow at this moment."""
        return self.size_bytes / self.duration_s

    def to_document(self) -> dict[str, float]:
        """Plain JSON data."""
        return {
            "size_bytes": self.size_bytes,
            "duration_s": self.duration_s,
            "rtt_s": self.rtt_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
        }


class ProbeError(Exception):
    """The link could not be measured."""


@app.task(name=PROBE_LINK)  # type: ignore[untyped-decorator]
def probe_link(*, relay: dict[str, Any], link: str, size_bytes: int, **header: Any) -> None:
    """Measure and report."""
    try:
        outcome = Outcome("done", dict(measure(relay["host"], int(relay["port"]), link, size_bytes).to_document()))
    except (OSError, ProbeError) as error:
        outcome = Outcome("failed", {}, f"the relay at {relay['host']}:{relay['port']}: {error}")
    report_outcome(StepHeader(**header), outcome)


def measure(host: str, port: int, link: str, size_bytes: int) -> Measurement:
    """One flow through the relay.

    Raises:
        OSError, ProbeError: the relay refused, broke off, or gave too little in the time.
    """
    with contextlib.closing(socket.create_connection((host, port), timeout=SOCKET_TIMEOUT_S)) as relay:
        _greet(relay, link)
        rtt_s = statistics.median(_round_trip(relay) for _ in range(ROUND_TRIPS))
        # What a link lets through at once after a pause, and the way there, would count as rate.
        relay.sendall(f"{size_bytes}\n".encode())
        _read(relay, size_bytes // 8, MEASURE_FOR_S)
        received_bytes, seconds = _read(relay, size_bytes - size_bytes // 8, MEASURE_FOR_S)
    if received_bytes < min(SMALLEST_BYTES, size_bytes // 2):
        raise ProbeError(f"only {received_bytes} bytes came in {seconds:.1f} s")
    return Measurement(received_bytes, max(seconds, 1e-6), rtt_s)


def _greet(relay: socket.socket, link: str) -> None:
    preamble = {"link": link, "target": _TARGET, "transfer_id": uuid.uuid4().hex, "pipeline": "probe"}
    relay.sendall(json.dumps(preamble).encode() + b"\n")
    answer = _answer(relay)
    if not answer.get("ok"):
        raise ProbeError(str(answer.get("error")))


def _answer(relay: socket.socket) -> dict[str, Any]:
    ends_s = time.monotonic() + SOCKET_TIMEOUT_S
    line = b""
    while not line.endswith(b"\n"):
        # Byte by byte, as what follows the line is counted.
        piece = relay.recv(1)
        if not piece:
            raise ProbeError("it closed the connection")
        line += piece
        if len(line) > _MAX_ANSWER_BYTES or time.monotonic() > ends_s:
            raise ProbeError(_NO_RELAY)
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        raise ProbeError(_NO_RELAY) from None
    if not isinstance(answer, dict) or "ok" not in answer:
        raise ProbeError(_NO_RELAY)
    return answer


def _round_trip(relay: socket.socket) -> float:
    began_s = time.monotonic()
    relay.sendall(b"1\n")
    _read(relay, 1, SOCKET_TIMEOUT_S)
    return time.monotonic() - began_s


def _read(relay: socket.socket, size_bytes: int, bound_s: float) -> tuple[int, float]:
    """Read until all are there or the time is up: how many bytes came, in how many seconds."""
    began_s = time.monotonic()
    buffer = bytearray(1 << 16)
    received_bytes = 0
    while received_bytes < size_bytes and time.monotonic() - began_s < bound_s:
        count = relay.recv_into(buffer, min(len(buffer), size_bytes - received_bytes))
        if not count:
            raise ProbeError("it broke off")
        received_bytes += count
    return received_bytes, time.monotonic() - began_s
