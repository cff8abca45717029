"""Closed sets of the domain, ages and numbers, in the words that people read."""

from datetime import datetime

from control.domain.routing import Reason
from webapp.strings import Strings

_UNITS = ((86_400, "days"), (3_600, "hours"), (60, "minutes"))


def reason_words(t: Strings) -> dict[str, str]:
    """Why that pipeline, by the name that records carry; `{transfer}` is the predicted time of the transfer."""
    return {reason.wire: t.texts[f"reason.{reason.wire}"] for reason in Reason}


def ago(then: datetime, now: datetime, t: Strings) -> str:
    """How long ago, coarsely: it is read, not computed with."""
    seconds = max(0, int((now - then).total_seconds()))
    for size, unit in _UNITS:
        if seconds >= size:
            return t(f"ago.{unit}", count=seconds // size)
    return t("ago.now") if seconds < 5 else t("ago.seconds", count=seconds)


def number(value: float) -> str:
    """A setting as somebody would type it."""
    return f"{value:.6g}"
