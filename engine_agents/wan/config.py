"""What a relay is told when it starts, and what a puller says first: JSON from outside, checked once."""

import ipaddress
from collections.abc import Iterable
from pathlib import Path

import msgspec

from engine_agents.wan.shaping import ClassShare, LinkShape

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PIPELINES = ("direct", "relay", "outlier")
OTHER_PIPELINE = "other"
TRANSFER_ID_LENGTH = 128
CLASS_NAME_LENGTH = 64
MAX_CLASSES = 32


class LinkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One link of `links.json`."""

    name: str
    source: str
    target: str
    capacity_bytes_per_s: float
    rtt_s: float
    rate_cap_bytes_per_s: float | None = None
    flow_cap_bytes_per_s: float | None = None
    max_transfers: int | None = None
    classes: dict[str, ClassShare] = {}

    def __post_init__(self) -> None:
        check_shape(self.shape())

    def shape(self) -> LinkShape:
        """The shape the link starts with."""
        return LinkShape(
            capacity_bytes_per_s=self.capacity_bytes_per_s,
            rtt_s=self.rtt_s,
            rate_cap_bytes_per_s=self.rate_cap_bytes_per_s,
            flow_cap_bytes_per_s=self.flow_cap_bytes_per_s,
            max_transfers=self.max_transfers,
            classes=self.classes,
        )


class RelayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file `links.json`; targets outside the allowed networks are refused."""

    links: tuple[LinkConfig, ...]
    allowed_networks: tuple[str, ...] = ("127.0.0.0/8",)

    def networks(self) -> tuple[Network, ...]:
        """The allowed networks, parsed."""
        return tuple(ipaddress.ip_network(network) for network in self.allowed_networks)


class Preamble(msgspec.Struct, frozen=True):
    """The first line of a puller; fields it does not know of are ignored."""

    link: str
    target: str
    transfer_id: str = ""
    pipeline: str = OTHER_PIPELINE
    service_class: str = "default"


def check_shape(shape: LinkShape) -> None:
    """Refuse a shape that no link can have.

    Raises:
        ValueError: a rate or weight is not positive and finite, the round trip is not within 0 and 10 s, no transfer
            may send, or there are too many classes for a metric's label.
    """
    rates = {
        "capacity_bytes_per_s": shape.capacity_bytes_per_s,
        "rate_cap_bytes_per_s": shape.rate_cap_bytes_per_s,
        "flow_cap_bytes_per_s": shape.flow_cap_bytes_per_s,
    }
    for name, rate in rates.items():
        if rate is not None and not 0 < rate < float("inf"):
            raise ValueError(f"{name} must be positive and finite")
    if not 0 <= shape.rtt_s <= 10:
        raise ValueError("rtt_s must be within 0 and 10 s")
    if shape.max_transfers is not None and shape.max_transfers < 1:
        raise ValueError("max_transfers must be at least 1: pause the link to stop it")
    if len(shape.classes) > MAX_CLASSES or any(not 0 < len(name) <= CLASS_NAME_LENGTH for name in shape.classes):
        raise ValueError(f"at most {MAX_CLASSES} classes, with names of 1 to {CLASS_NAME_LENGTH} characters")
    if any(not 1e-3 <= share.weight <= 1e3 for share in shape.classes.values()):
        raise ValueError("a class's weight must be within 0.001 and 1000")


def load_config(path: Path) -> RelayConfig:
    """Read `links.json`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not what it must be (msgspec.ValidationError is one), or a name stands twice.
    """
    config = msgspec.json.decode(path.read_bytes(), type=RelayConfig)
    names = [link.name for link in config.links]
    if len(set(names)) != len(names):
        raise ValueError("two links have the same name")
    config.networks()
    return config


def parse_preamble(line: bytes) -> Preamble:
    """Read a puller's first line; a pipeline outside the closed set counts as "other".

    Raises:
        ValueError: the line is not a preamble.
    """
    preamble = msgspec.json.decode(line, type=Preamble)
    pipeline = preamble.pipeline if preamble.pipeline in PIPELINES else OTHER_PIPELINE
    return msgspec.structs.replace(
        preamble,
        pipeline=pipeline,
        transfer_id=preamble.transfer_id[:TRANSFER_ID_LENGTH],
        service_class=preamble.service_class[:CLASS_NAME_LENGTH],
    )


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`.

    Raises:
        ValueError: it is neither.
    """
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("target must be host:port")
    return host.strip("[]"), int(port)


def first_allowed(addresses: Iterable[str], networks: Iterable[Network]) -> str | None:
    """The first address that lies in one of the networks, None if none does."""
    allowed = tuple(networks)
    return next(
        (address for address in addresses if any(ipaddress.ip_address(address) in net for net in allowed)), None
    )
