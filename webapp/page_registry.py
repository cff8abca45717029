"""All pages in the order of the rail: a new one is an entry here, a module in `webapp/pages` and its templates.

Its title is the text `pages.<key>`, its icon a shape of `templates/icons.html`; `g` and then the shortcut opens it.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PageEntry:
    """One page of the rail. Below 700 px the `is_primary` ones stay, four at most; the others are under More."""

    key: str
    path: str
    icon: str
    shortcut: str
    is_primary: bool = False
    starts_group: bool = False


PAGES: Final[tuple[PageEntry, ...]] = (
    PageEntry("live", "/", "activity", "l", is_primary=True),
    PageEntry("requests", "/requests", "filter", "r", is_primary=True),
    PageEntry("topology", "/topology", "network", "t", is_primary=True),
    PageEntry("policies", "/policies", "sliders", "p"),
    PageEntry("operations", "/operations", "tasks", "o"),
    PageEntry("inventory", "/inventory", "server", "i", starts_group=True),
    PageEntry("alerts", "/alerts", "bell", "a", is_primary=True),
    PageEntry("audit", "/audit", "scroll", "u"),
    PageEntry("access", "/access", "key", "x"),
    PageEntry("docs", "/docs", "book", "c"),
)
