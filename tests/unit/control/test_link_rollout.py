"""A policy's way to the relay of a link, and its report's way back."""

import json
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from sqlmodel import select

from control.domain.policy import DEFAULT_POLICY_DOCUMENT, apply_changes
from control.domain.topology import Link
from control.services.access import Principal, Role
from control.services.link_rollout import LinkReport, record_link_report, shape_orders, sweep_links
from control.services.policies import RevisionDraft, create_revision
from control.services.reports import MAX_WAITING_ORDERS
from control.store.tables import LinkReportRow
from engine_agents.tasks.links import LinkObservation, apply_shape
from engine_agents.wan.admin import OldRevisionError, change_link
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.shaping import ClassShare, LinkShape

LINK = Link("ams-fra", "ams", "fra", 5e6, 0.03, 1.5e6, admin_url="http://relay")
RATE = "link.ams-fra.rate_cap_bytes_per_s"


@pytest.fixture
def rolled(seeded, orders):
    """Revision 2 caps the link and is active; its orders are gone."""
    draft = RevisionDraft("why", 1, changes={RATE: 1e6}, apply=True)
    create_revision(seeded, Principal("olga", Role.OPERATOR), draft)
    orders.clear()
    return seeded


@pytest.fixture
def report(clock):
    return LinkReport("order", "ams-fra", 2, "applied", "", clock.now)


def sweep(plane, waiting=0):
    return sweep_links(plane, lambda _: waiting)


def stored(plane):
    with plane.database.reading() as session:
        return session.exec(select(LinkReportRow)).one()


def test_an_order_goes_to_the_site_where_the_link_begins():
    document = apply_changes(DEFAULT_POLICY_DOCUMENT, {RATE: 1e6, "link.ams-fra.flow_cap_bytes_per_s": 9e6})
    [order] = shape_orders([LINK, replace(LINK, name="bare", admin_url="")], 7, document)
    assert (order.task, order.queue) == ("links.shape", "site.ams")
    assert order.arguments["revision"] == 7
    assert order.arguments["admin_url"] == "http://relay"
    assert order.arguments["shape"]["rate_cap_bytes_per_s"] == 1e6
    assert order.arguments["shape"]["flow_cap_bytes_per_s"] == 1.5e6
    assert json.loads(json.dumps(order.arguments)) == order.arguments


def test_a_sweep_orders_until_a_report_says_that_the_active_revision_is_enforced(rolled, orders, clock, report):
    assert sweep(rolled) == ["ams-fra"]
    record_link_report(rolled, replace(report, state="failed", error="no answer"))
    assert sweep(rolled) == ["ams-fra"]
    record_link_report(rolled, replace(report, observed_at=report.observed_at + timedelta(seconds=1)))
    assert sweep(rolled) == []
    clock.advance(seconds=15)
    assert sweep(rolled) == ["ams-fra"]
    assert [order.arguments["force"] for order in orders] == [False] * 3


def test_a_sweep_leaves_a_site_alone_whose_agent_is_away(rolled, orders):
    assert sweep(rolled, waiting=MAX_WAITING_ORDERS) == []
    assert orders == []


def test_a_revision_that_was_never_given_out_here_is_overruled(rolled, orders, report):
    record_link_report(rolled, replace(report, revision=9))
    sweep(rolled)
    assert [order.arguments["force"] for order in orders] == [True]


def test_late_reports_and_those_of_unknown_links_are_dropped(rolled, report):
    assert not record_link_report(rolled, replace(report, link="elsewhere"))
    assert record_link_report(rolled, report)
    assert not record_link_report(
        rolled, replace(report, revision=1, observed_at=report.observed_at - timedelta(seconds=1))
    )
    assert stored(rolled).revision == 2


def test_a_report_is_read_from_the_tasks_arguments(report):
    arguments = {
        "order_id": "order",
        "link": "ams-fra",
        "revision": 2,
        "state": "applied",
        "error": None,
        "applied_at_s": report.observed_at.timestamp(),
    }
    assert LinkReport.from_arguments(arguments) == report


class RelayFront:
    """The relay's admin API over one real link, without a network."""

    def __init__(self, link):
        self.link = link
        self.refuse_with = None

    def __call__(self, request):
        if request.method == "GET":
            return httpx.Response(200, json=json.loads(json.dumps([self.link.state()], default=vars_of)))
        if self.refuse_with is not None:
            return httpx.Response(self.refuse_with, text="no")
        try:
            change_link(self.link, request.content, force=request.url.params.get("force") == "true")
        except OldRevisionError:
            return httpx.Response(409)
        except ValueError as error:
            return httpx.Response(400, text=str(error))
        return httpx.Response(200)


def vars_of(share):
    return {"priority": share.priority, "weight": share.weight}


@pytest.fixture
async def relay():
    link = ShapedLink("ams-fra", "ams", "fra", LinkShape(5e6, 0.03))
    yield RelayFront(link)
    link.close()


def apply(relay, revision, changes=None, name="ams-fra", *, force=False):
    document = apply_changes(DEFAULT_POLICY_DOCUMENT, changes or {})
    [order] = shape_orders([LINK], revision, document)
    with httpx.Client(base_url="http://relay", transport=httpx.MockTransport(relay)) as client:
        return apply_shape(client, name, revision, order.arguments["shape"], force=force)


async def test_an_agent_brings_a_relay_to_the_policy_and_says_what_it_enforces(relay):
    changes = {RATE: 1e6, "link.ams-fra.max_transfers": 3, "classes.gold.link_priority": 5}
    assert apply(relay, 4, changes) == LinkObservation(4, "")
    assert relay.link.shape == LinkShape(
        5e6, 0.03, 1e6, 1.5e6, max_transfers=3, classes={"default": ClassShare(), "gold": ClassShare(5, 1.0)}
    )
    assert apply(relay, 4, changes) == LinkObservation(4, "")


async def test_an_order_that_comes_late_changes_nothing_and_is_no_failure(relay):
    apply(relay, 4, {RATE: 1e6})
    assert apply(relay, 3, {RATE: 2e6}) == LinkObservation(4, "")
    assert relay.link.shape.rate_cap_bytes_per_s == 1e6
    assert apply(relay, 3, {RATE: 2e6}, force=True) == LinkObservation(3, "")
    assert relay.link.shape.rate_cap_bytes_per_s == 2e6


async def test_what_a_relay_refuses_or_lacks_is_reported(relay):
    relay.refuse_with = 401
    assert apply(relay, 4) == LinkObservation(None, "the relay refused with 401: no")
    assert apply(relay, 4, name="elsewhere") == LinkObservation(None, "the relay has no link elsewhere")


async def test_a_change_from_elsewhere_is_set_back_by_the_next_order(relay):
    apply(relay, 4, {RATE: 1e6})
    relay.link.reshape({"rate_cap_bytes_per_s": 7e6})
    relay.refuse_with = 500
    assert "refused with 500" in apply(relay, 4, {RATE: 1e6}).error
    relay.refuse_with = None
    assert apply(relay, 4, {RATE: 1e6}) == LinkObservation(4, "")
    assert relay.link.shape.rate_cap_bytes_per_s == 1e6
