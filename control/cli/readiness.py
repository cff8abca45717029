"""Asks whether a process has come up."""

import asyncio
import contextlib
from pathlib import Path
from urllib.parse import urlsplit

from control.cli.process_spec import HttpProbe, LogProbe, Probe, TcpProbe

_PROBE_TIMEOUT_S = 2.0


async def is_ready(probe: Probe | None, log: Path, log_start_bytes: int) -> bool:
    """Try once. `log_start_bytes` is where this run's part of the log begins. Never raises for a process not up yet."""
    match probe:
        case None:
            return True
        case HttpProbe(url):
            return 200 <= await _http_status(url) < 300
        case TcpProbe(port):
            return await _accepts("127.0.0.1", port)
        case LogProbe(text):
            return _log_has(log, text, log_start_bytes)


async def _accepts(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _http_status(url: str) -> int:
    """The status of a plain GET, 0 where nothing answers. Written by hand to keep the starter small and quick."""
    address = urlsplit(url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    request = f"GET {address.path or '/'} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request.encode())
                status_line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return 0
    with contextlib.suppress(IndexError, ValueError):
        return int(status_line.split()[1])
    return 0


def _log_has(log: Path, text: str, start_bytes: int) -> bool:
    try:
        with log.open("rb") as stream:
            stream.seek(start_bytes)
            return text.encode() in stream.read(1_000_000)
    except FileNotFoundError:
        return False
