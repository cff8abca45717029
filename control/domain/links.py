"""A link under a policy: what the link itself has, bounded by what the policy allows."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from control.domain.policy import Policy
from control.domain.topology import Link


@dataclass(frozen=True, slots=True)
class LinkOrder:
    """The settings of one link on its relay; a cap of None is none beside the link's capacity."""

    capacity_bytes_per_s: float
    rtt_s: float
    rate_cap_bytes_per_s: float | None
    flow_cap_bytes_per_s: float | None
    max_transfers: int
    classes: dict[str, dict[str, float]]

    def to_document(self) -> dict[str, Any]:
        """Plain JSON data, as the relay's admin API takes it."""
        return asdict(self)


def link_under(link: Link, policy: Policy) -> Link:
    """The link as transfers find it: capacity and flow cap as far as the policy allows, and its number of streams.

    The link's own flow cap stands for what the path gives one stream: the policy may only lower it.
    """
    wanted = policy.link(link.name)
    rates = (link.capacity_bytes_per_s, wanted.rate_cap_bytes_per_s)
    caps = (link.flow_cap_bytes_per_s, wanted.flow_cap_bytes_per_s)
    return replace(
        link,
        capacity_bytes_per_s=min(rate for rate in rates if rate is not None),
        flow_cap_bytes_per_s=min((cap for cap in caps if cap is not None), default=None),
        streams_per_transfer=wanted.streams_per_transfer,
    )


def order_link(link: Link, policy: Policy) -> LinkOrder:
    """What the relay of a link should enforce: what the inventory says the link is, and what the policy allows."""
    wanted = policy.link(link.name)
    return LinkOrder(
        capacity_bytes_per_s=link.capacity_bytes_per_s,
        rtt_s=link.rtt_s,
        rate_cap_bytes_per_s=wanted.rate_cap_bytes_per_s,
        flow_cap_bytes_per_s=link_under(link, policy).flow_cap_bytes_per_s,
        max_transfers=wanted.max_transfers,
        classes={
            name: {"priority": service_class.link_priority, "weight": service_class.link_weight}
            for name, service_class in policy.classes.items()
        },
    )
