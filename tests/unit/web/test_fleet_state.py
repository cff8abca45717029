import pytest

from webapp.fleet_state import RECENT_SLOTS, WORDS, fleet_state
from webapp.strings import load_strings

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
        (tick(), "healthy"),
        (tick(rld_share=0.1), "relaying"),
        (tick(requests=0, ttft=None), "no_traffic"),
        (tick(requests=None, ttft=None), "no_traffic"),
        (tick(sources=()), "no_data"),
        (tick(sources=({**FRESH, "stale": True},)), "no_data"),
        (tick(sources=(FRESH, SILENT)), "degraded"),
        (tick(ttft={"p50": 1, "p90": 3.5, "p99": 5}), "degraded"),
        (tick(ttft={"p50": 1, "p90": 2.5, "p99": 6.1}), "degraded"),
        (tick(nodes=({"name": "ams-rld-01", "state": "unreachable"},)), "degraded"),
    ],
)
def test_word_follows_the_written_threshold(case, word):
    assert fleet_state(case, []).word == word


def test_every_word_and_sentence_has_its_texts():
    strings = load_strings("en")
    for word in WORDS:
        assert strings.has(f"fleet.word.{word}")
        assert strings.has(f"fleet.threshold.{word}")
        assert strings.has(f"common.js.word_{word}")
    for why in ("silent", "node_down", "ttft", "errors", *WORDS):
        if why != "degraded":
            assert strings.has(f"common.js.why_{why}")


def test_failed_requests_above_one_percent_degrade_the_fleet():
    state = fleet_state(tick(), slots(0.0, errors=1))
    assert (state.why, state.values) == ("errors", {"share": "10.0"})


def test_rising_share_on_full_wan_and_full_relay_is_a_collapse():
    full = tick(rld_share=0.3, relay_utilization=0.9, wan_use={"ratio": 0.97})
    rising = slots(0.1, 2 * RECENT_SLOTS) + slots(0.3)
    assert fleet_state(full, rising).word == "collapsing"


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
    assert fleet_state(tick(rld_share=0.3, **tiles), history).word == "relaying"
