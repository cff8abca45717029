import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.policy import (
    DEFAULT_POLICY_DOCUMENT,
    DEMO_POLICY_DOCUMENT,
    FieldChange,
    PolicyError,
    apply_changes,
    diff_policies,
    effective_values,
    parse_policy,
    unknown_fields,
)
from control.domain.policy_fields import FIELDS_BY_PATH, POLICY_FIELDS, FieldKind, HandoffPreference
from control.domain.policy_schema import policy_json_schema

RELAY = "routing.relay_when_transfer_exceeds_s"


def problem_paths(document):
    with pytest.raises(PolicyError) as caught:
        parse_policy(document)
    return [problem.path for problem in caught.value.problems]


def valid_value(field):
    match field.kind:
        case FieldKind.BOOLEAN:
            value = st.booleans()
        case FieldKind.CHOICE:
            value = st.sampled_from(field.choices)
        case FieldKind.INTEGER:
            value = st.integers(int(field.minimum), int(field.maximum))
        case FieldKind.NUMBER:
            value = st.floats(field.minimum, field.maximum)
    return st.none() | value if field.nullable else value


some_changes = st.fixed_dictionaries(
    {},
    optional={field.path: valid_value(field) for field in POLICY_FIELDS if not field.path.startswith("classes.")},
)


def test_an_empty_document_takes_every_default():
    policy = parse_policy({})
    assert policy == parse_policy(DEFAULT_POLICY_DOCUMENT)
    assert policy.routing.relay_when_transfer_exceeds_s == 0.3
    assert policy.routing.direct_hit_rate == 0.95
    assert policy.handoff.mode is HandoffPreference.AUTO
    assert policy.handoff.relay_max_tokens == 1024
    assert policy.outlier.min_uncached_tokens == 32768
    assert policy.service_class("default").ttft_p99_s == 15.0
    assert policy.service_class("unheard of") == policy.service_class("default")


def test_every_default_lies_within_its_own_bounds():
    for field in POLICY_FIELDS:
        document = apply_changes({}, {field.path: field.default})
        assert effective_values(document)[field.path] == field.default
        assert field.help
        assert field.enforced_by


def test_the_demo_policy_lets_prompts_of_the_small_model_be_outliers():
    outlier = parse_policy(DEMO_POLICY_DOCUMENT).outlier
    assert outlier.enabled
    assert outlier.min_uncached_tokens + outlier.max_output_tokens < 1000


@pytest.mark.parametrize("value", [True, False, math.nan, math.inf, -math.inf, "0.3", None, -0.1, 601, [], {}, 10**400])
def test_refuses_what_is_not_a_number_within_bounds(value):
    assert problem_paths({"routing": {"relay_when_transfer_exceeds_s": value}}) == [RELAY]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("handoff.one_shot_max_tokens", 1.5),
        ("handoff.one_shot_max_tokens", True),
        ("handoff.mode", "sometimes"),
        ("handoff.mode", ["auto"]),
        ("outlier.enabled", 1),
        ("outlier.enabled", None),
        ("cache.tenant_salt", "false"),
    ],
)
def test_refuses_a_value_of_the_wrong_kind(path, value):
    with pytest.raises(PolicyError) as caught:
        apply_changes({}, {path: value})
    assert [problem.path for problem in caught.value.problems] == [path]


def test_only_a_nullable_field_may_be_null():
    assert parse_policy({"routing": {"direct_hit_rate": None}}).routing.direct_hit_rate is None


def test_a_whole_float_is_an_integer():
    tokens = parse_policy({"handoff": {"one_shot_max_tokens": 32.0}}).handoff.one_shot_max_tokens
    assert tokens == 32
    assert isinstance(tokens, int)


def test_reports_every_problem_at_once():
    document = {"routing": {"direct_hit_rate": 2}, "handoff": [], "classes": {"default": 3}, "schema_version": 0}
    assert problem_paths(document) == ["schema_version", "handoff", "classes.default", "routing.direct_hit_rate"]


@pytest.mark.parametrize("document", [[], None, "x", 3])
def test_refuses_a_document_that_is_no_object(document):
    assert problem_paths(document) == [""]


def test_a_tail_objective_below_the_p90_is_refused():
    assert problem_paths({"classes": {"default": {"ttft_p90_s": 5, "ttft_p99_s": 4}}}) == ["classes.default.ttft_p99_s"]


def test_keeps_and_reports_unknown_fields_without_obeying_them():
    document = {
        "schema_version": 2,
        "routing": {"relay_when_transfer_exceeds_s": 1, "by_moon_phase": True},
        "guard": {"canary": {"share": 0.05}},
        "classes": {"gold": {"colour": "yellow"}, "Not a name": {"ttft_p90_s": 1}},
        "empty": {},
    }
    assert unknown_fields(document) == [
        "classes.Not a name.ttft_p90_s",
        "classes.gold.colour",
        "empty",
        "guard.canary.share",
        "routing.by_moon_phase",
    ]
    assert parse_policy(document).service_class("gold").ttft_p90_s == 10
    changed = apply_changes(document, {RELAY: 2})
    assert changed["guard"] == document["guard"]
    assert changed["routing"] == {"relay_when_transfer_exceeds_s": 2, "by_moon_phase": True}
    assert document["routing"]["relay_when_transfer_exceeds_s"] == 1


def test_a_class_is_made_by_naming_it_and_takes_defaults_for_the_rest():
    document = apply_changes({}, {"classes.gold.ttft_p90_s": 1, "classes.gold.ttft_p99_s": 2})
    policy = parse_policy(document)
    gold = policy.service_class("gold")
    assert (gold.ttft_p90_s, gold.ttft_p99_s, gold.tpot_p90_s) == (1, 2, 0.05)
    assert policy.service_class("default").ttft_p90_s == 10
    changed = {change.path: change.after for change in diff_policies({}, document)}
    assert changed["classes.gold.ttft_p99_s"] == 2
    assert unknown_fields(document) == []


@pytest.mark.parametrize(
    ("classes", "path"),
    [
        ({"gold": {"ttft_p90_s": 5, "ttft_p99_s": 4}}, "classes.gold.ttft_p99_s"),
        ({"gold": {"availability": 2}}, "classes.gold.availability"),
        ({"gold": 3}, "classes.gold"),
        ([], "classes"),
    ],
)
def test_every_class_is_checked(classes, path):
    assert problem_paths({"classes": classes}) == [path]


@pytest.mark.parametrize("path", ["classes.Gold.ttft_p90_s", "classes..ttft_p90_s", "classes.gold", "classes.gold.x"])
def test_a_class_needs_a_plain_name_and_a_known_field(path):
    with pytest.raises(PolicyError):
        apply_changes({}, {path: 1})


def test_a_change_must_name_a_known_field():
    with pytest.raises(PolicyError) as caught:
        apply_changes({}, {"routing.relay": 1, "schema_version": 2})
    assert [problem.path for problem in caught.value.problems] == ["routing.relay", "schema_version"]


def test_a_diff_compares_what_is_in_effect():
    before = {"routing": {"direct_hit_rate": 0.95}}
    after = {"routing": {"relay_when_transfer_exceeds_s": 0.8, "extra": 1}}
    assert diff_policies(before, after) == [FieldChange(RELAY, 0.3, 0.8), FieldChange("routing.extra", None, 1)]
    assert diff_policies({}, DEFAULT_POLICY_DOCUMENT) == []
    assert diff_policies({}, {"schema_version": 2}) == [FieldChange("schema_version", 1, 2)]


@given(some_changes)
def test_changes_survive_json_and_show_in_the_diff(changes):
    document = json.loads(json.dumps(apply_changes(DEFAULT_POLICY_DOCUMENT, changes)))
    values = effective_values(document)
    assert {path: values[path] for path in changes} == changes
    differing = {change.path: change.after for change in diff_policies(DEFAULT_POLICY_DOCUMENT, document)}
    assert differing == {path: v for path, v in changes.items() if v != FIELDS_BY_PATH[path].default}
    assert unknown_fields(document) == []


def test_the_json_schema_names_every_field_with_its_bounds():
    schema = policy_json_schema()
    json.dumps(schema, allow_nan=False)
    for field in POLICY_FIELDS:
        section = schema
        for part in field.path.split("."):
            section = section["properties"][part]
        assert section["default"] == field.default
        assert section["description"] == field.help
        if field.minimum is not None:
            assert (section["minimum"], section["maximum"]) == (field.minimum, field.maximum)
    assert schema["properties"]["handoff"]["properties"]["mode"]["enum"] == ["auto", "one_shot", "catch_up"]
