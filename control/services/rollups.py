"""Reads the sums of recent time, as those who judge need them."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from sqlmodel import Session

from control.domain.rollups import COARSE, FINE, MIDDLE, LinkSums, RequestKey, RequestSums, Resolution, SiteSums
from control.store.rollups import Spans, load_link_rollups, load_site_rollups, sum_request_rollups

MAX_FINE_WINDOW_S = 900
MAX_MIDDLE_WINDOW_S = 2 * 86_400

Group = TypeVar("Group")
_Fine = TypeVar("_Fine")


def resolution_for(window_s: float) -> Resolution:
    """The shortest spans of which a window takes no more than a few hundred."""
    if window_s <= MAX_FINE_WINDOW_S:
        return FINE
    return MIDDLE if window_s <= MAX_MIDDLE_WINDOW_S else COARSE


def load_requests(
    session: Session,
    now_s: float,
    window_s: float,
    group: Callable[[RequestKey], Group],
    *figures: str,
    before_s: float = 0.0,
) -> dict[Group, RequestSums]:
    """Requests of a window that is as long as asked for, or up to one span longer.

    It ends now, or at least `before_s` ago, and then holds nothing that is younger.
    """
    resolution = resolution_for(window_s)
    until_s = resolution.start_s(now_s - before_s) if before_s else now_s
    spans = Spans(resolution, resolution.start_s(until_s - window_s), until_s)
    return sum_request_rollups(session, spans, group, figures)


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


def grouped(requests: Mapping[_Fine, RequestSums], group: Callable[[_Fine], Group]) -> dict[Group, RequestSums]:
    """The same with fewer distinctions."""
    parts: dict[Group, list[RequestSums]] = {}
    for key, sums in requests.items():
        parts.setdefault(group(key), []).append(sums)
    return {name: many[0] if len(many) == 1 else RequestSums.merged(many) for name, many in parts.items()}
