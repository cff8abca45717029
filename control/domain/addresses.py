"""Which addresses a site may name: agents and gateways call them with the site's secret, so not just any will do."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
_THIS_NETWORK = ip_network("0.0.0.0/8")


def network_problem(text: str) -> str:
    """Why a text is no network in CIDR notation; empty if it is one."""
    try:
        ip_network(text)
    except ValueError:
        return f"{text!r} is no network in CIDR notation, such as 10.1.0.0/16."
    return ""


def url_problem(url: str, networks: Sequence[str]) -> str:
    """Why the base of an HTTP API may not be called; empty if it may."""
    if any(character.isspace() or not character.isprintable() for character in url):
        return "Must be a URL without blanks."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "Must be a URL such as http://10.1.0.7:8000."
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return "Must be a URL such as http://10.1.0.7:8000."
    if "@" in parts.netloc or parts.query or parts.fragment or "?" in url or "#" in url:
        return "Must have no user, query or fragment."
    if port == 0:
        return "Must have a port from 1 to 65535."
    return host_problem(parts.hostname, networks)


def host_problem(host: str, networks: Sequence[str]) -> str:
    """Why a host may not be called; empty if it may.

    Names are refused: what they stand for can change after the check.
    """
    try:
        address = _plain(ip_address(host))
    except ValueError:
        return f"{host!r} is no IP address; names are refused, as they can be pointed elsewhere later."
    if address.is_link_local or address.is_multicast or address in _THIS_NETWORK or address.is_unspecified:
        return f"{host} is an address that no site may name."
    if any(address in ip_network(network) for network in networks if not network_problem(network)):
        return ""
    allowed = ", ".join(networks) or "none"
    return f"{host} is outside the networks that the site allows ({allowed})."


def _plain(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one that stands for it."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
