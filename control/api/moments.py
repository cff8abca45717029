"""Moments in requests: ISO 8601 with a zone, within what every database can keep."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime

_EARLIEST, _LATEST = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)


def _in_utc(moment: datetime) -> datetime:
    # A zone must not carry the first or last day of the calendar beyond its end.
    try:
        utc = moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("The moment is out of bounds.") from None
    if not _EARLIEST <= utc <= _LATEST:
        raise ValueError("The moment is out of bounds.")
    return utc


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
