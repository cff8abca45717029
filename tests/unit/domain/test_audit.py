from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.audit import (
    GENESIS,
    AuditFacts,
    Break,
    ChainedEvent,
    ChainHead,
    Fault,
    chain_hash,
    exported,
    imported,
    plain_json,
    verify_chain,
)

NOON = datetime(2030, 6, 1, 12, 0, 0, 123456, UTC)


def facts(number, **more):
    return replace(AuditFacts(number, NOON, "olga", "policy.apply", "policy/r1", None, {"a": number}, "why"), **more)


def chain(ids=(1, 2, 5, 6), start=GENESIS):
    events, last = [], start
    for number in ids:
        event = facts(number)
        events.append(ChainedEvent(event, last, chain_hash(last, event)))
        last = events[-1].hash
    return events


def head_of(events):
    return ChainHead(events[-1].facts.id, events[-1].hash)


def test_a_whole_chain_holds_and_an_empty_one_too():
    events = chain()
    verdict = verify_chain(events, head_of(events))
    assert (verdict.events, verdict.head, verdict.broken) == (4, head_of(events), None)
    assert verify_chain([], ChainHead(0, GENESIS)).broken is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("at", NOON + timedelta(microseconds=1)),
        ("actor", "otto"),
        ("action", "policy.create"),
        ("target", "policy/r2"),
        ("before", {}),
        ("after", {"a": 2.0}),
        ("reason", "why not"),
        ("id", 3),
    ],
)
def test_a_change_to_any_field_is_found_at_its_event(name, value):
    events = chain()
    events[1] = replace(events[1], facts=replace(events[1].facts, **{name: value}))
    assert verify_chain(events, head_of(events)).broken == Break(events[1].facts.id, Fault.CHANGED)


def test_an_event_whose_hash_was_made_to_fit_is_found_at_the_next_one():
    events = chain()
    changed = replace(events[1].facts, reason="another")
    events[1] = ChainedEvent(changed, events[0].hash, chain_hash(events[0].hash, changed))
    assert verify_chain(events, head_of(events)).broken == Break(5, Fault.UNLINKED)


@pytest.mark.parametrize(("missing", "at"), [(0, 2), (1, 5), (2, 6)])
def test_a_removed_event_is_found_at_the_one_behind_it(missing, at):
    events = chain()
    head = head_of(events)
    del events[missing]
    assert verify_chain(events, head).broken == Break(at, Fault.UNLINKED)


def test_events_that_changed_places_are_found():
    events = chain()
    events[1], events[2] = events[2], events[1]
    assert verify_chain(events, head_of(events)).broken == Break(5, Fault.UNLINKED)


def test_a_missing_end_is_told_by_the_head():
    events = chain()
    assert verify_chain(events[:2], head_of(events)).broken == Break(6, Fault.TRUNCATED)
    assert verify_chain(events, head_of(events[:2])).broken == Break(5, Fault.OUTSIDE)


def test_a_history_that_was_written_anew_is_told_only_by_a_noted_head():
    events = chain()
    noted = [ChainHead(event.facts.id, event.hash) for event in events[1:3]]
    forged = chain(start=chain_hash(GENESIS, facts(9)))
    forged[0] = ChainedEvent(facts(1, reason="forged"), GENESIS, chain_hash(GENESIS, facts(1, reason="forged")))
    for number in range(1, 4):
        own = facts(forged[number].facts.id)
        forged[number] = ChainedEvent(own, forged[number - 1].hash, chain_hash(forged[number - 1].hash, own))
    assert verify_chain(forged, head_of(forged)).broken is None
    assert verify_chain(forged, head_of(forged), noted).broken == Break(2, Fault.OTHER_HISTORY)
    assert verify_chain(events, head_of(events), noted).broken is None
    assert verify_chain(events[:2], head_of(events[:2]), noted).broken == Break(5, Fault.TRUNCATED)
    assert verify_chain(events, None, [ChainHead(3, "0")]).broken == Break(3, Fault.OTHER_HISTORY)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(before=json_values, after=json_values, reason=st.text(), at=st.datetimes(timezones=st.just(UTC)))
def test_an_event_comes_back_from_an_export_with_the_same_hash(before, after, reason, at):
    own = facts(7, before=plain_json(before), after=plain_json(after), reason=reason, at=at)
    event = ChainedEvent(own, GENESIS, chain_hash(GENESIS, own))
    assert imported(plain_json(exported(event))) == event
    assert verify_chain([event]).broken is None


def test_a_moment_has_one_hash_in_every_zone():
    elsewhere = NOON.astimezone(timezone(timedelta(hours=9)))
    assert chain_hash(GENESIS, facts(1)) == chain_hash(GENESIS, facts(1, at=elsewhere))


def test_what_json_cannot_hold_is_refused():
    for value in (float("nan"), {1j: 2}, object()):
        with pytest.raises((TypeError, ValueError)):
            plain_json(value)
