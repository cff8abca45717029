"""The pools of all sites against the targets of the active policy."""

from sqlmodel import Session

from control.domain.pools import Pool, pools_of
from control.services.fleet import load_nodes, load_sites
from control.services.policies import load_active


def load_pools(session: Session, site: str | None = None) -> list[Pool]:
    """Pools of all sites, or of one; applying a policy moves no node, a rebalance does.

    Raises:
        NotFoundError: no policy has been applied yet.
    """
    sites = [one.name for one in load_sites(session) if site in {None, one.name}]
    return pools_of(load_active(session).revision.document, sites, load_nodes(session))
