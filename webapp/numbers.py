"""Figures as templates show them: domain units in, digits out; the unit stands beside them in the template."""

from datetime import UTC, datetime

NONE = "–"


def seconds(value: float | None) -> str:
    """Enough digits to tell two values apart, never more than three significant ones."""
    if value is None:
        return NONE
    digits = next((many for limit, many in ((0.1, 3), (10, 2), (100, 1)) if abs(value) < limit), 0)
    return f"{value:,.{digits}f}"


def milliseconds(value_s: float | None) -> str:
    """Seconds as whole milliseconds."""
    return NONE if value_s is None else f"{value_s * 1000:,.0f}"


def percent(ratio: float | None, digits: int = 1) -> str:
    """A ratio in percent."""
    return NONE if ratio is None else f"{ratio * 100:,.{digits}f}"


def count(value: float | None) -> str:
    """A whole number with thousands."""
    return NONE if value is None else f"{value:,.0f}"


def megabits(bytes_per_s: float | None, digits: int = 0) -> str:
    """Bytes per second as Mb/s."""
    return NONE if bytes_per_s is None else f"{bytes_per_s * 8 / 1e6:,.{digits}f}"


def megabytes(value: float | None) -> str:
    """Bytes as MB."""
    if value is None:
        return NONE
    return f"{value / 1e6:,.{0 if value >= 1e8 else 1}f}"


def clock(unix_s: float, *, milliseconds_too: bool = False) -> str:
    """Time of day in UTC."""
    at = datetime.fromtimestamp(unix_s, UTC)
    return at.strftime("%H:%M:%S.%f")[:-3] if milliseconds_too else at.strftime("%H:%M:%S")


def day(unix_s: float) -> str:
    """Date and time in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


FILTERS = {
    "seconds": seconds,
    "milliseconds": milliseconds,
    "percent": percent,
    "count": count,
    "megabits": megabits,
    "megabytes": megabytes,
    "clock": clock,
    "day": day,
}
