"""Which requests an address asks for: filters, order and place of the Requests page, read leniently."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from control.domain.outcome import Outcome
from control.domain.slo import HIT_RATE_BUCKETS
from control.services.requests import Order, Place, RequestFilter, SortKey
from webapp.selection import Selection

MAX_WORD: Final = 200
# Parameters of the address by the field of the filter, in the order of the chips.
WORDS: Final[Mapping[str, str]] = {
    "id": "request_id",
    "node": "node",
    "model": "model",
    "pipeline": "pipeline",
    "reason": "reason",
    "service_class": "service_class",
    "tenant": "tenant",
    "traffic": "traffic",
    "outcome": "outcome",
    "handoff_mode": "handoff_mode",
}
NAMES: Final = (*WORDS, "bucket", "revision", "min_ttft_s")
# Parameters of the address by the dimension in which requests differ; one that is missing cannot be asked for.
DIMENSIONS: Final[Mapping[str, str]] = {
    **{name: name for name in ("site", "model", "traffic", "tenant", "service_class", "pipeline", "reason", "outcome")},
    **{name: name for name in ("handoff_mode", "revision")},
    **dict.fromkeys(("prefill_node", "relay_node", "main_node"), "node"),
}


def filter_of(parameters: Mapping[str, str], selection: Selection, now_s: float) -> RequestFilter:
    """Requests of the selected site and time that meet the filters; a filter that cannot be meant is left out."""
    since_s, until_s = selection.bounds_s(now_s)
    words = {field: _word(parameters.get(name)) for name, field in WORDS.items()}
    if words["outcome"] not in set(Outcome):
        words["outcome"] = None
    wanted = RequestFilter(
        since_s=since_s,
        until_s=until_s if selection.is_absolute else None,
        site=selection.site or None,
        hit_bucket=_whole(parameters.get("bucket"), HIT_RATE_BUCKETS - 1),
        revision=_whole(parameters.get("revision"), 2**31 - 1),
        min_ttft_s=_seconds(parameters.get("min_ttft_s")),
        **words,
    )
    # One that is looked for by its id is wanted whenever it was.
    return replace(wanted, since_s=None, until_s=None, site=None) if wanted.request_id else wanted


def active_filters(wanted: RequestFilter) -> dict[str, str]:
    """Parameters and values in force, beside site and time."""
    values: dict[str, Any] = {name: getattr(wanted, field) for name, field in WORDS.items()}
    values |= {"bucket": wanted.hit_bucket, "revision": wanted.revision, "min_ttft_s": wanted.min_ttft_s}
    return {
        name: f"{values[name]:g}" if name == "min_ttft_s" else str(values[name]) for name in NAMES if _is(values[name])
    }


def order_of(parameters: Mapping[str, str]) -> Order:
    """In which order; newest first where the address does not say."""
    key = parameters.get("sort", "")
    known = SortKey(key) if key in set(SortKey) else SortKey.AT
    return Order(known, parameters.get("dir") != "asc")


def place_of(parameters: Mapping[str, str]) -> Place | None:
    """Behind which row the page begins; None where it is the first."""
    value, _, number = parameters.get("cursor", "").partition("~")
    try:
        place = Place(float(value), int(number))
    except ValueError:
        return None
    return place if math.isfinite(place.value) and 0 <= place.number < 2**63 else None


def cursor_of(place: Place) -> str:
    """A place as an address holds it."""
    return f"{place.value!r}~{place.number}"


def _is(value: Any) -> bool:
    return value is not None


def _word(text: str | None) -> str | None:
    return text if text and len(text) <= MAX_WORD and text.isprintable() else None


def _whole(text: str | None, largest: int) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 12 and int(text) <= largest else None


def _seconds(text: str | None) -> float | None:
    try:
        found = float(text or "")
    except ValueError:
        return None
    return found if math.isfinite(found) and 0 <= found <= 86_400 else None
