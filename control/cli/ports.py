"""Local TCP ports: which are free, and which are taken."""

import secrets
import socket
from collections.abc import Iterable, Mapping

_SERVER_PORTS = range(20_000, 32_000)


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on the port now, past connections in TIME_WAIT notwithstanding."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def choose_ports(names: Iterable[str], remembered: Mapping[str, int], taken: Iterable[int] = ()) -> dict[str, int]:
    """One free loopback port per name: the remembered one where it is still free, so that addresses stay stable.

    Args:
        names: what needs a port.
        remembered: ports of an earlier start, by name.
        taken: ports that must not be chosen.
    """
    names = list(names)
    avoid = set(taken)
    chosen: dict[str, int] = {}
    for name in names:
        port = remembered.get(name)
        if port and port not in avoid and is_free(port):
            chosen[name] = port
            avoid.add(port)
    for name in names:
        if name not in chosen:
            chosen[name] = _fresh_port(avoid)
            avoid.add(chosen[name])
    return chosen


def _fresh_port(avoid: set[int]) -> int:
    """A free port below those that the kernel hands to outgoing connections, which could take it meanwhile."""
    while True:
        port = secrets.choice(_SERVER_PORTS)
        if port not in avoid and is_free(port):
            return port
