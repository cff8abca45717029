"""The knobs of the policy: one table from which validation, schema, forms and docs are made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from control.domain.guard_signals import GUARD_SIGNALS, GuardSignal

DEFAULT_CLASS = "default"


class FieldKind(StrEnum):
    """What a field holds."""

    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    CHOICE = "choice"


class HandoffPreference(StrEnum):
    """How relayed streams should move to MD; AUTO leaves it to the size of each handoff."""

    AUTO = "auto"
    ONE_SHOT = "one_shot"
    CATCH_UP = "catch_up"


@dataclass(frozen=True, slots=True)
class PolicyField:
    """One knob. `path` is dotted; `unit` is for people; bounds are inclusive.

    `disabled_reason` is set where no present driver can enforce the field: forms show it and lock the knob.
    """

    path: str
    kind: FieldKind
    unit: str
    default: float | str | bool | None
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    nullable: bool = False
    enforced_by: tuple[str, ...] = ("gateway",)
    disabled_reason: str = ""


def _number(path: str, unit: str, default: float, bounds: tuple[float, float], help_: str, **more: Any) -> PolicyField:
    return PolicyField(path, FieldKind.NUMBER, unit, default, help_, *bounds, **more)


def _integer(path: str, default: int, bounds: tuple[int, int], help_: str, **more: Any) -> PolicyField:
    return PolicyField(path, FieldKind.INTEGER, "tokens", default, help_, *bounds, **more)


_FIXED_FIELDS: tuple[PolicyField, ...] = (
    _number(
        "routing.relay_when_transfer_exceeds_s",
        "s",
        0.3,
        (0, 600),
        "Relay a request when its KV is predicted to need longer than this to reach MD.",
    ),
    _number(
        "routing.direct_hit_rate",
        "ratio",
        0.95,
        (0, 1),
        "Go straight to MD when at least this share of the prompt is there already; empty switches the rule off.",
        nullable=True,
    ),
    _number(
        "routing.relay_load_ceiling",
        "ratio",
        0.85,
        (0.1, 1),
        "Send nothing more to RLD above this utilisation, until it has fallen by 0.1.",
    ),
    _number(
        "routing.affinity_weight",
        "",
        1.0,
        (0, 100),
        "How much a cached prefix counts against load when a node is picked.",
    ),
    _number(
        "routing.max_load_skew",
        "times mean load",
        1.5,
        (1, 100),
        "Cached prefixes stop attracting requests to a node this much busier than its pool.",
    ),
    PolicyField(
        "routing.relay_may_serve_alone",
        FieldKind.BOOLEAN,
        "",
        default=True,
        help="When no MD can take a request, let RLD answer it to the end; otherwise it is refused with 503.",
    ),
    PolicyField(
        "handoff.mode",
        FieldKind.CHOICE,
        "",
        HandoffPreference.AUTO.value,
        "Hand over at once, in shrinking batches, or by the number of eager tokens.",
        choices=tuple(HandoffPreference),
    ),
    _integer(
        "handoff.one_shot_max_tokens",
        64,
        (0, 100_000),
        "With mode auto: up to this many eager tokens are handed over at once, more by catch-up.",
    ),
    _integer(
        "handoff.catch_up_batch_tokens",
        32,
        (1, 4096),
        "Catch-up ends when this few tokens are left; rounded to MD's block.",
    ),
    _integer(
        "handoff.relay_max_tokens",
        1024,
        (1, 1_000_000),
        "RLD makes at most this many tokens; then the stream waits for MD.",
    ),
    PolicyField(
        "outlier.enabled",
        FieldKind.BOOLEAN,
        "",
        default=True,
        help="Let very long prompts with very short answers end on RLD, and send nothing over the WAN for them.",
    ),
    _integer(
        "outlier.min_uncached_tokens", 32_768, (1, 10_000_000), "Only prompts with at least this much to send qualify."
    ),
    _integer("outlier.max_output_tokens", 500, (1, 100_000), "Only answers bounded by this many tokens qualify."),
    _integer(
        "cache.block_tokens",
        64,
        (16, 1024),
        "Tokens per prefix-cache block.",
        enforced_by=("gateway", "our nodes"),
        disabled_reason="Nodes cut their blocks when they start: the fleet document sets the size.",
    ),
    _integer(
        "prefill.chunk_tokens",
        8192,
        (64, 1_000_000),
        "Prompts are prefilled in chunks of this many tokens.",
        enforced_by=("our nodes",),
        disabled_reason="Nodes take it when they start: a start flag of the engine.",
    ),
    _integer(
        "prefill.tail_chunk_min_tokens",
        512,
        (0, 1_000_000),
        "A last chunk smaller than this is joined to the one before it; 0 switches the rule off.",
        enforced_by=("our nodes",),
        disabled_reason="Nodes take it when they start: a start flag of the engine.",
    ),
    PolicyField(
        "cache.tenant_salt",
        FieldKind.BOOLEAN,
        "",
        default=False,
        help="Hash blocks with the tenant's name, so that no tenant can time another's cached prefixes.",
        enforced_by=("gateway", "our nodes"),
    ),
)

_ROLLOUT = ("roll-out",)


def _signal_fields(signal: GuardSignal) -> tuple[PolicyField, PolicyField]:
    return (
        _number(
            signal.ratio_path,
            "times the reference",
            1.5,
            (1, 1000),
            f"Abort where {signal.words} is more than this many times the control group's and that of the time before;"
            " empty: it aborts nothing.",
            nullable=True,
            enforced_by=_ROLLOUT,
        ),
        _number(
            signal.floor_path,
            signal.unit,
            signal.floor,
            (0, signal.max_floor),
            f"Up to this, {signal.words} never counts as worse.",
            enforced_by=_ROLLOUT,
        ),
    )


_GUARD_FIELDS: tuple[PolicyField, ...] = (
    _number(
        "guard.canary_share",
        "ratio",
        0.1,
        (0.001, 0.9),
        "Share of requests under the new revision, where a roll-out names no site.",
        enforced_by=_ROLLOUT,
    ),
    _number(
        "guard.bake_s",
        "s",
        300.0,
        (1, 86_400),
        "So long every signal must have been within its bounds before the revision goes to all.",
        enforced_by=_ROLLOUT,
    ),
    _number(
        "guard.window_s",
        "s",
        900.0,
        (10, 21_600),
        "Signals are taken over the last so many seconds, and over as many before the roll-out.",
        enforced_by=_ROLLOUT,
    ),
    PolicyField(
        "guard.min_requests",
        FieldKind.INTEGER,
        "requests",
        50,
        "Canary, control group and the time before need so many requests each; with fewer, nothing rolls forward.",
        1,
        1_000_000,
        enforced_by=_ROLLOUT,
    ),
    _number(
        "guard.suspect_s",
        "s",
        300.0,
        (1, 86_400),
        "A signal that is beyond its bound against only one of control group and time before holds the roll-out,"
        " and after so long aborts it.",
        enforced_by=_ROLLOUT,
    ),
    *(field for signal in GUARD_SIGNALS for field in _signal_fields(signal)),
)

# Fields of things that the operator names: `*` stands for the name.
_CLASS_FIELDS: tuple[PolicyField, ...] = (
    _number("classes.*.ttft_p90_s", "s", 10.0, (0.001, 3600), "Objective: 90 % of first tokens within this."),
    _number(
        "classes.*.ttft_p99_s",
        "s",
        15.0,
        (0.001, 3600),
        "Objective: 99 % of first tokens within this; a request predicted to miss it is shed when RLD is full.",
    ),
    _number("classes.*.tpot_p90_s", "s", 0.05, (0.0001, 60), "Objective: 90 % of requests at most this per token."),
    PolicyField(
        "classes.*.link_priority",
        FieldKind.INTEGER,
        "",
        0,
        "Where transfers wait for a link, those of the higher class go first.",
        -100,
        100,
        enforced_by=("WAN relay",),
    ),
    _number(
        "classes.*.link_weight",
        "",
        1.0,
        (0.001, 1000),
        "What a stream of the class gets of a full link, against the weights of the others.",
        enforced_by=("WAN relay",),
    ),
    _number(
        "classes.*.availability",
        "ratio",
        0.999,
        (0, 1),
        "Objective: share of requests that are answered.",
        enforced_by=("alerts",),
    ),
    _number(
        "classes.*.price",
        "times the default class",
        1.0,
        (0, 1000),
        "What a request of the class is worth.",
        enforced_by=("cost",),
        disabled_reason="No cost report reads it yet.",
    ),
)
_LINK_FIELDS: tuple[PolicyField, ...] = (
    PolicyField(
        "link.*.rate_cap_bytes_per_s",
        FieldKind.NUMBER,
        "bytes/s",
        None,
        "All transfers together send at most this; empty: as much as the link carries.",
        1,
        1e15,
        nullable=True,
        enforced_by=("WAN relay",),
    ),
    PolicyField(
        "link.*.flow_cap_bytes_per_s",
        FieldKind.NUMBER,
        "bytes/s",
        None,
        "One stream sends at most this; empty: as much as the path gives one stream.",
        1,
        1e15,
        nullable=True,
        enforced_by=("WAN relay",),
    ),
    PolicyField(
        "link.*.streams_per_transfer",
        FieldKind.INTEGER,
        "streams",
        4,
        "A transfer uses up to this many connections, so that the cap of one does not bound it.",
        1,
        64,
        enforced_by=("gateway", "our nodes"),
    ),
    PolicyField(
        "link.*.max_transfers",
        FieldKind.INTEGER,
        "transfers",
        64,
        "At most this many transfers send at once; more wait, by priority of their class, then by arrival: "
        "in the WAN relay, or in the gateway where stock engines send past it.",
        1,
        100_000,
        enforced_by=("WAN relay", "gateway"),
    ),
)
_POOL_FIELDS: tuple[PolicyField, ...] = tuple(
    PolicyField(
        f"pools.*.{role}.target",
        FieldKind.INTEGER,
        "nodes",
        None,
        f"How many {short} nodes the site should have; empty: as many as it has.",
        0,
        10_000,
        nullable=True,
        enforced_by=("a rebalance operation",),
    )
    for role, short in (("prefill", "P"), ("relay", "RLD"), ("main", "MD"))
)
FIELD_FAMILIES: Mapping[str, tuple[PolicyField, ...]] = {
    "classes": _CLASS_FIELDS,
    "link": _LINK_FIELDS,
    "pools": _POOL_FIELDS,
}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def family_fields(family: str, name: str) -> tuple[PolicyField, ...]:
    """The fields of one named member of a family, such as those of a service class."""
    return tuple(replace(field, path=field.path.replace("*", name)) for field in FIELD_FAMILIES[family])


POLICY_FIELDS: tuple[PolicyField, ...] = (
    *_FIXED_FIELDS,
    *family_fields("classes", DEFAULT_CLASS),
    *_GUARD_FIELDS,
)
FIELDS_BY_PATH: Mapping[str, PolicyField] = {field.path: field for field in POLICY_FIELDS}


def is_member_name(name: object) -> bool:
    """Whether something can be the name of a member: lower case, and free of what separates paths."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def find_field(path: str) -> PolicyField | None:
    """The field of that path, also of a family's member that no document names yet; None if there is none."""
    if path in FIELDS_BY_PATH:
        return FIELDS_BY_PATH[path]
    family, _, rest = path.partition(".")
    name, _, _ = rest.partition(".")
    if family not in FIELD_FAMILIES or not is_member_name(name):
        return None
    return next((field for field in family_fields(family, name) if field.path == path), None)


def fields_of(document: Mapping[str, Any]) -> tuple[PolicyField, ...]:
    """The fields that a document has values for: the fixed ones, and those of each member that it names."""
    members = []
    for family in FIELD_FAMILIES:
        section = document.get(family)
        names = sorted(filter(is_member_name, section)) if isinstance(section, Mapping) else []
        for name in names:
            fields = family_fields(family, name)
            members += [field for field in fields if field.path not in FIELDS_BY_PATH]
    return (*POLICY_FIELDS, *members)
