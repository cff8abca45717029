"""Overrides in a policy document: for whom they hold, and what comes out where several apply."""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from control.domain.policy_fields import PolicyField, find_field, is_member_name

OVERRIDES = "overrides"
MAX_OVERRIDES = 100

# A model's requests are told apart by the gateway alone, and only once it has read them.
MODEL_SECTIONS = ("routing", "handoff", "outlier", "classes")
# These are of the whole fleet, or name their site themselves.
GENERAL_SECTIONS = ("guard", "pools")
_MODEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:/-]{0,126}[A-Za-z0-9])?")


class Scope(StrEnum):
    """What an override holds for, the more special last: it wins."""

    SITE = "sites"
    MODEL = "models"


@dataclass(frozen=True, slots=True)
class Override:
    """The fields that one site or model has of its own."""

    scope: Scope
    name: str
    section: Any

    @property
    def path(self) -> str:
        """Where it stands in the document."""
        return f"{OVERRIDES}.{self.scope}.{self.name}"

    @property
    def origin(self) -> str:
        """Its name for people."""
        return f"{self.scope.value.removesuffix('s')} {self.name}"


@dataclass(frozen=True, slots=True)
class MergedPolicy:
    """A document in which overrides have been applied, and from which of them each of its own values comes.

    A path that is missing in `origins` has its value from the document's general part, or is a default.
    """

    document: dict[str, Any]
    origins: dict[str, str]


def merge_policy(document: Mapping[str, Any], site: str | None = None, model: str | None = None) -> MergedPolicy:
    """What holds at a site, for a model, or both. Overrides that a given scope has used up are left out of the result.

    Overrides for models stay in what a site gets, as a gateway serves several.
    """
    merged = deepcopy({key: value for key, value in document.items() if key != OVERRIDES})
    origins: dict[str, str] = {}
    asked = {Scope.SITE: site, Scope.MODEL: model}
    for scope in Scope:
        for override in overrides_of(document, scope):
            if override.name == asked[scope] and isinstance(override.section, Mapping):
                for path in _lay_over(merged, override.section):
                    origins[path] = override.origin
    rest = _rest(document, model)
    return MergedPolicy({**merged, OVERRIDES: rest} if rest else merged, origins)


def overrides_of(document: Mapping[str, Any], *scopes: Scope) -> Iterator[Override]:
    """The overrides of some scopes, or of all."""
    sections = document.get(OVERRIDES)
    for scope in scopes or tuple(Scope):
        members = sections.get(scope.value) if isinstance(sections, Mapping) else None
        for name, section in members.items() if isinstance(members, Mapping) else ():
            yield Override(scope, name, section)


def is_scope_name(scope: Scope, name: object) -> bool:
    """Whether something can be the name of a site or a model."""
    if scope is Scope.SITE:
        return is_member_name(name)
    return isinstance(name, str) and _MODEL_NAME.fullmatch(name) is not None


def split_path(path: str) -> tuple[str, ...]:
    """The keys that a path leads over. Models may have dots in their names; what follows is a known field's path."""
    parts = path.split(".")
    if len(parts) < 4 or parts[0] != OVERRIDES or parts[1] not in tuple(Scope):
        return tuple(parts)
    for end in range(3, len(parts)):
        if find_field(".".join(parts[end:])) is not None:
            return (parts[0], parts[1], ".".join(parts[2:end]), *parts[end:])
    return tuple(parts)


def find_scoped_field(path: str) -> PolicyField | None:
    """The field of that path, in the general part or in an override that may have it; None if there is none."""
    keys = split_path(path)
    if keys[0] != OVERRIDES:
        return find_field(path)
    if len(keys) < 5 or keys[1] not in tuple(Scope) or not is_scope_name(Scope(keys[1]), keys[2]):
        return None
    field = find_field(".".join(keys[3:]))
    return field if field is not None and may_override(Scope(keys[1]), field) else None


def may_override(scope: Scope, field: PolicyField) -> bool:
    """Whether whoever enforces a field can tell the members of a scope apart."""
    section = field.path.partition(".")[0]
    if scope is Scope.SITE:
        return section not in GENERAL_SECTIONS
    return section in MODEL_SECTIONS and "WAN relay" not in field.enforced_by


def _lay_over(base: dict[str, Any], section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in section.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            inner = base.get(key)
            if not isinstance(inner, dict):
                inner = base[key] = {}
            yield from _lay_over(inner, value, f"{path}.")
        else:
            base[key] = deepcopy(value)
            yield path


def _rest(document: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """The overrides that somebody further on has to apply."""
    sections = document.get(OVERRIDES)
    if model is not None or not isinstance(sections, Mapping) or not sections.get(Scope.MODEL.value):
        return {}
    return {Scope.MODEL.value: deepcopy(sections[Scope.MODEL.value])}
