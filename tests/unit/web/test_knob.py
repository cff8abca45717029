import re

import pytest

from control.domain.routing import Reason
from control.services.demo import is_demo_wanted
from control.services.policies import load_active
from webapp.pages.knob import THRESHOLD, slider_steps
from webapp.strings import load_strings
from webapp.words import ago, reason_words


def threshold(plane):
    with plane.database.reading() as session:
        active = load_active(session)
    return active.revision.number, active.revision.document["routing"]["relay_when_transfer_exceeds_s"]


async def test_moving_the_knob_makes_a_revision_and_orders_every_gateway(admin, plane, orders):
    reply = await admin.post("/live/knob", data={"base_revision": 1, "value": "0.8", "reason": "RLD has room"})
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
        (("fast", "why"), "value", "Must be a number of seconds."),
        (("nan", "why"), "value", "Must be a number of seconds."),
        (("9000", "why"), "value", "Must be from 0 to 600 s."),
        (("-1", "why"), "value", "Must be from 0 to 600 s."),
        (("0.8", "  "), "reason", "Say why"),
    ],
)
async def test_a_refusal_stands_at_its_field_and_keeps_what_was_typed(admin, plane, typed, field, message):
    value, reason = typed
    reply = await admin.post("/live/knob", data={"base_revision": 1, "value": value, "reason": reason})
    assert reply.status_code == 422
    assert re.search(rf'id="{field}-error" role="alert">{re.escape(message)}', reply.text)
    assert f'value="{value}"' in reply.text
    assert threshold(plane) == (1, 0.3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"base_revision": "x"}, "did not say which revision"),
        ({"base_revision": "9" * 5000}, "did not say which revision"),
        ({"base_revision": None}, "did not say which revision"),
        ({"value": None}, "Must be a number of seconds."),
        ({"value": "1" * 41}, "Must be a number of seconds."),
        ({"reason": "r" * 501}, "at most 500 characters; these are 501"),
    ],
    ids=["text", "digits", "no revision", "no value", "long value", "long reason"],
)
async def test_a_form_that_is_not_as_the_page_sends_it_comes_back_with_what_was_typed(admin, plane, wrong, message):
    form = {"base_revision": "1", "value": "0.8", "reason": "RLD has room", **wrong}
    sent = {name: text for name, text in form.items() if text is not None}
    reply = await admin.post("/live/knob", data=sent)
    assert reply.status_code == 422
    assert message in reply.text
    for name in sent.keys() & {"value", "reason"}:
        assert f'value="{sent[name]}"' in reply.text
    assert threshold(plane) == (1, 0.3)


@pytest.mark.parametrize("to_revision", ["x", "0", "9" * 30])
async def test_a_revert_to_no_revision_is_refused_with_a_sentence(admin, plane, to_revision):
    reply = await admin.post("/live/knob/revert", data={"base_revision": 1, "to_revision": to_revision})
    assert (reply.status_code, reply.text) == (422, "Some fields of the form are not valid.")
    assert threshold(plane) == (1, 0.3)


async def test_a_change_made_against_an_old_revision_is_refused(admin, plane):
    await admin.post("/live/knob", data={"base_revision": 1, "value": "0.8", "reason": "first"})
    reply = await admin.post("/live/knob", data={"base_revision": 1, "value": "0.5", "reason": "second"})
    assert reply.status_code == 412
    assert "2 is active now" in reply.text
    assert threshold(plane) == (2, 0.8)


async def test_a_change_without_the_session_token_is_refused(admin, plane):
    del admin.headers["X-CSRF-Token"]
    reply = await admin.post("/live/knob", data={"base_revision": 1, "value": "0.8", "reason": "why"})
    assert reply.status_code == 403
    assert threshold(plane) == (1, 0.3)


async def test_reverting_brings_the_value_back_under_a_new_number(admin, plane, orders):
    await admin.post("/live/knob", data={"base_revision": 1, "value": "0.8", "reason": "first"})
    reply = await admin.post("/live/knob/revert", data={"base_revision": 2, "to_revision": 1})
    assert threshold(plane) == (3, 0.3)
    assert orders[-1].arguments["revision"] == 3
    assert "Revert r2 to r1" in reply.text


async def test_a_revert_that_comes_too_late_says_why_and_changes_nothing(admin, plane):
    await admin.post("/live/knob", data={"base_revision": 1, "value": "0.8", "reason": "first"})
    reply = await admin.post("/live/knob/revert", data={"base_revision": 1, "to_revision": 1})
    assert 'role="alert"' in reply.text
    assert threshold(plane) == (2, 0.8)


def test_the_slider_stays_within_the_bounds_of_its_field():
    steps = slider_steps()
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, 600)
    assert THRESHOLD == "routing.relay_when_transfer_exceeds_s"


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
