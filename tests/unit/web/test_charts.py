import re

import plotly.graph_objects as go
import pytest

from control.domain.slo import HIT_RATE_BUCKETS
from control.telemetry.link_windows import LinkSlot
from control.telemetry.records import LinkSample
from control.telemetry.request_slots import RequestSlot, slot_picture
from webapp.app import STATIC
from webapp.charts import BUCKETS, live_figures, wan_link
from webapp.strings import load_strings

T = load_strings("en")
FIGURES = live_figures(T)


def tokens_in(value):
    if isinstance(value, str):
        return set(re.findall(r"var\((--[\w-]+)\)", value))
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return set().union(*(tokens_in(one) for one in inner))


def filled(figure):
    """The figure as the page would fill it: two moments and numbers."""
    data = []
    for trace in figure["data"]:
        if trace["type"] == "heatmap":
            data.append({**trace, "x": ["2030-01-01", "2030-01-02"], "y": [0, 1], "z": [[1, None], [2, 3]]})
        else:
            data.append({**trace, "x": ["2030-01-01", "2030-01-02"], "y": [1, None]})
    return {"data": data, "layout": figure["layout"]}


@pytest.mark.parametrize("name", FIGURES)
def test_plotly_knows_every_property_of_a_figure(name):
    drawn = go.Figure(filled(FIGURES[name]))
    assert len(drawn.data) == len(FIGURES[name]["data"])


def test_plotly_refuses_a_property_that_does_not_exist():
    broken = filled(FIGURES["ttft"])
    broken["data"][0]["line"] = {"colour": "red"}
    with pytest.raises(ValueError, match="colour"):
        go.Figure(broken)


@pytest.mark.parametrize("name", FIGURES)
def test_every_colour_is_a_token_of_the_stylesheet(name):
    defined = set(re.findall(r"^\s*(--[\w-]+):", (STATIC / "app.css").read_text(), re.MULTILINE))
    used = tokens_in(FIGURES[name])
    assert used
    assert used <= defined


@pytest.mark.parametrize("name", FIGURES)
def test_every_trace_reads_a_field_that_telemetry_sends(name):
    sample = LinkSample("ams-fra", "ams", "fra", 1.0, 0.0)
    link = LinkSlot()
    link.add(None, sample)
    slot = slot_picture(RequestSlot(is_known=True), [])
    slot |= {"links": {"{link}": link.picture()}, "relay": {"running": 0, "waiting": 0, "slots": 0}}
    slot["ttft"] = {"p50": 1, "p90": 1, "p99": 1}
    for trace in FIGURES[name]["data"]:
        value = slot
        for part in trace["meta"]["path"].split("."):
            assert part in value
            value = value[part]


def test_there_is_a_row_for_every_bucket_of_the_domain():
    assert len(BUCKETS) == HIT_RATE_BUCKETS


def test_margins_are_fixed_so_that_lines_never_jump():
    assert all(figure["layout"]["margin"]["autoexpand"] is False for figure in FIGURES.values())


def test_a_link_above_another_leaves_the_time_to_the_lower_one():
    assert wan_link(T, "a", with_time_axis=False)["layout"]["xaxis"]["showticklabels"] is False
    assert wan_link(T, "a")["layout"]["xaxis"]["showticklabels"] is True
