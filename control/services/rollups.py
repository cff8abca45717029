"""Reads the sums of recent time, as those who judge need them."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from sqlmodel import Session

from control.domain.rollups import COARSE, FINE, MIDDLE, LinkSums, RequestKey, RequestSums, Resolution, SiteSums
from control.store.rollups import load_link_rollups, load_request_rollups, load_site_rollups

MAX_FINE_WINDOW_S = 900
MAX_MIDDLE_WINDOW_S = 2 * 86_400

_Group = TypeVar("_Group")
RequestsByKey = Mapping[RequestKey, RequestSums]


def resolution_for(window_s: float) -> Resolution:
    """The shortest spans of which a window takes no more than a few hundred."""
    if window_s <= MAX_FINE_WINDOW_S:
        return FINE
    return MIDDLE if window_s <= MAX_MIDDLE_WINDOW_S else COARSE


def load_requests(
    session: Session, now_s: float, window_s: float, *figures: str, before_s: float = 0.0
) -> dict[RequestKey, RequestSums]:
    """Requests of the window that ends `before_s` ago; it is as long as asked for or up to one span longer."""
    until_s = now_s - before_s
    resolution = resolution_for(window_s)
    since_s = resolution.start_s(until_s - window_s)
    return load_request_rollups(session, resolution, since_s, until_s, figures=figures)


def load_links(session: Session, now_s: float, window_s: float) -> dict[str, LinkSums]:
    """What each link carried within a window."""
    resolution = resolution_for(window_s)
    links: dict[str, LinkSums] = {}
    for key, sums in load_link_rollups(session, resolution, resolution.start_s(now_s - window_s), now_s).items():
        links.setdefault(key.link, LinkSums()).include(sums)
    return links


def load_sites(session: Session, now_s: float, window_s: float) -> dict[str, SiteSums]:
    """What each site reported within a window."""
    resolution = resolution_for(window_s)
    sites: dict[str, SiteSums] = {}
    for key, sums in load_site_rollups(session, resolution, resolution.start_s(now_s - window_s), now_s).items():
        sites.setdefault(key.site, SiteSums()).include(sums)
    return sites


def grouped(requests: RequestsByKey, group: Callable[[RequestKey], _Group]) -> dict[_Group, RequestSums]:
    """The same with fewer distinctions."""
    groups: dict[_Group, RequestSums] = {}
    for key, sums in requests.items():
        groups.setdefault(group(key), RequestSums()).include(sums)
    return groups
