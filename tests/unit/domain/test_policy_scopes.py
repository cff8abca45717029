"""Overrides for sites and models: what comes out, what is refused, what is kept."""

import json
from copy import deepcopy

import pytest

from control.domain.policy import (
    DEFAULT_POLICY_DOCUMENT,
    FieldChange,
    PolicyError,
    apply_changes,
    diff_policies,
    parse_policy,
    unknown_fields,
)
from control.domain.policy_fields import POLICY_FIELDS
from control.domain.policy_schema import policy_json_schema
from control.domain.policy_scopes import Scope, find_scoped_field, may_override, merge_policy, split_path

RELAY = "routing.relay_when_transfer_exceeds_s"
MODEL = "Qwen/Qwen2.5-7B"
DOCUMENT = {
    "routing": {"relay_when_transfer_exceeds_s": 1.0, "direct_hit_rate": 0.9},
    "overrides": {
        "sites": {
            "fra": {"routing": {"relay_when_transfer_exceeds_s": 2.0}, "link": {"fra-ams": {"max_transfers": 8}}},
            "ams": {"cache": {"tenant_salt": True}},
        },
        "models": {MODEL: {"routing": {"direct_hit_rate": None}, "handoff": {"mode": "one_shot"}}},
    },
}


def problem_paths(document):
    with pytest.raises(PolicyError) as caught:
        parse_policy(document)
    return [problem.path for problem in caught.value.problems]


def overridden(scope, name, section, **general):
    return {**general, "overrides": {scope: {name: section}}}


def test_the_general_part_holds_where_nothing_else_is_said():
    merged = merge_policy(DOCUMENT, "par", "other")
    assert merged.document == {"routing": DOCUMENT["routing"]}
    assert merged.origins == {}
    assert parse_policy(DOCUMENT).routing.relay_when_transfer_exceeds_s == 1.0


def test_a_site_and_then_a_model_win_field_by_field_and_it_shows_where_from():
    merged = merge_policy(DOCUMENT, "fra", MODEL)
    policy = parse_policy(merged.document)
    assert (policy.routing.relay_when_transfer_exceeds_s, policy.routing.direct_hit_rate) == (2.0, None)
    assert (policy.handoff.mode, policy.link("fra-ams").max_transfers, policy.cache.tenant_salt) == (
        "one_shot",
        8,
        False,
    )
    assert merged.origins == {
        RELAY: "site fra",
        "link.fra-ams.max_transfers": "site fra",
        "routing.direct_hit_rate": f"model {MODEL}",
        "handoff.mode": f"model {MODEL}",
    }
    both = {"sites": {"fra": {"handoff": {"mode": "catch_up"}}}, "models": {"m": {"handoff": {"mode": "one_shot"}}}}
    assert merge_policy({"overrides": both}, "fra", "m").document["handoff"]["mode"] == "one_shot"


def test_what_a_site_gets_still_has_the_overrides_for_models_and_changes_nothing_of_the_document():
    before = deepcopy(DOCUMENT)
    for_site = merge_policy(DOCUMENT, "fra").document
    assert for_site["overrides"] == {"models": DOCUMENT["overrides"]["models"]}
    assert merge_policy(for_site, model=MODEL).document == merge_policy(DOCUMENT, "fra", MODEL).document
    for_site["routing"]["direct_hit_rate"] = 0
    assert before == DOCUMENT
    assert merge_policy(DEFAULT_POLICY_DOCUMENT, "fra").document == DEFAULT_POLICY_DOCUMENT


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"overrides": []}, "overrides"),
        ({"overrides": {"sites": 3}}, "overrides.sites"),
        (overridden("sites", "fra", 3), "overrides.sites.fra"),
        (overridden("sites", "Not a name", {}), "overrides.sites.Not a name"),
        (overridden("models", "a b", {}), "overrides.models.a b"),
        (
            overridden("sites", "fra", {"routing": {"direct_hit_rate": 2}}),
            "overrides.sites.fra.routing.direct_hit_rate",
        ),
        (overridden("sites", "fra", {"routing": 2}), "overrides.sites.fra.routing"),
        (overridden("models", MODEL, {"handoff": {"mode": "x"}}), f"overrides.models.{MODEL}.handoff.mode"),
        (overridden("models", "m", {"cache": {"tenant_salt": True}}), "overrides.models.m.cache.tenant_salt"),
        (
            overridden("models", "m", {"link": {"a-b": {"max_transfers": 1}}}),
            "overrides.models.m.link.a-b.max_transfers",
        ),
        (
            overridden("models", "m", {"classes": {"gold": {"link_priority": 1}}}),
            "overrides.models.m.classes.gold.link_priority",
        ),
        (
            overridden("sites", "fra", {"classes": {"default": {"ttft_p99_s": 1}}}),
            "overrides.sites.fra.classes.default.ttft_p99_s",
        ),
        ({"overrides": {"sites": {f"s{n}": {} for n in range(101)}}}, "overrides.sites"),
    ],
)
def test_an_override_is_checked_like_the_general_part(document, path):
    assert path in problem_paths(document)


def test_overrides_that_contradict_each_other_are_refused():
    document = {
        "overrides": {
            "sites": {"fra": {"classes": {"default": {"ttft_p90_s": 12}}}},
            "models": {"m": {"classes": {"default": {"ttft_p99_s": 11}}}},
        }
    }
    assert problem_paths(document) == ["overrides.models.m.classes.default.ttft_p99_s"]
    del document["overrides"]["sites"]
    parse_policy(document)


def test_a_diff_tells_an_override_from_none_even_where_it_is_null():
    without = {**DOCUMENT, "overrides": {"sites": DOCUMENT["overrides"]["sites"]}}
    assert diff_policies(without, DOCUMENT) == [
        FieldChange(f"overrides.models.{MODEL}.handoff.mode", None, "one_shot"),
        FieldChange(f"overrides.models.{MODEL}.routing.direct_hit_rate", None, None),
    ]
    assert diff_policies(DOCUMENT, DOCUMENT) == []


def test_overrides_are_set_and_taken_out_by_path():
    path = f"overrides.models.{MODEL}.routing.direct_hit_rate"
    document = apply_changes({}, {path: 0.5, "overrides.sites.fra.outlier.enabled": False})
    assert document["overrides"]["models"] == {MODEL: {"routing": {"direct_hit_rate": 0.5}}}
    assert apply_changes(document, {}, [path])["overrides"] == {"sites": {"fra": {"outlier": {"enabled": False}}}}
    assert apply_changes(document, {}, [f"overrides.models.{MODEL}", "overrides.sites.fra"]) == {}
    assert apply_changes(DEFAULT_POLICY_DOCUMENT, {}, [RELAY])["routing"].keys() == {
        path.partition(".")[2] for path in split_fields("routing") if path != RELAY
    }
    for wrong in ("overrides.sites.par", "overrides.sites", "routing", "routing.x"):
        with pytest.raises(PolicyError):
            apply_changes(document, {}, [wrong])


def split_fields(section):
    return [field.path for field in POLICY_FIELDS if field.path.startswith(f"{section}.")]


@pytest.mark.parametrize(
    "path",
    [
        "overrides.sites.fra",
        "overrides.sites.fra.routing",
        "overrides.sites.Fra.outlier.enabled",
        "overrides.classes.gold.outlier.enabled",
        "overrides.models.m.cache.tenant_salt",
        "overrides.sites.fra.overrides.sites.fra.outlier.enabled",
    ],
)
def test_other_paths_name_no_field(path):
    with pytest.raises(PolicyError):
        apply_changes({}, {path: True})


def test_a_path_finds_its_field_also_behind_names_with_dots():
    path = "overrides.models.a.b-1.5.classes.gold.ttft_p90_s"
    assert split_path(path) == ("overrides", "models", "a.b-1.5", "classes", "gold", "ttft_p90_s")
    assert find_scoped_field(path).path == "classes.gold.ttft_p90_s"


def test_unknown_fields_in_overrides_are_kept_and_reported():
    document = {"overrides": {"sites": {"fra": {"routing": {"by_moon": 1}}}, "continents": {"eu": {"x": 1}}}}
    assert unknown_fields(document) == ["overrides.continents.eu.x", "overrides.sites.fra.routing.by_moon"]
    assert merge_policy(document, "fra").document == {"routing": {"by_moon": 1}}
    assert unknown_fields(DOCUMENT) == []


def test_the_schema_lists_what_each_scope_may_have():
    schema = policy_json_schema()["properties"]["overrides"]["properties"]
    json.dumps(schema, allow_nan=False)
    for scope in Scope:
        properties = schema[scope.value]["additionalProperties"]["properties"]
        for field in POLICY_FIELDS:
            section = {"properties": properties}
            for part in field.path.split("."):
                section = section.get("properties", {}).get(part, {})
            assert bool(section) == may_override(scope, field), field.path
    assert "link" not in schema["models"]["additionalProperties"]["properties"]
