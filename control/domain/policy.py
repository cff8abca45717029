"""The policy document: how it is read, checked, compared and changed."""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from control.domain.policy_fields import (
    DEFAULT_CLASS,
    FIELD_FAMILIES,
    POLICY_FIELDS,
    FieldKind,
    HandoffPreference,
    PolicyField,
    family_fields,
    fields_of,
    find_field,
    is_member_name,
)

SCHEMA_VERSION = 1

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """Which pipeline and which nodes a request gets."""

    relay_when_transfer_exceeds_s: float
    direct_hit_rate: float | None
    relay_load_ceiling: float
    affinity_weight: float
    max_load_skew: float


@dataclass(frozen=True, slots=True)
class HandoffPolicy:
    """How a stream moves from RLD to MD."""

    mode: HandoffPreference
    one_shot_max_tokens: int
    catch_up_batch_tokens: int
    relay_max_tokens: int


@dataclass(frozen=True, slots=True)
class OutlierPolicy:
    """Which requests may end on RLD."""

    enabled: bool
    min_uncached_tokens: int
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """How prefixes are cut and hashed."""

    block_tokens: int
    tenant_salt: bool


@dataclass(frozen=True, slots=True)
class ServiceClass:
    """Objectives of one class of requests, seconds and ratios, its price relative to the default class, and its rank.

    Where transfers wait for a link the higher priority goes first; among those that send, rates follow the weights.
    """

    ttft_p90_s: float
    ttft_p99_s: float
    tpot_p90_s: float
    availability: float = 0.999
    price: float = 1.0
    link_priority: int = 0
    link_weight: float = 1.0


@dataclass(frozen=True, slots=True)
class LinkPolicy:
    """What transfers may take of one link; a cap of None adds none to what the link itself has."""

    rate_cap_bytes_per_s: float | None
    flow_cap_bytes_per_s: float | None
    streams_per_transfer: int
    max_transfers: int


@dataclass(frozen=True, slots=True)
class PrefillPolicy:
    """How our nodes cut the prefill of a prompt, in tokens."""

    chunk_tokens: int
    tail_chunk_min_tokens: int


DEFAULT_LINK_POLICY = LinkPolicy(**{field.path.rpartition(".")[2]: field.default for field in FIELD_FAMILIES["link"]})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Policy:
    """A checked policy document with every default filled in."""

    schema_version: int
    routing: RoutingPolicy
    handoff: HandoffPolicy
    outlier: OutlierPolicy
    cache: CachePolicy
    prefill: PrefillPolicy
    classes: Mapping[str, ServiceClass]
    links: Mapping[str, LinkPolicy]

    def service_class(self, name: str) -> ServiceClass:
        """Objectives of a class; the default class's where the document has none of that name."""
        return self.classes.get(name, self.classes[DEFAULT_CLASS])

    def link(self, name: str) -> LinkPolicy:
        """What holds on a link; the defaults where the document does not name it."""
        return self.links.get(name, DEFAULT_LINK_POLICY)


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """What is wrong with one field; `path` is empty for the document as a whole."""

    path: str
    message: str


class PolicyError(ValueError):
    """A policy document that cannot be obeyed, with every problem found in it."""

    def __init__(self, problems: Iterable[FieldProblem]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(f"{problem.path or 'document'}: {problem.message}" for problem in self.problems))


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One difference between two documents; None stands for a null, or for an unknown field that is absent."""

    path: str
    before: Any
    after: Any


def parse_policy(document: Document) -> Policy:
    """Read a document; missing fields take their defaults, unknown ones are left alone.

    Raises:
        PolicyError: with every problem found, each under the path of its field.
    """
    values, problems = _check(document)
    if problems:
        raise PolicyError(problems)

    def section(prefix: str) -> dict[str, Any]:
        return {path.removeprefix(prefix): value for path, value in values.items() if path.startswith(prefix)}

    handoff = section("handoff.")
    return Policy(
        schema_version=document.get("schema_version", SCHEMA_VERSION),
        routing=RoutingPolicy(**section("routing.")),
        handoff=HandoffPolicy(**{**handoff, "mode": HandoffPreference(handoff["mode"])}),
        outlier=OutlierPolicy(**section("outlier.")),
        cache=CachePolicy(**section("cache.")),
        prefill=PrefillPolicy(**section("prefill.")),
        classes={name: ServiceClass(**section(f"classes.{name}.")) for name in _class_names(document)},
        links={name: LinkPolicy(**section(f"link.{name}.")) for name in _member_names(document, "link")},
    )


def effective_values(document: Document) -> dict[str, Any]:
    """Value of every known field by path, defaults filled in.

    Raises:
        PolicyError: the document cannot be obeyed.
    """
    values, problems = _check(document)
    if problems:
        raise PolicyError(problems)
    return values


def unknown_fields(document: Document) -> list[str]:
    """Dotted paths of the fields that this release does not know, and so keeps but does not obey."""
    return sorted(path for path, _ in _leaves(document) if find_field(path) is None and path != "schema_version")


def diff_policies(before: Document, after: Document) -> list[FieldChange]:
    """What differs between two documents in effect, known fields in the order of the table, then unknown ones.

    Raises:
        PolicyError: one of them cannot be obeyed.
    """
    first, second = effective_values(before), effective_values(after)
    first = {"schema_version": SCHEMA_VERSION, **dict(_leaves(before)), **first}
    second = {"schema_version": SCHEMA_VERSION, **dict(_leaves(after)), **second}
    known = dict.fromkeys(field.path for document in (before, after) for field in fields_of(document))
    paths = [*known, *sorted((first.keys() | second.keys()) - known.keys())]
    return [
        FieldChange(path, first.get(path), second.get(path)) for path in paths if first.get(path) != second.get(path)
    ]


def apply_changes(document: Document, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a document with known fields set by path, checked.

    Raises:
        PolicyError: a path names no known field, or the result cannot be obeyed.
    """
    changed: dict[str, Any] = deepcopy(dict(document))
    problems = [FieldProblem(path, "There is no such field.") for path in changes if find_field(path) is None]
    if not problems:
        _, problems = _check(document)
    if problems:
        raise PolicyError(problems)
    for path, value in changes.items():
        *parents, leaf = path.split(".")
        section = changed
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = value
    parse_policy(changed)
    return changed


def policy_json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the document, made from the field table."""
    root: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Policy",
        "type": "object",
        "properties": {"schema_version": {"type": "integer", "minimum": 1, "default": SCHEMA_VERSION}},
    }
    for field in POLICY_FIELDS:
        *parents, leaf = field.path.split(".")
        section = root["properties"]
        for parent in parents:
            section = section.setdefault(parent, {"type": "object", "properties": {}})["properties"]
        section[leaf] = _field_schema(field)
    for family in FIELD_FAMILIES:
        section = root["properties"].setdefault(family, {"type": "object", "properties": {}})
        members = {field.path.rpartition(".")[2]: _field_schema(field) for field in family_fields(family, "*")}
        section["additionalProperties"] = {"type": "object", "properties": members}
    return root


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


def _check(document: Document) -> tuple[dict[str, Any], list[FieldProblem]]:
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
        elif field.kind is FieldKind.INTEGER:
            values[field.path] = int(value)
        else:
            values[field.path] = value
    for name in _class_names(document):
        p90, p99 = values.get(f"classes.{name}.ttft_p90_s"), values.get(f"classes.{name}.ttft_p99_s")
        if p90 is not None and p99 is not None and p99 < p90:
            problems.append(FieldProblem(f"classes.{name}.ttft_p99_s", "Must not be below ttft_p90_s."))
    return values, problems


def _version_problems(document: Document) -> list[FieldProblem]:
    version = document.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION + 1:
        return [FieldProblem("schema_version", f"Must be a whole number from 1 to {SCHEMA_VERSION + 1}.")]
    return []


def _class_names(document: Document) -> list[str]:
    return list(dict.fromkeys((DEFAULT_CLASS, *_member_names(document, "classes"))))


def _member_names(document: Document, family: str) -> list[str]:
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


def _leaves(document: Document, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}.")
        elif not isinstance(value, Mapping) or not _is_section(path):
            yield path, value


def _is_section(path: str) -> bool:
    """Whether known fields lie below a path."""
    family, _, name = path.partition(".")
    if family in FIELD_FAMILIES and (not name or is_member_name(name)):
        return True
    return any(field.path.startswith(f"{path}.") for field in POLICY_FIELDS)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    root: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    for path, value in values.items():
        *parents, leaf = path.split(".")
        section = root
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = value
    return root


DEFAULT_POLICY_DOCUMENT: dict[str, Any] = _nested({field.path: field.default for field in POLICY_FIELDS})

# Scaled to prompts of 200-1,000 tokens over a 12 Mbit/s flow: 23 KB per token make 0.3 s about twenty tokens.
# A prompt of 600 new tokens takes nine seconds to cross, longer than RLD needs for 64 tokens.
DEMO_POLICY_DOCUMENT: dict[str, Any] = apply_changes(
    DEFAULT_POLICY_DOCUMENT,
    {
        "routing.relay_when_transfer_exceeds_s": 0.3,
        # Prompts of a few hundred tokens in blocks of 64: even a warm session seldom reaches 0.95.
        "routing.direct_hit_rate": 0.9,
        "handoff.one_shot_max_tokens": 24,
        "handoff.catch_up_batch_tokens": 16,
        "outlier.min_uncached_tokens": 600,
        "outlier.max_output_tokens": 64,
        "classes.default.tpot_p90_s": 0.1,
        # One stream per transfer, or four of 12 Mbit/s would fill the demo's 40 Mbit/s link and hide what it shows.
        "link.ams-fra.streams_per_transfer": 1,
    },
)
