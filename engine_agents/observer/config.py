"""What an observer is told to watch: `observer.json`, checked once."""

from pathlib import Path

import msgspec


class WatchedNode(msgspec.Struct, frozen=True):
    """A node of this site; `url` is the base of its HTTP API."""

    name: str
    role: str
    url: str
    slots: int = 0


class WatchedLink(msgspec.Struct, frozen=True):
    """A link whose WAN relay this site watches."""

    name: str
    source: str
    target: str
    capacity_bytes_per_s: float
    admin_url: str
    rtt_s: float = 0.0


class ObserverConfig(msgspec.Struct, frozen=True):
    """The file `observer.json`."""

    nodes: tuple[WatchedNode, ...] = ()
    links: tuple[WatchedLink, ...] = ()


def load_config(path: Path) -> ObserverConfig:
    """Read `observer.json`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not what it must be.
    """
    return msgspec.json.decode(path.read_bytes(), type=ObserverConfig)
