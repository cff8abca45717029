"""Entity tags: what a caller has read, and whether it is still so when the change comes."""

import re
from collections.abc import Collection
from typing import Annotated

from fastapi import Depends, Header, Response

from control.domain.versions import ANY_VERSION

_TAG = re.compile(r'(?:W/)?"([^"]*)"')


def set_etag(response: Response, version: str) -> None:
    """Tell the caller the version of what the answer holds."""
    response.headers["ETag"] = f'"{version}"'


def read_if_match(
    if_match: Annotated[
        str | None, Header(max_length=1000, description="The ETag of what you have read; `*` for whatever is there.")
    ] = None,
) -> Collection[str] | None:
    """The versions that a change was made against: those of `If-Match`, or None where it is missing.

    Weak tags are compared like strong ones, as proxies weaken the tags of answers that they compress. What is no tag
    matches nothing.
    """
    if if_match is None:
        return None
    if if_match.strip() == "*":
        return ANY_VERSION
    return frozenset(_TAG.findall(if_match))


Expected = Annotated[Collection[str] | None, Depends(read_if_match)]
