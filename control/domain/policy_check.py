"""What is wrong with a policy document."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from control.domain.policy_fields import (
    DEFAULT_CLASS,
    FIELD_FAMILIES,
    POLICY_FIELDS,
    FieldKind,
    PolicyField,
    family_fields,
    fields_of,
    find_field,
    is_member_name,
)
from control.domain.policy_scopes import (
    MAX_OVERRIDES,
    OVERRIDES,
    Override,
    Scope,
    is_scope_name,
    may_override,
    merge_policy,
    overrides_of,
    split_path,
)

SCHEMA_VERSION = 1

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """What is wrong with one field; `path` is empty for the document as a whole."""

    path: str
    message: str


def check_document(document: Document) -> tuple[dict[str, Any], list[FieldProblem]]:
    """Value of every known field of the general part, and all that is wrong with the document."""
    values, problems = _check_general(document)
    if isinstance(document, Mapping) and not problems:
        problems = list(dict.fromkeys(_override_problems(document)))
    return values, problems


def _override_problems(document: Document) -> Iterator[FieldProblem]:
    overrides = document.get(OVERRIDES, {})
    if not isinstance(overrides, Mapping):
        yield FieldProblem(OVERRIDES, "Must be an object.")
        return
    for scope in Scope:
        members = overrides.get(scope.value, {})
        if not isinstance(members, Mapping):
            yield FieldProblem(f"{OVERRIDES}.{scope}", "Must be an object.")
        elif len(members) > MAX_OVERRIDES:
            yield FieldProblem(f"{OVERRIDES}.{scope}", f"At most {MAX_OVERRIDES} of a kind may have overrides.")
            return
    for override in overrides_of(document):
        yield from _problems_of(document, override)
    sites, models = (_with_classes(document, scope) for scope in Scope)
    for site in sites:
        for model in models:
            _, found = _check_general(merge_policy(document, site.name, model.name).document)
            yield from (FieldProblem(f"{model.path}.{one.path}", f"With {site.origin}: {one.message}") for one in found)


def _problems_of(document: Document, override: Override) -> Iterator[FieldProblem]:
    """What is wrong with one override; fields that nobody knows are kept, as everywhere."""
    if not is_scope_name(override.scope, override.name):
        yield FieldProblem(override.path, f"Is no name of a {override.scope.value.removesuffix('s')}.")
    if not isinstance(override.section, Mapping):
        yield FieldProblem(override.path, "Must be an object.")
        return
    for path, _ in leaves(override.section):
        field = find_field(path)
        if field is not None and not may_override(override.scope, field):
            yield FieldProblem(f"{override.path}.{path}", f"Cannot differ between {override.scope.value}.")
    asked = {override.scope.value.removesuffix("s"): override.name}
    _, found = _check_general(merge_policy(document, **asked).document)
    yield from (FieldProblem(f"{override.path}.{problem.path}", problem.message) for problem in found)


def _with_classes(document: Document, scope: Scope) -> list[Override]:
    """The overrides that touch objectives: those of a site and of a model may contradict each other."""
    found = overrides_of(document, scope)
    return [override for override in found if isinstance(override.section, Mapping) and "classes" in override.section]


def _check_general(document: Document) -> tuple[dict[str, Any], list[FieldProblem]]:
    if not isinstance(document, Mapping):
        return {}, [FieldProblem("", "A policy is an object with sections.")]
    values: dict[str, Any] = {}
    problems = _version_problems(document) + _section_problems(document)
    broken_sections = {problem.path for problem in problems}
    for field in fields_of(document):
        if any(field.path.startswith(f"{section}.") for section in broken_sections):
            continue
        present, value = _look_up(document, field.path)
        if not present:
            value = field.default
        message = _value_problem(field, value)
        if message:
            problems.append(FieldProblem(field.path, message))
        elif field.kind is FieldKind.INTEGER and value is not None:
            values[field.path] = int(value)
        else:
            values[field.path] = value
    for name in class_names(document):
        p90, p99 = values.get(f"classes.{name}.ttft_p90_s"), values.get(f"classes.{name}.ttft_p99_s")
        if p90 is not None and p99 is not None and p99 < p90:
            problems.append(FieldProblem(f"classes.{name}.ttft_p99_s", "Must not be below ttft_p90_s."))
    return values, problems


def _version_problems(document: Document) -> list[FieldProblem]:
    version = document.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION + 1:
        return [FieldProblem("schema_version", f"Must be a whole number from 1 to {SCHEMA_VERSION + 1}.")]
    return []


def class_names(document: Document) -> list[str]:
    """The service classes: the default one, and those that the document names."""
    return list(dict.fromkeys((DEFAULT_CLASS, *member_names(document, "classes"))))


def member_names(document: Document, family: str) -> list[str]:
    """The members of a family that the document names."""
    section = document.get(family)
    return [name for name in section if is_member_name(name)] if isinstance(section, Mapping) else []


def _section_problems(document: Document) -> list[FieldProblem]:
    sections = dict.fromkeys(field.path.rpartition(".")[0] for field in fields_of(document))
    parents = dict.fromkeys(path for name in sections for path in _ancestors(name))
    found = ((path, *_look_up(document, path)) for path in parents)
    return [
        FieldProblem(path, "Must be an object.")
        for path, present, value in found
        if present and not isinstance(value, Mapping)
    ]


def _ancestors(path: str) -> Iterator[str]:
    parts = path.split(".")
    return (".".join(parts[: end + 1]) for end in range(len(parts)))


def _look_up(document: Document, path: str) -> tuple[bool, Any]:
    value: Any = document
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False, None
        value = value[part]
    return True, value


def _value_problem(field: PolicyField, value: Any) -> str:
    if value is None:
        return "" if field.nullable else "Must have a value."
    if field.kind is FieldKind.BOOLEAN:
        return "" if isinstance(value, bool) else "Must be true or false."
    if field.kind is FieldKind.CHOICE:
        return (
            "" if isinstance(value, str) and value in field.choices else f"Must be one of {', '.join(field.choices)}."
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - not a number
        return "Must be a number."
    if field.minimum is not None and field.maximum is not None and not field.minimum <= value <= field.maximum:
        return f"Must be from {field.minimum:g} to {field.maximum:g}{f' {field.unit}' if field.unit else ''}."
    if field.kind is FieldKind.INTEGER and not float(value).is_integer():
        return "Must be a whole number."
    return ""


def leaves(document: Document, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its path; empty sections of known fields are none."""
    for key, value in document.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}.")
        elif not isinstance(value, Mapping) or not _is_section(path):
            yield path, value


def _is_section(path: str) -> bool:
    """Whether known fields lie below a path."""
    keys = split_path(path)
    if keys[0] == OVERRIDES:
        return len(keys) < 4 or _is_section(".".join(keys[3:]))
    family, _, rest = path.partition(".")
    if family in FIELD_FAMILIES and not rest:
        return True
    name, _, _ = rest.partition(".")
    members = family_fields(family, name) if family in FIELD_FAMILIES and is_member_name(name) else ()
    return any(field.path.startswith(f"{path}.") for field in (*POLICY_FIELDS, *members))
