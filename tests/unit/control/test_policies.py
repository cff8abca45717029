import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlmodel import func, select

from control.domain.policy import DEFAULT_POLICY_DOCUMENT
from control.errors import (
    ForbiddenError,
    InvalidError,
    InvalidPolicyError,
    NotFoundError,
    PreconditionRequiredError,
    StaleRevisionError,
)
from control.services.access import Principal, Role
from control.services.policies import (
    RevisionDraft,
    apply_revision,
    create_revision,
    found_policy,
    load_active,
    load_revision,
    load_revisions,
    preview_revision,
)
from control.store.tables import AuditEventRow, ImmutableRowError, PolicyActivationRow, PolicyRevisionRow

RELAY = "routing.relay_when_transfer_exceeds_s"
OPERATOR = Principal("olga", Role.OPERATOR)
DRAFT = RevisionDraft("slow link", 1, changes={RELAY: 0.8}, apply=True)


def active_number(plane):
    with plane.database.reading() as session:
        return load_active(session).revision.number


def numbers(plane):
    with plane.database.reading() as session:
        return [row.number for row in load_revisions(session, 50)]


def audit(plane):
    with plane.database.reading() as session:
        return [(event.action, event.target) for event in session.exec(select(AuditEventRow))]


def test_the_first_policy_is_stored_once(seeded):
    assert not found_policy(seeded, "test", {}, "again")
    assert numbers(seeded) == [1]


def test_no_policy_is_active_before_the_first(plane):
    with plane.database.reading() as session, pytest.raises(NotFoundError):
        load_active(session)


def test_an_applied_revision_is_stored_audited_and_sent_to_every_gateway(seeded, orders, fleet):
    created = create_revision(seeded, OPERATOR, DRAFT)
    assert (created.number, created.base_number, created.actor) == (2, 1, "olga")
    assert created.document["routing"]["relay_when_transfer_exceeds_s"] == 0.8
    assert active_number(seeded) == 2
    order, shaping = orders
    assert (order.task, order.queue) == ("policies.push", "site.ams")
    assert order.arguments["revision"] == 2
    assert order.arguments["policy"] == created.document
    assert order.arguments["fleet"] == fleet.to_document()
    assert order.arguments["gateway"] == {"name": "ams-gw-01", "site": "ams", "url": "http://127.0.0.1:8000"}
    assert order.arguments["force"] is False
    assert (shaping.task, shaping.queue, shaping.arguments["link"]) == ("links.shape", "site.ams", "ams-fra")
    with seeded.database.reading() as session:
        creation, activation = session.exec(select(AuditEventRow).where(AuditEventRow.actor == "olga")).all()
    assert (creation.before, creation.after, creation.reason) == ({RELAY: 0.3}, {RELAY: 0.8}, "slow link")
    assert (activation.before, activation.after) == ({"revision": 1}, {"revision": 2})


def test_a_revision_may_wait_to_be_applied(seeded, orders):
    create_revision(seeded, OPERATOR, replace(DRAFT, apply=False))
    assert (active_number(seeded), orders) == (1, [])
    applied = apply_revision(seeded, OPERATOR, 2, "now")
    assert (applied.revision.number, active_number(seeded), len(orders)) == (2, 2, 2)


def test_a_change_against_an_older_revision_is_stale(seeded):
    create_revision(seeded, OPERATOR, DRAFT)
    with pytest.raises(StaleRevisionError):
        create_revision(seeded, OPERATOR, replace(DRAFT, changes={RELAY: 2}))
    with pytest.raises(StaleRevisionError):
        apply_revision(seeded, OPERATOR, 1, "back", base_revision=1)
    assert numbers(seeded) == [2, 1]


def test_a_change_must_say_what_it_was_made_against(seeded):
    with pytest.raises(PreconditionRequiredError):
        create_revision(seeded, OPERATOR, replace(DRAFT, base_revision=None))


def test_going_back_makes_a_copy_under_a_new_number(seeded, orders):
    create_revision(seeded, OPERATOR, DRAFT)
    back = apply_revision(seeded, OPERATOR, 1, "it was better before")
    assert back.revision.number == 3
    assert back.revision.document == DEFAULT_POLICY_DOCUMENT
    assert active_number(seeded) == 3
    assert [order.arguments["revision"] for order in orders] == [2, 2, 3, 3]
    assert audit(seeded)[-2:] == [("policy.create", "policy/r3"), ("policy.apply", "policy/r3")]


@pytest.mark.parametrize(
    ("draft", "error"),
    [
        (replace(DRAFT, reason="  "), InvalidError),
        (replace(DRAFT, changes={RELAY: 0.3}), InvalidError),
        (replace(DRAFT, changes={}), InvalidError),
        (replace(DRAFT, changes=None), InvalidError),
        (replace(DRAFT, document={}), InvalidError),
        (replace(DRAFT, changes={RELAY: -1}), InvalidPolicyError),
        (replace(DRAFT, changes={"no.such": 1}), InvalidPolicyError),
        (replace(DRAFT, changes={"cache.block_tokens": 128}), InvalidPolicyError),
        (replace(DRAFT, changes=None, document={"cache": {"block_tokens": 128}}), InvalidPolicyError),
        (replace(DRAFT, changes={"classes.gold.price": 2.0}), InvalidPolicyError),
        (replace(DRAFT, changes=None, document={"routing": 3}), InvalidPolicyError),
        (replace(DRAFT, changes=None, document={"extra": [math.nan]}), InvalidPolicyError),
        (replace(DRAFT, changes=None, document={"extra": "\ud800"}), InvalidPolicyError),
        (replace(DRAFT, changes=None, document={"extra": "x" * 70_000}), InvalidPolicyError),
    ],
)
def test_refuses_what_cannot_be_obeyed_and_stores_nothing(seeded, orders, draft, error):
    with pytest.raises(error):
        create_revision(seeded, OPERATOR, draft)
    assert (numbers(seeded), orders, len(audit(seeded))) == ([1], [], 2)


def test_a_refusal_names_each_field(seeded):
    with pytest.raises(InvalidPolicyError) as caught:
        create_revision(seeded, OPERATOR, replace(DRAFT, changes={RELAY: "x", "routing.direct_hit_rate": 7}))
    assert [problem.path for problem in caught.value.problems] == [RELAY, "routing.direct_hit_rate"]


def test_a_viewer_changes_nothing(seeded):
    viewer = Principal("vera", Role.VIEWER)
    with pytest.raises(ForbiddenError):
        create_revision(seeded, viewer, DRAFT)
    with pytest.raises(ForbiddenError):
        apply_revision(seeded, viewer, 1, "why not")
    assert numbers(seeded) == [1]


def test_a_preview_stores_nothing(seeded):
    with seeded.database.reading() as session:
        document, changes = preview_revision(session, DRAFT)
    assert document["routing"]["relay_when_transfer_exceeds_s"] == 0.8
    assert [(change.path, change.after) for change in changes] == [(RELAY, 0.8)]
    assert numbers(seeded) == [1]


def test_unknown_fields_are_kept_from_revision_to_revision(seeded):
    document = {**DEFAULT_POLICY_DOCUMENT, "guard": {"bake_s": 60}}
    create_revision(seeded, OPERATOR, replace(DRAFT, changes=None, document=document))
    created = create_revision(seeded, OPERATOR, replace(DRAFT, base_revision=2))
    assert created.document["guard"] == {"bake_s": 60}


def test_a_revision_cannot_be_changed(seeded):
    with pytest.raises(ImmutableRowError), seeded.database.unit_of_work(seeded.send) as work:
        load_revision(work.session, 1).reason = "another"


def test_applying_what_does_not_exist_is_refused(seeded):
    with pytest.raises(NotFoundError):
        apply_revision(seeded, OPERATOR, 99, "why not")
    with seeded.database.reading() as session:
        assert session.exec(select(func.count()).select_from(PolicyActivationRow)).one() == 1
        assert session.exec(select(func.count()).select_from(PolicyRevisionRow)).one() == 1


def test_of_two_changes_at_the_same_moment_one_is_stale(seeded):
    def change(value):
        try:
            return create_revision(seeded, OPERATOR, replace(DRAFT, changes={RELAY: value})).number
        except StaleRevisionError:
            return "stale"

    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(change, [1, 2, 3, 4]))
    assert sorted(answers, key=str) == [2, "stale", "stale", "stale"]
    assert numbers(seeded) == [2, 1]
