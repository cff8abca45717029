"""A policy that some requests run under before it holds for all: which requests, and what of it can be tried. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from control.domain.policy import FieldChange, apply_changes, diff_policies
from control.domain.policy_scopes import find_scoped_field, split_path

_TRIED_BY = "gateway"
# Both groups look into the same caches, so these say for all what is found there.
_FOR_ALL = frozenset({"cache.tenant_salt", "cache.block_tokens"})
_KEY_SPACE = 2**64


@dataclass(frozen=True, slots=True)
class Canary:
    """Which requests run under a revision: all of one site, or a share of all; `salt` makes each roll-out draw anew."""

    revision: int
    site: str | None
    share: float
    salt: str

    def to_document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read what `to_document` gave.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        site = document["site"]
        share = float(document["share"])
        if not 0.0 <= share <= 1.0:
            raise ValueError("a canary's share lies between 0 and 1")
        return cls(int(document["revision"]), None if site is None else str(site), share, str(document["salt"]))


def is_canary(canary: Canary, site: str, key: str) -> bool:
    """Whether a request runs under the canary's revision.

    Args:
        canary: the rule.
        site: where its gateway stands.
        key: what stays the same for requests that belong together, such as a session; equal keys have equal answers.
    """
    if canary.site is not None:
        return canary.site == site
    digest = hashlib.blake2b(f"{canary.salt}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < canary.share * _KEY_SPACE


@dataclass(frozen=True, slots=True)
class Trial:
    """What a canary can try of a revision; `held_back` are the changes that nobody can make for some requests only."""

    document: dict[str, Any]
    tried: tuple[FieldChange, ...]
    held_back: tuple[FieldChange, ...]


def plan_trial(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> Trial:
    """Part a revision's changes into those that a gateway decides request by request, and the rest.

    What a relay, an alert or the roll-out itself enforces has one value for all, so it waits until the revision is
    promoted.

    Raises:
        PolicyError: one of the documents cannot be obeyed, or what would be tried cannot without the rest.
    """
    changes = [change for change in diff_policies(base, candidate) if not _is_same(change)]
    held_back = tuple(change for change in changes if not _can_be_tried(change.path))
    tried = tuple(change for change in changes if _can_be_tried(change.path))
    known = [change for change in held_back if find_scoped_field(change.path) is not None]
    back = {change.path: change.before for change in known if _is_said(base, change.path)}
    gone = [change.path for change in known if not _is_said(base, change.path)]
    document = apply_changes(candidate, back, gone)
    return Trial(document, tried, held_back)


def _can_be_tried(path: str) -> bool:
    field = find_scoped_field(path)
    return field is not None and _TRIED_BY in field.enforced_by and field.path not in _FOR_ALL


def _is_same(change: FieldChange) -> bool:
    """A member that comes or goes brings fields with their defaults along, which change nothing."""
    field = find_scoped_field(change.path)
    if field is None or change.path.startswith("overrides."):
        return False
    before, after = (field.default if value is None else value for value in (change.before, change.after))
    return bool(before == after)


def _is_said(document: Mapping[str, Any], path: str) -> bool:
    value: Any = document
    for key in split_path(path):
        if not isinstance(value, Mapping) or key not in value:
            return False
        value = value[key]
    return True
