"""Durations, sizes and moments as people read them."""

from datetime import UTC, datetime


def span(seconds: float) -> str:
    """A duration with one or two units, such as `4.2 s`, `3 min 20 s`, `2 h 5 min`, `6 d 3 h`."""
    if seconds < 10:
        return f"{seconds:.0f} s" if float(seconds).is_integer() else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for size, unit, below, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit} {rest} {small}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def clock(moment: datetime) -> str:
    """Time of day, UTC."""
    return moment.astimezone(UTC).strftime("%H:%M:%S")


def stamp(moment: datetime) -> str:
    """Day and time, UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def scaled(value: float, unit: str) -> str:
    """A large quantity with a prefix of thousands, such as `989 TFLOP/s`."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"
