"""The policy document: how it is read, checked, compared and changed."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from control.domain.policy_check import (
    SCHEMA_VERSION,
    Document,
    FieldProblem,
    check_document,
    class_names,
    leaves,
    member_names,
)
from control.domain.policy_fields import (
    DEFAULT_CLASS,
    FIELD_FAMILIES,
    POLICY_FIELDS,
    HandoffPreference,
    fields_of,
)
from control.domain.policy_scopes import (
    OVERRIDES,
    find_scoped_field,
    overrides_of,
    split_path,
)

# Whoever reads documents needs these too.
__all__ = (
    "DEFAULT_LINK_POLICY",
    "DEFAULT_POLICY_DOCUMENT",
    "DEMO_POLICY_DOCUMENT",
    "SCHEMA_VERSION",
    "CachePolicy",
    "FieldChange",
    "FieldProblem",
    "HandoffPolicy",
    "LinkPolicy",
    "OutlierPolicy",
    "Policy",
    "PolicyError",
    "PrefillPolicy",
    "RoutingPolicy",
    "ServiceClass",
    "apply_changes",
    "diff_policies",
    "effective_values",
    "parse_policy",
    "unknown_fields",
)


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """Which pipeline and which nodes a request gets."""

    relay_when_transfer_exceeds_s: float
    direct_hit_rate: float | None
    relay_load_ceiling: float
    affinity_weight: float
    max_load_skew: float
    relay_may_serve_alone: bool


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
    values, problems = check_document(document)
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
        classes={name: ServiceClass(**section(f"classes.{name}.")) for name in class_names(document)},
        links={name: LinkPolicy(**section(f"link.{name}.")) for name in member_names(document, "link")},
    )


def effective_values(document: Document) -> dict[str, Any]:
    """Value of every known field by path, defaults filled in.

    Raises:
        PolicyError: the document cannot be obeyed.
    """
    values, problems = check_document(document)
    if problems:
        raise PolicyError(problems)
    return values


def unknown_fields(document: Document) -> list[str]:
    """Dotted paths of the fields that this release does not know, and so keeps but does not obey."""
    return sorted(path for path, _ in leaves(document) if find_scoped_field(path) is None and path != "schema_version")


def diff_policies(before: Document, after: Document) -> list[FieldChange]:
    """What differs between two documents in effect, known fields in the order of the table, then unknown ones.

    Raises:
        PolicyError: one of them cannot be obeyed.
    """
    first, second = effective_values(before), effective_values(after)
    first = {"schema_version": SCHEMA_VERSION, **dict(leaves(before)), **first}
    second = {"schema_version": SCHEMA_VERSION, **dict(leaves(after)), **second}
    known = dict.fromkeys(field.path for document in (before, after) for field in fields_of(document))
    paths = [*known, *sorted((first.keys() | second.keys()) - known.keys())]
    return [FieldChange(path, first.get(path), second.get(path)) for path in paths if _differs(path, first, second)]


def _differs(path: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    # In an override, null is a value that differs from none at all.
    if path.startswith(f"{OVERRIDES}.") and (path in first) != (path in second):
        return True
    return bool(first.get(path) != second.get(path))


def apply_changes(document: Document, changes: Mapping[str, Any], removed: Iterable[str] = ()) -> dict[str, Any]:
    """A copy of a document with known fields set by path and others taken out, checked.

    What is taken out has its default again, or in an override the general value; a path may also name a whole override.

    Raises:
        PolicyError: a path names no known field, or the result cannot be obeyed.
    """
    changed: dict[str, Any] = deepcopy(dict(document))
    removed = list(removed)
    unknown = [path for path in changes if find_scoped_field(path) is None]
    unknown += [path for path in removed if find_scoped_field(path) is None and not _is_override(document, path)]
    problems = [FieldProblem(path, "There is no such field.") for path in unknown]
    if not problems:
        _, problems = check_document(document)
    if problems:
        raise PolicyError(problems)
    for path, value in changes.items():
        *parents, leaf = split_path(path)
        section = changed
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = value
    for path in removed:
        _take_out(changed, _keys_of(changed, path))
    parse_policy(changed)
    return changed


def _is_override(document: Document, path: str) -> bool:
    return any(override.path == path for override in overrides_of(document))


def _keys_of(document: Document, path: str) -> tuple[str, ...]:
    whole = (override for override in overrides_of(document) if override.path == path)
    return next(((OVERRIDES, one.scope.value, one.name) for one in whole), split_path(path))


def _take_out(section: dict[str, Any], keys: tuple[str, ...]) -> None:
    """Remove a value, and the sections that it leaves empty."""
    if len(keys) == 1:
        section.pop(keys[0], None)
        return
    inner = section.get(keys[0])
    if isinstance(inner, dict):
        _take_out(inner, keys[1:])
        if not inner:
            del section[keys[0]]


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
        # A few requests in ten seconds: the defaults would take most of an hour to judge a revision by.
        "guard.canary_share": 0.3,
        "guard.min_requests": 20,
        "guard.bake_s": 60.0,
        "guard.suspect_s": 60.0,
        # One stream per transfer, or four of 12 Mbit/s would fill the demo's 40 Mbit/s link and hide what it shows.
        "link.ams-fra.streams_per_transfer": 1,
    },
)
