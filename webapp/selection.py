"""What the address selects: a site and a span of time. Links carry it from page to page."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

RANGES_S: Final[Mapping[str, int]] = {
    "5m": 300,
    "15m": 900,
    "1h": 3_600,
    "6h": 21_600,
    "24h": 86_400,
    "7d": 604_800,
}
DEFAULT_RANGE: Final = "15m"
MAX_SPAN_S: Final = 396 * 86_400


@dataclass(frozen=True, slots=True)
class Selection:
    """One site, or all where it is empty; the last `range_s` seconds, or from `start_s` to `end_s`, Unix seconds."""

    site: str = ""
    range: str = DEFAULT_RANGE
    start_s: int | None = None
    end_s: int | None = None

    @classmethod
    def of(cls, parameters: Mapping[str, str], sites: tuple[str, ...] = ()) -> "Selection":
        """Read from the parameters of an address; what cannot be meant falls back to the default."""
        site = parameters.get("site", "")
        start_s, end_s = _moment(parameters.get("from", "")), _moment(parameters.get("to", ""))
        is_span = start_s is not None and end_s is not None and start_s < end_s <= start_s + MAX_SPAN_S
        named = parameters.get("range", "")
        return cls(
            site if site in sites else "",
            named if named in RANGES_S else DEFAULT_RANGE,
            start_s if is_span else None,
            end_s if is_span else None,
        )

    @property
    def is_absolute(self) -> bool:
        """Whether it ends at a fixed moment and not now."""
        return self.start_s is not None

    @property
    def range_s(self) -> int:
        """How much time it covers, seconds."""
        if self.start_s is not None and self.end_s is not None:
            return self.end_s - self.start_s
        return RANGES_S[self.range]

    def bounds_s(self, now_s: float) -> tuple[float, float]:
        """From when to when, Unix seconds."""
        if self.start_s is not None and self.end_s is not None:
            return self.start_s, self.end_s
        return now_s - self.range_s, now_s

    @property
    def query(self) -> str:
        """What a link to another page carries: empty, or a question mark and parameters."""
        chosen: dict[str, str | int] = {}
        if self.site:
            chosen["site"] = self.site
        if self.start_s is not None and self.end_s is not None:
            chosen |= {"from": self.start_s, "to": self.end_s}
        elif self.range != DEFAULT_RANGE:
            chosen["range"] = self.range
        return f"?{urlencode(chosen)}" if chosen else ""


def link_with(path: str, parameters: Mapping[str, str], **changes: str) -> str:
    """An address with some parameters changed, those that are empty left out; a cursor never outlives a change."""
    wanted = {name: value for name, value in parameters.items() if name != "cursor"} | changes
    if "range" in changes:
        wanted |= {"from": "", "to": ""}
    kept = {name: value for name, value in wanted.items() if value}
    return f"{path}?{urlencode(kept)}" if kept else path


def _moment(text: str) -> int | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return int(found) if math.isfinite(found) and 0 <= found < 1e11 else None
