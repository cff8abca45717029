"""What an observer is told to watch: `observer.json`, or its site's part of the fleet document."""

import json
import logging
from pathlib import Path

import msgspec

from control.domain.topology import FleetSnapshot

logger = logging.getLogger(__name__)


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


def watched_path(data_dir: Path, site: str) -> Path:
    """Where a site's agent keeps the fleet that its observer should watch."""
    return data_dir / f"watched-{site}.json"


class WatchedFile:
    """The fleet document that a site's agent keeps up to date, read again whenever it was replaced."""

    def __init__(self, path: Path, site: str, first: ObserverConfig) -> None:
        self._path = path
        self._site = site
        self._stamp: tuple[int, int] | None = None
        self.config = first

    def refresh(self) -> ObserverConfig:
        """What to watch now; a file that is missing or broken changes nothing."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp != self._stamp:
                self._stamp = stamp
                self.config = load_site_of_fleet(self._path, self._site)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be read: %s", self._path, error)
        return self.config


def load_site_of_fleet(path: Path, site: str) -> ObserverConfig:
    """Read a fleet document and take what a site watches: its nodes, and the links that leave it.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no fleet document.
    """
    try:
        fleet = FleetSnapshot.from_document(json.loads(path.read_bytes()))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no fleet document: {error}") from error
    return ObserverConfig(
        nodes=tuple(
            WatchedNode(node.name, node.role, node.url, node.slots) for node in fleet.nodes if node.site == site
        ),
        links=tuple(
            WatchedLink(link.name, link.source, link.target, link.capacity_bytes_per_s, link.admin_url, link.rtt_s)
            for link in fleet.links
            if link.source == site and link.admin_url
        ),
    )
