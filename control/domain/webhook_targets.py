"""Where alerts may be sent: public addresses, and the private networks that an administrator names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL = 2000
MAX_HOST = 253
_SCHEMES = {"https": 443, "http": 80}
# Addresses that stand for an IPv4 address which a router on the way puts back in.
_TRANSLATED = (
    ip_network("64:ff9b::/96"),
    ip_network("64:ff9b:1::/48"),
    ip_network("2002::/16"),
    ip_network("2001::/32"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """A checked URL in its parts; `path` includes the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _SCHEMES[self.scheme] else f"{host}:{self.port}"


def parse_target(url: str) -> Target:
    """Read a receiver's URL.

    Raises:
        ValueError: it is none, or holds a user and password, which would show in lists and logs.
    """
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise ValueError("The URL has characters that a URL cannot have, or is too long.")
    parts = _split(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError("The URL begins with https:// or http:// and names a host.")
    if parts.username is not None or parts.password is not None:
        raise ValueError("The URL holds a user or password; what is sent is signed instead.")
    if parts.port == 0 or len(parts.hostname) > MAX_HOST:
        raise ValueError("The URL's host is too long, or its port is 0.")
    if parts.fragment:
        raise ValueError("The URL has a fragment, which is never sent.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, parts.hostname, parts.port or _SCHEMES[parts.scheme], path)


def parse_networks(text: str) -> tuple[Network, ...]:
    """Networks in CIDR notation, separated by commas or spaces.

    Raises:
        ValueError: one is none.
    """
    return tuple(ip_network(part) for part in text.replace(",", " ").split())


def is_allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Whether alerts may be sent to an address: it is in a named network, or public and stands for no other."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    address = mapped or address
    if any(address.version == network.version and address in network for network in networks):
        return True
    if any(address.version == network.version and address in network for network in _TRANSLATED):
        return False
    return address.is_global and not address.is_multicast


def first_allowed(addresses: Iterable[str], networks: Sequence[Network]) -> Address:
    """The first of a host's addresses, if alerts may be sent to every one of them.

    All, so that a name cannot be pointed at a private address beside a public one.

    Raises:
        ValueError: to one they may not, or there is none.
    """
    found = [ip_address(address.partition("%")[0]) for address in addresses]
    if not found:
        raise ValueError("The host has no address.")
    if not all(is_allowed(address, networks) for address in found):
        raise ValueError("The host has a private, local or reserved address: allow its network (PDD_WEBHOOK_NETWORKS).")
    return found[0]


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError("The URL cannot be read.") from error
    return parts
