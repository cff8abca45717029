"""The JSON Schema of the policy document, made from the table of its fields."""

from collections.abc import Callable
from functools import partial
from typing import Any

from control.domain.policy_check import SCHEMA_VERSION
from control.domain.policy_fields import FIELD_FAMILIES, POLICY_FIELDS, FieldKind, PolicyField, family_fields
from control.domain.policy_scopes import MAX_OVERRIDES, OVERRIDES, Scope, may_override


def policy_json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the document: the general part, and below `overrides` what sites and models may have."""
    version = {"type": "integer", "minimum": 1, "default": SCHEMA_VERSION}
    scopes = {scope.value: _members(_sections(partial(may_override, scope))) for scope in Scope}
    overrides = {"type": "object", "properties": scopes, "description": "What single sites and models have instead."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Policy",
        "type": "object",
        "properties": {"schema_version": version, **_sections(lambda _: True), OVERRIDES: overrides},
    }


def _members(sections: dict[str, Any]) -> dict[str, Any]:
    member = {"type": "object", "properties": sections}
    return {"type": "object", "maxProperties": MAX_OVERRIDES, "additionalProperties": member}


def _sections(is_wanted: Callable[[PolicyField], bool]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for field in filter(is_wanted, POLICY_FIELDS):
        _put(root, field.path, field)
    for family in FIELD_FAMILIES:
        fields = [field for field in family_fields(family, "*") if is_wanted(field)]
        if fields:
            section = root.setdefault(family, {"type": "object", "properties": {}})
            members: dict[str, Any] = {}
            for field in fields:
                _put(members, field.path.removeprefix(f"{family}.*."), field)
            section["additionalProperties"] = {"type": "object", "properties": members}
    return root


def _put(root: dict[str, Any], path: str, field: PolicyField) -> None:
    *parents, leaf = path.split(".")
    section = root
    for parent in parents:
        section = section.setdefault(parent, {"type": "object", "properties": {}})["properties"]
    section[leaf] = _field_schema(field)


def _field_schema(field: PolicyField) -> dict[str, Any]:
    kind = "string" if field.kind is FieldKind.CHOICE else field.kind.value
    schema: dict[str, Any] = {
        "type": [kind, "null"] if field.nullable else kind,
        "description": field.help,
        "default": field.default,
        "x-unit": field.unit,
        "x-enforced-by": list(field.enforced_by),
    }
    if field.choices:
        schema["enum"] = list(field.choices)
    if field.minimum is not None:
        schema |= {"minimum": field.minimum, "maximum": field.maximum}
    if field.disabled_reason:
        schema["x-disabled-reason"] = field.disabled_reason
    return schema
