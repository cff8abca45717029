"""Refuses changes that were made against something that has changed meanwhile."""

from collections.abc import Collection

from control.domain.versions import is_expected
from control.errors import PreconditionRequiredError, StaleRevisionError


def check_version(version: str, expected: Collection[str] | None) -> None:
    """Compare a version with those that a change was made against; call it in the transaction of the change.

    Raises:
        PreconditionRequiredError: the change does not say.
        StaleRevisionError: it is another one.
    """
    if expected is None:
        raise PreconditionRequiredError("Say what the change was made against: If-Match with the ETag, or `*`.")
    if not is_expected(version, expected):
        raise StaleRevisionError("It has changed since you read it; read it again.")
