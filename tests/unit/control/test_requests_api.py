"""Kept requests over REST: found, sorted, paged, exported, told as a story, compared."""

import csv
import io

import pytest
from fastapi.testclient import TestClient

from control.api.app import create_api
from control.services.access import Role
from control.services.credentials import ensure_token
from control.settings import Settings
from control.store import samples
from control.store.samples import delete_old_samples
from control.telemetry.records import StageTime
from tests.unit.control.rollup_writers import record_of, write_batch

API = "/api/v1/requests"
STAGES = (StageTime("prefill", 0.1, 0.4), StageTime("kv_wan", 0.4, 0.5), StageTime("main_decode", 0.5, 1.0))


@pytest.fixture
def client(seeded):
    ensure_token(seeded, "vera", Role.VIEWER, "secret")
    with TestClient(create_api(Settings.from_environment({}), seeded)) as opened:
        opened.headers["Authorization"] = "Bearer secret"
        yield opened


def ids(client, **params):
    answer = client.get(API, params=params)
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


def test_requests_are_found_by_what_they_are(client, seeded):
    write_batch(
        seeded,
        record_of(seeded, "plain", age_s=50),
        record_of(seeded, "relayed", pipeline="relay", relay_node="ams-rld-01", cached_tokens=100, ttft_s=3.0),
        record_of(seeded, "failed", age_s=40, outcome="failed", service_class="gold", policy_revision=2, ttft_s=None),
        record_of(seeded, "old", age_s=4000, tenant="acme", model="other"),
    )
    assert ids(client) == ["relayed", "failed", "plain", "old"]
    assert ids(client, pipeline="relay") == ids(client, bucket=0) == ids(client, node="ams-rld-01") == ["relayed"]
    assert ids(client, outcome="failed") == ids(client, service_class="gold") == ids(client, revision=2) == ["failed"]
    assert ids(client, tenant="acme") == ids(client, model="other") == ids(client, id="old") == ["old"]
    assert ids(client, min_ttft_s=3.0) == ["relayed"]
    assert ids(client, site="fra") == []
    since = seeded.now().isoformat().replace("03:04", "03:03")
    assert ids(client, since=since) == ["relayed", "failed", "plain"]
    assert ids(client, until=since) == ["old"]


@pytest.mark.parametrize("sort", ["at", "ttft", "hit_rate", "stall"])
@pytest.mark.parametrize("descending", [True, False])
def test_pages_give_every_request_once_and_in_order(client, seeded, sort, descending):
    records = [
        record_of(seeded, f"r{n}", age_s=n % 5, ttft_s=None if n % 4 == 0 else n / 100, handoff_stall_s=0.1)
        for n in range(23)
    ]
    write_batch(seeded, *records)
    found, cursor = [], None
    while True:
        params = {"sort": sort, "descending": descending, "limit": 5} | ({"cursor": cursor} if cursor else {})
        page = client.get(API, params=params).json()
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(item["id"] for item in found) == sorted(f"r{n}" for n in range(23))
    field = {"at": "at", "ttft": "ttft_s", "hit_rate": "hit_rate", "stall": "handoff_stall_s"}[sort]
    values = [item[field] for item in found if item[field] is not None]
    assert values == sorted(values, reverse=descending)


def test_a_cursor_of_something_else_is_refused(client):
    for cursor in ("x", "MSAy!", "bmFuIC0x", "YSBi"):
        answer = client.get(API, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "cursor"), cursor


def test_the_table_as_csv_cannot_be_taken_for_a_formula(client, seeded):
    write_batch(seeded, record_of(seeded, "=HYPERLINK(1)"), record_of(seeded, "two", age_s=60))
    answer = client.get(f"{API}/export", params={"sort": "at"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["id"] for row in rows] == ["'=HYPERLINK(1)", "two"]
    assert (rows[1]["ttft_s"], rows[1]["hit_rate"], rows[1]["relay_node"]) == ("0.5", "0.96", "")


def test_one_request_is_told_beside_the_middle_of_its_bucket(client, seeded):
    others = [
        record_of(seeded, f"o{n}", age_s=60 + n, ttft_s=n / 10, stages=(StageTime("prefill", 0.0, n / 10),))
        for n in (1, 2, 3)
    ]
    elsewhere = record_of(seeded, "elsewhere", cached_tokens=0, ttft_s=9.0)
    story = record_of(
        seeded,
        "mine",
        stages=STAGES,
        drc_resident_tokens=600,
        drc_in_flight_tokens=100,
        uncached_tokens=300,
        relay_was_at_ceiling=True,
        predicted_direct_ttft_s=2.5,
        trace_id="ab" * 16,
        resumes=1,
    )
    write_batch(seeded, *others, elsewhere, story)
    told = client.get(f"{API}/mine").json()
    assert [stage["name"] for stage in told["stages"]] == ["prefill", "kv_wan", "main_decode"]
    assert [stage["name"] for stage in told["critical_path"]] == ["prefill", "kv_wan"]
    assert told["decision"] | {"resident_tokens": 600, "in_flight_tokens": 100} == told["decision"]
    assert (told["decision"]["relay_was_at_ceiling"], told["decision"]["predicted_direct_ttft_s"]) == (True, 2.5)
    assert (told["trace_id"], told["resumes"], told["drc_hit_rate"]) == ("ab" * 16, 1, 0.7)
    same = told["same_bucket"]
    assert (same["requests"], same["ttft_s"]) == (3, 0.2)
    assert same["stages"] == [{"name": "prefill", "start_s": 0.0, "end_s": 0.2}]


def test_a_request_that_was_not_kept_is_not_found(client):
    answer = client.get(f"{API}/nowhere")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:pdd:problem:not-found")


def test_slow_requests_differ_from_the_rest_by_their_node(client, seeded):
    fast = [record_of(seeded, f"f{n}", age_s=100 + n) for n in range(40)]
    slow = [
        record_of(seeded, f"s{n}", age_s=100 + n, ttft_s=20.0, prefill_node="ams-p-02", input_tokens=30_000)
        for n in range(10)
    ]
    write_batch(seeded, *fast, *slow)
    found = client.get(f"{API}/differences", params={"min_ttft_s": 10}).json()
    assert (found["selected"], found["rest"]) == (10, 40)
    told = {one["dimension"]: one for one in found["differences"]}
    assert (told["prefill_node"]["value"], told["prompt_length"]["value"]) == ("ams-p-02", "16K to 64K")
    assert (told["prefill_node"]["selected_share"], told["prefill_node"]["rest_share"]) == (1.0, 0.0)
    assert "site" not in told
    assert client.get(f"{API}/differences", params={"site": "fra"}).json()["differences"] == []


def test_what_the_selection_pins_is_no_difference(client, seeded):
    write_batch(seeded, *(record_of(seeded, f"d{n}") for n in range(5)))
    write_batch(seeded, *(record_of(seeded, f"r{n}", pipeline="relay") for n in range(5)))
    assert client.get(f"{API}/differences", params={"pipeline": "relay"}).json()["differences"] == []


def test_of_each_kind_only_the_newest_stay_and_none_longer_than_its_time(client, seeded, clock, monkeypatch):
    monkeypatch.setattr(samples, "MAX_SAMPLES", {False: 3, True: 2})
    write_batch(
        seeded,
        *(record_of(seeded, f"plain{n}", age_s=20 - n) for n in range(5)),
        *(record_of(seeded, f"slow{n}", age_s=30 - n, ttft_s=99.0) for n in range(5)),
    )

    def sweep():
        with seeded.database.unit_of_work(seeded.send) as work:
            return delete_old_samples(work.session, seeded.now().timestamp())

    assert sweep() == 5
    assert ids(client) == ["plain4", "plain3", "plain2", "slow4", "slow3"]
    assert sweep() == 0
    clock.advance(seconds=samples.KEPT_S)
    assert sweep() == 5


def test_texts_that_no_database_keeps_make_no_row_and_no_error(seeded, client):
    write_batch(
        seeded,
        record_of(seeded, "nul\0"),
        record_of(seeded, "x" * 300),
        record_of(seeded, "site", site="nul\0"),
        record_of(seeded, "good"),
    )
    assert sorted(ids(client)) == ["good", "site"]
    assert ids(client, site="other") == ["site"]
