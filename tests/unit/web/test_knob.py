import re

import pytest

from control.domain.routing import Reason
from control.domain.topology import Link
from control.services.demo import is_demo_wanted
from control.services.policies import load_active
from webapp.knobs import THRESHOLD, changes_of, knobs_of
from webapp.strings import load_strings
from webapp.words import ago, reason_words

FIELD_IDS = {THRESHOLD: "knob-routing-relay-when-transfer-exceeds-s", "reason": "reason"}


def threshold(plane):
    with plane.database.reading() as session:
        active = load_active(session)
    return active.revision.number, active.revision.document["routing"]["relay_when_transfer_exceeds_s"]


async def test_moving_the_knob_makes_a_revision_and_orders_every_gateway(admin, plane, orders):
    reply = await admin.post("/live/knob", data={"base_revision": 1, THRESHOLD: "0.8", "reason": "RLD has room"})
    assert reply.status_code == 200
    assert 'data-live="0.8"' in reply.text
    assert threshold(plane) == (2, 0.8)
    assert [(order.task, order.queue, order.arguments["revision"]) for order in orders] == [
        ("policies.push", "site.ams", 2)
    ]
    state = (await admin.get("/live/knob/state")).text
    assert "0.3 → 0.8 s" in state
    assert "RLD has room" in state
    assert "Revert to r1" in state
    assert 'data-settled="false"' in state


@pytest.mark.parametrize(
    ("typed", "field", "message"),
    [
        (("fast", "why"), THRESHOLD, "Must be a number."),
        (("nan", "why"), THRESHOLD, "Must be a number."),
        (("9000", "why"), THRESHOLD, "Must be from 0 to 600 s."),
        (("-1", "why"), THRESHOLD, "Must be from 0 to 600 s."),
        (("0.8", "  "), "reason", "Say why"),
    ],
)
async def test_a_refusal_stands_at_its_field_and_keeps_what_was_typed(admin, plane, typed, field, message):
    value, reason = typed
    reply = await admin.post("/live/knob", data={"base_revision": 1, THRESHOLD: value, "reason": reason})
    assert reply.status_code == 422
    assert re.search(rf'id="{FIELD_IDS[field]}-error" role="alert">{re.escape(message)}', reply.text)
    assert f'value="{value}"' in reply.text
    assert threshold(plane) == (1, 0.3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"base_revision": "x"}, "did not say which revision"),
        ({"base_revision": "9" * 5000}, "did not say which revision"),
        ({"base_revision": None}, "did not say which revision"),
        ({THRESHOLD: None}, "Nothing would change."),
        ({THRESHOLD: "1" * 41}, "Must be a number."),
        ({"reason": "r" * 501}, "at most 500 characters; these are 501"),
    ],
    ids=["text", "digits", "no revision", "no value", "long value", "long reason"],
)
async def test_a_form_that_is_not_as_the_page_sends_it_comes_back_with_what_was_typed(admin, plane, wrong, message):
    form = {"base_revision": "1", THRESHOLD: "0.8", "reason": "RLD has room", **wrong}
    sent = {name: text for name, text in form.items() if text is not None}
    reply = await admin.post("/live/knob", data=sent)
    assert reply.status_code == 422
    assert message in reply.text
    for name in sent.keys() & {THRESHOLD, "reason"}:
        assert f'value="{sent[name]}"' in reply.text
    assert threshold(plane) == (1, 0.3)


@pytest.mark.parametrize("to_revision", ["x", "0", "9" * 30])
async def test_a_revert_to_no_revision_is_refused_with_a_sentence(admin, plane, to_revision):
    reply = await admin.post("/live/knob/revert", data={"base_revision": 1, "to_revision": to_revision})
    assert (reply.status_code, reply.text) == (422, "Some fields of the form are not valid.")
    assert threshold(plane) == (1, 0.3)


async def test_a_change_made_against_an_old_revision_is_refused(admin, plane):
    await admin.post("/live/knob", data={"base_revision": 1, THRESHOLD: "0.8", "reason": "first"})
    reply = await admin.post("/live/knob", data={"base_revision": 1, THRESHOLD: "0.5", "reason": "second"})
    assert reply.status_code == 412
    assert "2 is active now" in reply.text
    assert threshold(plane) == (2, 0.8)


async def test_a_change_without_the_session_token_is_refused(admin, plane):
    del admin.headers["X-CSRF-Token"]
    reply = await admin.post("/live/knob", data={"base_revision": 1, THRESHOLD: "0.8", "reason": "why"})
    assert reply.status_code == 403
    assert threshold(plane) == (1, 0.3)


async def test_reverting_brings_the_value_back_under_a_new_number(admin, plane, orders):
    await admin.post("/live/knob", data={"base_revision": 1, THRESHOLD: "0.8", "reason": "first"})
    reply = await admin.post("/live/knob/revert", data={"base_revision": 2, "to_revision": 1})
    assert threshold(plane) == (3, 0.3)
    assert orders[-1].arguments["revision"] == 3
    assert "Revert r2 to r1" in reply.text


async def test_a_revert_that_comes_too_late_says_why_and_changes_nothing(admin, plane):
    await admin.post("/live/knob", data={"base_revision": 1, THRESHOLD: "0.8", "reason": "first"})
    reply = await admin.post("/live/knob/revert", data={"base_revision": 1, "to_revision": 1})
    assert 'role="alert"' in reply.text
    assert threshold(plane) == (2, 0.8)


LINK = Link("ams-fra", "ams", "fra", 5e6, 0.03)
KNOBS = knobs_of([LINK])
CAP = "link.ams-fra.rate_cap_bytes_per_s"
LIVE = {knob.path: knob.field.default for knob in KNOBS}
AS_SHOWN = {knob.path: knob.shown(LIVE[knob.path]) for knob in KNOBS}


@pytest.mark.parametrize("knob", [knob for knob in KNOBS if knob.steps], ids=lambda knob: knob.name)
def test_a_slider_stays_within_the_bounds_of_its_field(knob):
    values = [step / knob.scale for step in knob.steps]
    assert values == sorted(set(values))
    assert knob.field.minimum is None or values[0] >= knob.field.minimum - 1e-9
    assert knob.field.maximum is None or values[-1] <= knob.field.maximum + 1e-9


def test_a_form_that_shows_what_is_live_changes_nothing():
    assert changes_of(KNOBS, AS_SHOWN, LIVE) == ({}, {})
    assert changes_of(KNOBS, {}, LIVE) == ({}, {})


@pytest.mark.parametrize(
    ("path", "typed", "value"),
    [
        ("routing.direct_hit_rate", "90", 0.9),
        ("routing.direct_hit_rate", "", None),
        ("routing.relay_load_ceiling", "70,5", 0.705),
        ("handoff.mode", "catch_up", "catch_up"),
        ("handoff.one_shot_max_tokens", "32", 32),
        ("outlier.enabled", "false", False),
        (CAP, "20", 2_500_000.0),
    ],
)
def test_what_is_typed_in_units_of_people_becomes_the_fields_own(path, typed, value):
    assert changes_of(KNOBS, AS_SHOWN | {path: typed}, LIVE) == ({path: value}, {})


@pytest.mark.parametrize(
    ("path", "typed", "error"),
    [
        ("handoff.mode", "perhaps", "choice"),
        ("outlier.enabled", "1", "choice"),
        ("handoff.one_shot_max_tokens", "1.5", "whole"),
        ("routing.relay_load_ceiling", "", "number"),
        (CAP, "inf", "number"),
    ],
)
def test_what_is_no_value_is_named_at_its_field(path, typed, error):
    assert changes_of(KNOBS, AS_SHOWN | {path: typed}, LIVE) == ({}, {path: error})


async def test_several_knobs_make_one_revision(admin, plane):
    form = {"base_revision": 1, "reason": "both", "handoff.mode": "one_shot", "routing.relay_load_ceiling": "50"}
    assert (await admin.post("/live/knob", data=form)).status_code == 200
    with plane.database.reading() as session:
        active = load_active(session)
    assert active.revision.number == 2
    assert active.revision.document["handoff"]["mode"] == "one_shot"
    assert active.revision.document["routing"]["relay_load_ceiling"] == 0.5


async def test_the_demo_traffic_can_be_stopped_and_started(admin, plane):
    for wanted, button in ((False, "Start"), (True, "Stop")):
        reply = await admin.post("/live/demo", data={"running": str(wanted).lower()})
        assert f"{button} the demo traffic" in reply.text
        with plane.database.reading() as session:
            assert is_demo_wanted(session) is wanted


def test_every_reason_has_words():
    assert set(reason_words(load_strings("en"))) == {reason.wire for reason in Reason}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "just now"), (42, "42 s ago"), (90, "1 min ago"), (7_300, "2 h ago"), (200_000, "2 d ago")],
)
def test_ago_is_coarse(seconds, words, plane):
    now = plane.now()
    then = now.fromtimestamp(now.timestamp() - seconds, now.tzinfo)
    assert ago(then, now, load_strings("en")) == words
