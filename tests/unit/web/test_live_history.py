import pytest

from tests.unit.control.rollup_writers import record_of, write_batch, write_link, write_site
from webapp.knobs import THRESHOLD


@pytest.fixture
def measured(plane):
    write_batch(
        plane,
        *(record_of(plane, f"d{n}", age_s=40, ttft_s=0.5) for n in range(3)),
        *(
            record_of(
                plane, f"s{n}", age_s=60, ttft_s=8.0, pipeline="relay", cached_tokens=100, relay_node="ams-rld-01"
            )
            for n in range(2)
        ),
        record_of(plane, "hour", age_s=3000, ttft_s=1.0),
    )
    write_link(plane, seconds=10.0, total_bytes=1000, direct_bytes=600, relay_bytes=400, capacity_bytes=5000.0)
    write_site(plane, observer_batches=10, relay_running=20, relay_slots=40)


async def test_an_hour_has_the_same_shape_as_the_feed_and_counts_exactly(admin, measured):
    picture = (await admin.get("/live/history?range=1h")).json()
    known = [slot for slot in picture["slots"] if slot["requests"] is not None]
    assert picture["slot_s"] == 10
    assert sum(slot["requests"] for slot in known) == picture["tiles"]["requests"] == 6
    assert sum(slot["buckets"][0] for slot in known) == 2
    assert sum(slot["pipelines"]["relay"] for slot in known) == 2
    assert [slot["ttft"]["p99"] for slot in known] == pytest.approx([1.0, 8.0, 0.5], rel=0.01)
    assert picture["tiles"]["ttft"]["p50"] == pytest.approx(0.5, rel=0.01)
    assert [slot["links"]["ams-fra"]["relay_bytes_per_s"] for slot in picture["slots"] if slot["links"]["ams-fra"]] == [
        40
    ]
    assert [slot["relay"] for slot in picture["slots"] if slot["relay"]] == [{"running": 2, "waiting": 0, "slots": 4}]
    assert [row["id"] for row in picture["requests"]][:2] in (["s0", "s1"], ["s1", "s0"])


async def test_what_nobody_reported_is_null_and_not_zero(admin, plane):
    picture = (await admin.get("/live/history?range=1h")).json()
    assert {slot["requests"] for slot in picture["slots"]} == {None}
    assert picture["tiles"]["rps"] is None


async def test_quantiles_of_a_bucket_are_those_of_its_requests(admin, measured):
    rows = (await admin.get("/live/buckets?range=5m")).json()
    assert [row["requests"] for row in rows] == [2, 0, 0, 3, 0, 0, 0]
    assert rows[0]["p50"] == pytest.approx(8.0, rel=0.01)
    assert rows[1]["p99"] is None


async def test_what_differs_in_a_region_leads_to_its_requests(admin, plane, measured):
    now_s = int(plane.now().timestamp())
    reply = await admin.get("/live/differences", params={"bucket": 0, "from": now_s - 300, "to": now_s})
    assert reply.status_code == 200
    assert "Pipeline" in reply.text
    assert "pipeline=relay" in reply.text
    assert "2 requests" in reply.text
    assert (await admin.get("/live/differences", params={"bucket": 7})).status_code == 422


async def test_marks_are_policies_operations_and_remarks(admin, plane, measured):
    await admin.post("/live/knob", data={"base_revision": 1, THRESHOLD: "0.8", "reason": "RLD has room"})
    marks = (await admin.get("/live/marks")).json()["marks"]
    assert [(mark["kind"], mark["label"], mark["why"]) for mark in marks][-1] == ("policy", "r2", "RLD has room")
