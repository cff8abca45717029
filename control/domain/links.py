"""What a WAN relay should let through a link: what the link itself has, bounded by what the policy allows."""

from dataclasses import asdict, dataclass
from typing import Any

from control.domain.policy import Policy
from control.domain.topology import Link


@dataclass(frozen=True, slots=True)
class LinkOrder:
    """The settings of one link on its relay; a cap of None is none beside the link's capacity."""

    rate_cap_bytes_per_s: float | None
    flow_cap_bytes_per_s: float | None
    max_transfers: int
    classes: dict[str, dict[str, float]]

    def to_document(self) -> dict[str, Any]:
        """Plain JSON data, as the relay's admin API takes it."""
        return asdict(self)


def order_link(link: Link, policy: Policy) -> LinkOrder:
    """What the relay of a link should enforce under a policy.

    The link's own flow cap stands for what the path gives one stream: the policy may only lower it.
    """
    wanted = policy.link(link.name)
    caps = [cap for cap in (link.flow_cap_bytes_per_s, wanted.flow_cap_bytes_per_s) if cap is not None]
    return LinkOrder(
        rate_cap_bytes_per_s=wanted.rate_cap_bytes_per_s,
        flow_cap_bytes_per_s=min(caps, default=None),
        max_transfers=wanted.max_transfers,
        classes={
            name: {"priority": service_class.link_priority, "weight": service_class.link_weight}
            for name, service_class in policy.classes.items()
        },
    )
