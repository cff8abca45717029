"""Lists in parts: how many items a caller wants, and the cursor that asks for the next ones."""

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Query

from control.api.schemas import Page
from control.domain.policy import FieldProblem
from control.errors import InvalidError

DEFAULT_LIMIT = 200
MAX_LIMIT = 1000

Row = TypeVar("Row")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class Paging:
    """Which part of a list ordered by name: what follows `after`, the first part where it is None."""

    after: str | None
    limit: int

    @property
    def fetch(self) -> int:
        """How many to read: one more than wanted tells whether anything follows."""
        return self.limit + 1

    def page(self, rows: Sequence[Row], key: Callable[[Row], str], out: Callable[[Row], Out]) -> Page[Out]:
        """The part made of at most `fetch` rows."""
        shown = rows[: self.limit]
        cursor = encode_cursor(key(shown[-1])) if len(rows) > self.limit else None
        return Page(items=[out(row) for row in shown], next_cursor=cursor)


def read_paging(
    cursor: Annotated[str | None, Query(max_length=400, description="`next_cursor` of the part before.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT, description="At most so many items.")] = DEFAULT_LIMIT,
) -> Paging:
    """What a request's `cursor` and `limit` ask for.

    Raises:
        InvalidError: the cursor is none of ours.
    """
    return Paging(None if cursor is None else decode_cursor(cursor), limit)


Paged = Annotated[Paging, Depends(read_paging)]


def encode_cursor(key: str) -> str:
    """A cursor that points behind the item of that key; callers take it as it is."""
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    """The key in a cursor.

    Raises:
        InvalidError: the cursor is none of ours.
    """
    try:
        key = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError) as error:
        raise InvalidError(problems=[FieldProblem("cursor", "Is no next_cursor of this list.")]) from error
    if not key.isprintable():
        raise InvalidError(problems=[FieldProblem("cursor", "Is no next_cursor of this list.")])
    return key
