"""A policy draft between two looks at the editor: what it changes, what it was begun on, and who else changed what."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from control.domain.policy import FieldProblem, PolicyError, apply_changes
from control.domain.policy_check import leaves
from control.domain.policy_scopes import find_scoped_field

MAX_PENDING_CHARACTERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Pending:
    """Changes by path, and paths taken out; carried by the form from one look to the next."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    removed: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is changed."""
        return not self.changes and not self.removed

    def with_entry(self, paths: Sequence[str], changes: Mapping[str, Any], removed: Sequence[str]) -> "Pending":
        """Replace what is pending for some paths by what a form now says of them."""
        asked = set(paths)
        kept = {path: value for path, value in self.changes.items() if path not in asked}
        gone = [path for path in self.removed if path not in asked]
        return Pending({**kept, **changes}, (*gone, *removed))

    def to_text(self) -> str:
        """As a form carries it."""
        return json.dumps({"changes": dict(self.changes), "removed": list(self.removed)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Pending":
        """What a form brought back; what is none counts as nothing, as the policy checks everything again."""
        if len(text) > MAX_PENDING_CHARACTERS:
            return cls()
        try:
            document = json.loads(text or "{}")
            changes, removed = document.get("changes", {}), document.get("removed", [])
        except (ValueError, AttributeError, RecursionError):
            return cls()
        if not isinstance(changes, dict) or not isinstance(removed, list):
            return cls()
        return cls(changes, tuple(path for path in removed if isinstance(path, str)))

    def applied_to(self, base: Mapping[str, Any]) -> tuple[dict[str, Any], list[FieldProblem]]:
        """The document that it makes; where that cannot be obeyed, the base and what is wrong."""
        try:
            return apply_changes(base, self.changes, self.removed), []
        except PolicyError as error:
            return dict(base), error.problems


@dataclass(frozen=True, slots=True)
class MergeRow:
    """One field as it was, as somebody else made it, and as the draft wants it."""

    path: str
    base: Any
    theirs: Any
    yours: Any
    is_theirs: bool
    is_yours: bool

    @property
    def is_conflict(self) -> bool:
        """Whether both changed it, and not to the same."""
        return self.is_theirs and self.is_yours and self.theirs != self.yours


@dataclass(frozen=True, slots=True)
class Merge:
    """Two changes of one document side by side. `unknown` are paths that only YAML can carry over."""

    rows: tuple[MergeRow, ...]
    unknown: tuple[str, ...] = ()


def merge_three(base: Mapping[str, Any], theirs: Mapping[str, Any], pending: Pending) -> Merge:
    """What both sides made of a document, field by field, conflicts first."""
    before, after = dict(leaves(base)), dict(leaves(theirs))
    wanted = {path: value for path, value in before.items() if path not in set(pending.removed)} | dict(pending.changes)
    rows = []
    for path in dict.fromkeys((*before, *after, *wanted)):
        is_theirs = _differs(path, before, after)
        is_yours = path in pending.changes or path in pending.removed
        if is_theirs or is_yours:
            rows.append(MergeRow(path, before.get(path), after.get(path), wanted.get(path), is_theirs, is_yours))
    known = [row for row in rows if find_scoped_field(row.path) is not None]
    unknown = tuple(row.path for row in rows if row.is_yours and find_scoped_field(row.path) is None)
    return Merge(tuple(sorted(known, key=lambda row: (not row.is_conflict, not row.is_yours))), unknown)


def _differs(path: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return (path in first) != (path in second) or bool(first.get(path) != second.get(path))
