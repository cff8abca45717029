"""Closed sets of the domain in the words that people read."""

from collections.abc import Mapping
from datetime import datetime

from control.domain.routing import Reason

# `{transfer}` is the predicted time of the request's own transfer.
REASONS: Mapping[Reason, str] = {
    Reason.NO_MAIN: "no MD can take it",
    Reason.NO_MAIN_RELAY_ALONE: "no MD can take it, RLD alone",
    Reason.OUTLIER_SHORT_OUTPUT: "long prompt, short output",
    Reason.TRANSFER_SHORT: "transfer {transfer} ≤ limit",
    Reason.HIT_RATE_HIGH: "MD has nearly all of it",
    Reason.RELAY_AT_CEILING: "RLD at ceiling",
    Reason.RELAY_AT_CEILING_SLO_MISSED: "RLD full, direct over SLO",
    Reason.PARAMETER: "a parameter forces it",
    Reason.NO_RELAY: "no RLD can take it",
    Reason.TRANSFER_LONG: "transfer {transfer} > limit",
    Reason.NO_PREFILL: "no P can take it",
}


def reason_words() -> dict[str, str]:
    """Words by the name that records carry."""
    return {reason.wire: words for reason, words in REASONS.items()}


def ago(then: datetime, now: datetime) -> str:
    """How long ago, coarsely: it is read, not computed with."""
    seconds = max(0, int((now - then).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return "just now" if seconds < 5 else f"{seconds} s ago"


def number(value: float) -> str:
    """A setting as somebody would type it."""
    return f"{value:.6g}"
