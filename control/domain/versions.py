"""The version of a thing by its content: equal content, equal version."""

import hashlib
import json
from collections.abc import Collection
from typing import Any

# A tuple, so that it differs from every set of tags, also from that of the tag "*".
ANY_VERSION: Collection[str] = ("*",)

_LENGTH = 20


def version_of(facts: Any) -> str:
    """Version of plain JSON data."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_LENGTH]


def is_expected(version: str, expected: Collection[str]) -> bool:
    """Whether a version is among those that a change was made against."""
    return expected == ANY_VERSION or version in expected
