import re

import pytest

from control.telemetry.records import StageTime
from tests.unit.control.rollup_writers import record_of, write_batch
from webapp.request_query import active_filters, cursor_of, filter_of, order_of, place_of
from webapp.selection import Selection

STAGES = (StageTime("prefill", 0.1, 0.4), StageTime("kv_wan", 0.4, 0.5), StageTime("main_decode", 0.5, 1.0))


def ids(page):
    return re.findall(r'class="row-link" href="/requests/([^"?]+)', page)


@pytest.fixture
def kept(plane):
    write_batch(
        plane,
        record_of(plane, "plain", age_s=50, stages=STAGES),
        record_of(plane, "relayed", pipeline="relay", reason="transfer_long", relay_node="ams-rld-01", ttft_s=30.0),
        record_of(plane, "failed", age_s=40, outcome="failed", ttft_s=None, reason="<b>new</b>"),
        record_of(plane, "old", age_s=4000),
    )


async def test_the_table_shows_what_the_address_asks_for(admin, kept):
    assert ids((await admin.get("/requests")).text) == ["relayed", "failed", "plain"]
    assert ids((await admin.get("/requests?range=6h")).text) == ["relayed", "failed", "plain", "old"]
    assert ids((await admin.get("/requests?pipeline=relay")).text) == ["relayed"]
    assert ids((await admin.get("/requests?site=fra")).text) == ["relayed", "failed", "plain"]
    assert ids((await admin.get("/requests?id=old")).text) == ["old"]
    assert ids((await admin.get("/requests/table?sort=ttft&dir=asc")).text) == ["failed", "plain", "relayed"]


async def test_nothing_found_says_what_to_do(admin, kept):
    page = (await admin.get("/requests?outcome=shed")).text
    assert "No request matches." in page
    assert "Clear all filters" in page


async def test_what_comes_from_a_gateway_is_text(admin, kept):
    assert "<b>new</b>" not in (await admin.get("/requests")).text


async def test_pages_follow_one_another(admin, plane):
    write_batch(plane, *(record_of(plane, f"r{n:02}", age_s=100 - n) for n in range(60)))
    first = (await admin.get("/requests")).text
    following = re.search(r'href="(/requests\?cursor=[^"]+)"', first)
    second = (await admin.get(following[1].replace("&amp;", "&"))).text
    assert len(ids(first)) == 50
    assert ids(first) + ids(second) == [f"r{n:02}" for n in range(59, -1, -1)]


async def test_a_request_shows_where_its_time_went(admin, kept):
    page = (await admin.get("/requests/plain")).text
    assert page.count('class="stage-bar ') == 3
    assert "KV over WAN" in page
    assert "Why direct" in page
    over = (await admin.get("/requests/relayed")).text
    assert "Over SLO: TTFT 30.0 s, limit 15.0 s" in over


async def test_a_request_that_was_not_kept_says_so(admin, kept):
    reply = await admin.get("/requests/nowhere")
    assert reply.status_code == 404
    assert "is not kept" in reply.text


def test_an_address_that_makes_no_sense_filters_nothing():
    selection = Selection.of({})
    strange = {
        "bucket": "9",
        "revision": "-1",
        "min_ttft_s": "nan",
        "outcome": "x",
        "pipeline": "a\n",
        "tenant": "t" * 201,
    }
    wanted = filter_of(strange, selection, 1000.0)
    assert active_filters(wanted) == {}
    assert (wanted.since_s, wanted.until_s) == (100.0, None)
    assert order_of({"sort": "x", "dir": "y"}) == order_of({})
    for cursor in ("", "x", "nan~1", "1~-1", "1~x"):
        assert place_of({"cursor": cursor}) is None


def test_filters_and_places_are_read_back_as_they_were_written():
    stated = {"pipeline": "relay", "bucket": "0", "revision": "3", "min_ttft_s": "2.5"}
    assert active_filters(filter_of(stated, Selection.of({}), 0.0)) == stated
    place = place_of({"cursor": "-1.0~7"})
    assert cursor_of(place) == "-1.0~7"
