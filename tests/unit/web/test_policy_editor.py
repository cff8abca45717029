import re

import pytest

from control.domain.policy import DEMO_POLICY_DOCUMENT, FieldProblem, apply_changes
from control.domain.policy_fields import POLICY_FIELDS, find_field
from control.services.access import Principal, Role
from control.services.policies import RevisionDraft, create_revision, load_active
from webapp.policy_draft import Pending, merge_three
from webapp.policy_form import FormScope, label_key, read_entry, scope_fields
from webapp.policy_units import NotANumberError, OutOfBoundsError, read_value, show_value
from webapp.strings import LANGUAGES, load_strings
from webapp.yaml_text import YamlError, read_yaml, write_yaml

CEILING = "routing.relay_load_ceiling"
THRESHOLD = "routing.relay_when_transfer_exceeds_s"
OPERATOR = Principal("olga", Role.OPERATOR)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_policy_field_has_its_words(language):
    strings = load_strings(language)
    missing = [field.path for field in POLICY_FIELDS if not strings.has(f"policy_field.{label_key(field.path)}")]
    missing += [field.path for field in POLICY_FIELDS if not strings.has(f"policy_help.{label_key(field.path)}")]
    assert missing == []


@pytest.mark.parametrize(
    ("path", "stored", "shown"),
    [
        (CEILING, 0.85, "85"),
        (THRESHOLD, 0.3, "0.3"),
        ("link.a-b.rate_cap_bytes_per_s", 1_500_000.0, "12"),
        ("handoff.one_shot_max_tokens", 64, "64"),
        ("outlier.enabled", False, "false"),
        ("routing.direct_hit_rate", None, ""),
    ],
)
def test_a_value_is_shown_in_the_unit_of_people_and_read_back_the_same(path, stored, shown):
    field = find_field(path)
    assert show_value(field, stored) == shown
    if shown:
        assert read_value(field, shown) == stored


def test_what_is_no_number_and_what_is_out_of_bounds_are_told_apart():
    field = find_field(CEILING)
    for text in ("fast", "", "1e999", "9" * 50):
        with pytest.raises(NotANumberError):
            read_value(field, text)
    with pytest.raises(OutOfBoundsError):
        read_value(field, "101")


def test_an_emptied_override_falls_back_and_an_emptied_rule_is_switched_off():
    site = FormScope.parse("site:fra")
    document = apply_changes(DEMO_POLICY_DOCUMENT, {f"overrides.sites.fra.{CEILING}": 0.5})
    entry = read_entry(site, scope_fields(site, document, ()), document, {f"overrides.sites.fra.{CEILING}": ""})
    assert (entry.changes, entry.removed) == ({}, [f"overrides.sites.fra.{CEILING}"])
    general = FormScope()
    texts = {"routing.direct_hit_rate": "", THRESHOLD: "", "cache.block_tokens": "32"}
    entry = read_entry(general, scope_fields(general, document, ()), document, texts)
    assert (entry.changes, entry.errors) == ({"routing.direct_hit_rate": None}, {THRESHOLD: "value"})


def test_yaml_comes_back_as_it_was_and_a_problem_is_found_at_its_line():
    text = write_yaml(DEMO_POLICY_DOCUMENT)
    read = read_yaml(text)
    assert read.document == DEMO_POLICY_DOCUMENT
    assert "relay_load_ceiling" in text.splitlines()[read.line_of(CEILING) - 1]
    with pytest.raises(YamlError) as caught:
        read_yaml("routing:\n  a: 1\n  a: 2\n")
    assert caught.value.line == 3
    for bad in ("- a", "a: [", "x" * 70_000, "1: 2"):
        with pytest.raises(YamlError):
            read_yaml(bad)


def test_three_ways_are_told_apart_field_by_field():
    theirs = apply_changes(DEMO_POLICY_DOCUMENT, {CEILING: 0.7, "handoff.one_shot_max_tokens": 8})
    merge = merge_three(DEMO_POLICY_DOCUMENT, theirs, Pending({CEILING: 0.6, THRESHOLD: 1.0}))
    rows = {row.path: (row.base, row.theirs, row.yours, row.is_conflict) for row in merge.rows}
    assert rows[CEILING] == (0.85, 0.7, 0.6, True)
    assert rows[THRESHOLD] == (0.3, 0.3, 1.0, False)
    assert rows["handoff.one_shot_max_tokens"] == (24, 8, 24, False)
    assert merge.rows[0].path == CEILING


def test_a_pending_text_that_somebody_made_up_counts_as_nothing():
    for text in ("", "[]", "{", '{"changes": 1}', "x" * 200_000):
        assert Pending.from_text(text).is_empty
    document, problems = Pending({CEILING: 7}).applied_to(DEMO_POLICY_DOCUMENT)
    assert document == DEMO_POLICY_DOCUMENT
    assert [problem.path for problem in problems] == [CEILING]
    assert isinstance(problems[0], FieldProblem)


def draft(number=1, **fields):
    values = {f"field.{path.replace('__', '.')}": value for path, value in fields.items()}
    return {"base_revision": str(number), "view": "form", "scope": "general", "reason": "test", "pending": "", **values}


def active(plane):
    with plane.database.reading() as session:
        return load_active(session).revision


async def test_a_form_becomes_a_revision_and_a_refusal_stands_at_its_field(admin, plane):
    wrong = await admin.post("/policies/apply", data=draft(routing__relay_load_ceiling="101"))
    assert wrong.status_code == 422
    assert re.search(r'id="note-routing-relay-load-ceiling".*?role="alert"', wrong.text, re.DOTALL)
    assert 'value="101"' in wrong.text
    none = await admin.post("/policies/apply", data={**draft(routing__relay_load_ceiling="80"), "reason": ""})
    assert none.status_code == 422
    assert active(plane).number == 1
    done = await admin.post("/policies/apply", data=draft(routing__relay_load_ceiling="80"))
    assert done.headers["hx-redirect"] == "/policies"
    assert active(plane).document["routing"]["relay_load_ceiling"] == 0.8


async def test_a_preview_stores_nothing_and_shows_what_would_change(admin, plane):
    reply = await admin.post("/policies/preview", data=draft(routing__relay_load_ceiling="80"))
    assert "<ins>+ 80</ins>" in reply.text
    assert "curl -sS -X POST" in reply.text
    assert active(plane).number == 1


async def test_a_draft_goes_from_form_to_yaml_and_back_without_losing_anything(admin):
    as_yaml = await admin.post("/policies/editor", data={**draft(routing__relay_load_ceiling="80"), "to": "yaml"})
    assert "relay_load_ceiling: 0.8" in as_yaml.text
    text = write_yaml(apply_changes(DEMO_POLICY_DOCUMENT, {CEILING: 0.7}))
    form = await admin.post("/policies/editor", data={**draft(), "view": "yaml", "yaml": text, "to": "form"})
    assert 'value="70"' in form.text
    broken = await admin.post("/policies/editor", data={**draft(), "view": "yaml", "yaml": "a: [", "to": "form"})
    assert 'name="yaml"' in broken.text


async def test_two_editors_meet_in_a_three_way_view_and_the_second_chooses(admin, plane):
    create_revision(plane, OPERATOR, RevisionDraft("quicker", 1, changes={CEILING: 0.7}, apply=True))
    reply = await admin.post(
        "/policies/apply",
        data=draft(routing__relay_load_ceiling="60", routing__relay_when_transfer_exceeds_s="2"),
    )
    assert reply.status_code == 412
    assert "quicker" in reply.text
    assert reply.text.count('name="mine"') == 2
    pending = Pending({CEILING: 0.6, THRESHOLD: 2.0}).to_text()
    data = {"base_revision": "2", "pending": pending, "reason": "merged", "mine": THRESHOLD}
    done = await admin.post("/policies/merge", data=data)
    assert done.headers["hx-redirect"] == "/policies"
    routing = active(plane).document["routing"]
    assert (routing["relay_load_ceiling"], routing["relay_when_transfer_exceeds_s"]) == (0.7, 2.0)


async def test_a_revision_comes_back_with_a_reason_only(admin, plane):
    create_revision(plane, OPERATOR, RevisionDraft("try", 1, changes={CEILING: 0.7}, apply=True))
    reply = await admin.post("/policies/revisions/1/revert", data={"base_revision": "2", "reason": ""})
    assert reply.status_code == 422
    reply = await admin.post("/policies/revisions/1/revert", data={"base_revision": "2", "reason": "worse"})
    assert reply.headers["hx-redirect"] == "/policies"
    assert active(plane).number == 3
    assert active(plane).document["routing"]["relay_load_ceiling"] == 0.85
