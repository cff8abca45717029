import pytest

from webapp.fleet_state import RECENT_SLOTS, THRESHOLDS, fleet_state

FRESH = {"name": "ams-gw-01", "kind": "gateway", "age_s": 0.4, "stale": False}
SILENT = {"name": "fra-observer", "kind": "observer", "age_s": 41.0, "stale": True}
SLO = {"ttft_p90_s": 3, "ttft_p99_s": 6}
GOOD = {"p50": 0.3, "p90": 1.0, "p99": 2.0}


def tick(sources=(FRESH,), nodes=(), **tiles):
    return {
        "tiles": {"requests": 10, "ttft": GOOD, "slo": SLO, "rld_share": 0.0} | tiles,
        "sources": sources,
        "nodes": nodes,
    }


def slots(share, count=RECENT_SLOTS, **more):
    return [{"eager_tokens": 100 * share, "output_tokens": 100, "requests": 10, "errors": 0} | more] * count


@pytest.mark.parametrize(
    ("case", "word"),
    [
        (tick(), "Healthy"),
        (tick(rld_share=0.1), "Relaying"),
        (tick(requests=0, ttft=None), "No traffic"),
        (tick(requests=None, ttft=None), "No traffic"),
        (tick(sources=()), "No data"),
        (tick(sources=({**FRESH, "stale": True},)), "No data"),
        (tick(sources=(FRESH, SILENT)), "Degraded"),
        (tick(ttft={"p50": 1, "p90": 3.5, "p99": 5}), "Degraded"),
        (tick(ttft={"p50": 1, "p90": 2.5, "p99": 6.1}), "Degraded"),
        (tick(nodes=({"name": "ams-rld-01", "state": "unreachable"},)), "Degraded"),
    ],
)
def test_word_follows_the_written_threshold(case, word):
    assert fleet_state(case, []).word == word


def test_every_word_has_a_written_threshold():
    written = {word for word, _ in THRESHOLDS}
    assert written == {"Healthy", "Relaying", "Degraded", "Collapsing", "No traffic", "No data"}


def test_failed_requests_above_one_percent_degrade_the_fleet():
    assert fleet_state(tick(), slots(0.0, errors=1)).why == "10.0 % of requests failed."


def test_rising_share_on_full_wan_and_full_relay_is_a_collapse():
    full = tick(rld_share=0.3, relay_utilization=0.9, wan_use={"ratio": 0.97})
    rising = slots(0.1, 2 * RECENT_SLOTS) + slots(0.3)
    assert fleet_state(full, rising).word == "Collapsing"


@pytest.mark.parametrize(
    ("tiles", "history"),
    [
        ({"relay_utilization": 0.9, "wan_use": {"ratio": 0.97}}, slots(0.3, 3 * RECENT_SLOTS)),
        ({"relay_utilization": 0.5, "wan_use": {"ratio": 0.97}}, slots(0.1, 2 * RECENT_SLOTS) + slots(0.3)),
        ({"relay_utilization": 0.9, "wan_use": None}, slots(0.1, 2 * RECENT_SLOTS) + slots(0.3)),
    ],
    ids=["share is flat", "relay has room", "no link is measured"],
)
def test_one_sign_alone_is_no_collapse(tiles, history):
    assert fleet_state(tick(rld_share=0.3, **tiles), history).word == "Relaying"
