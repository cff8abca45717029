"""For whom a policy's overrides hold: that they exist, and what comes out for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from control.domain.inventory import ItemRef, Kind
from control.domain.policy import FieldProblem, effective_values
from control.domain.policy_scopes import Scope, merge_policy, overrides_of
from control.errors import InvalidPolicyError
from control.store.tables import ModelProfileRow, SiteRow

GENERAL = "general"
DEFAULT = "default"
_KINDS = {Scope.SITE: Kind.SITE, Scope.MODEL: Kind.MODEL}
_TABLES: dict[Scope, type[SiteRow | ModelProfileRow]] = {Scope.SITE: SiteRow, Scope.MODEL: ModelProfileRow}


@dataclass(frozen=True, slots=True)
class EffectiveField:
    """What holds for one field, and where it comes from: an override such as `site fra`, `general`, or `default`."""

    path: str
    value: Any
    origin: str


def check_targets(session: Session, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """See that new overrides are for sites and models that exist; old ones may outlive theirs.

    Raises:
        InvalidPolicyError: one is for nobody.
    """
    known = {override.path for override in overrides_of(before)}
    problems = [
        FieldProblem(override.path, f"There is no {override.origin}.")
        for override in overrides_of(after)
        if override.path not in known and session.get(_TABLES[override.scope], override.name) is None
    ]
    if problems:
        raise InvalidPolicyError(problems=problems)


def overrides_for(document: Mapping[str, Any], ref: ItemRef) -> list[str]:
    """Paths of the overrides that one site or model has."""
    found = overrides_of(document)
    return [override.path for override in found if ItemRef(_KINDS[override.scope], override.name) == ref]


def effective_fields(
    document: Mapping[str, Any], site: str | None = None, model: str | None = None
) -> tuple[dict[str, Any], list[EffectiveField]]:
    """The document as it holds at a site and for a model, and every known field of it with its origin."""
    merged = merge_policy(document, site, model)
    fields = [
        EffectiveField(path, value, merged.origins.get(path, GENERAL if _is_said(document, path) else DEFAULT))
        for path, value in effective_values(merged.document).items()
    ]
    return merged.document, fields


def _is_said(document: Mapping[str, Any], path: str) -> bool:
    value: Any = document
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True
