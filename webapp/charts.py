"""Figures of the Live page without their data: each trace names the path of a slot's field that fills it.

The browser fills them every two seconds and tests fill them against the Python `plotly` package, which knows every
property. Colours are tokens of `static/app.css`; times are UTC.
"""

from typing import Any

from webapp.strings import Strings

Figure = dict[str, Any]

BUCKETS = ("0–90", "90–93", "93–95", "95–97", "97–98", "98–99", "99–100")
HEIGHT_OF_AXIS_PX = 20


def _token(name: str) -> str:
    return f"var(--{name})"


def _font() -> Figure:
    return {"family": "Inter Variable, system-ui, sans-serif", "size": 11, "color": _token("text-3")}


def _layout(left: int, right: int = 8, top: int = 8, bottom: int = HEIGHT_OF_AXIS_PX, **more: Any) -> Figure:
    axis: Figure = {
        "type": "date",
        "showgrid": False,
        "zeroline": False,
        "showline": True,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": _token("axis"),
        "linecolor": _token("axis"),
        "tickformat": "%H:%M",
        "fixedrange": True,
    }
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": left, "r": right, "t": top, "b": bottom, "pad": 0, "autoexpand": False},
        "font": _font(),
        "showlegend": False,
        "hovermode": False,
        "dragmode": False,
        "uirevision": "live",
        "xaxis": axis,
        "shapes": [],
        "annotations": [],
        **more,
    }


def _y_axis(**more: Any) -> Figure:
    return {
        "gridcolor": _token("grid"),
        "gridwidth": 1,
        "zeroline": False,
        "rangemode": "tozero",
        "fixedrange": True,
        "ticklabelstandoff": 4,
        "nticks": 4,
        **more,
    }


def _line(path: str, name: str, token: str, width: float, **more: Any) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "line": {"color": _token(token), "width": width, "shape": "linear"},
        "connectgaps": False,
        "hoverinfo": "skip",
        "meta": {"path": path, **more},
    }


def _area(path: str, name: str, token: str, pattern: str = "", **more: Any) -> Figure:
    """One layer of a stack; relay is hatched and outlier dotted, so that colour is never alone."""
    layer = _line(path, name, token, 1.25, **more)
    layer["stackgroup"] = "all"
    layer["fillcolor"] = _token(f"{token}-fill")
    if pattern:
        layer["fillpattern"] = {
            "shape": pattern,
            "size": 6,
            "solidity": 0.18,
            "fgcolor": _token(f"{token}-hatch"),
            "bgcolor": _token(f"{token}-fill-2"),
            "fillmode": "overlay",
        }
    return layer


def _limit(name: str, colour: str, dash: str) -> Figure:
    """A horizontal line whose height the page sets; `name` says from which figure."""
    return {
        "type": "line",
        "name": name,
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "yref": "y",
        "y0": 0,
        "y1": 0,
        "visible": False,
        "line": {"color": _token(colour), "width": 1.25, "dash": dash},
    }


def ttft() -> Figure:
    """Quantiles over the sliding minute; they differ by weight and lightness, because dashes belong to limits."""
    return {
        "data": [
            _line("ttft.p50", "P50", "text-3", 1.25),
            _line("ttft.p90", "P90", "text-2", 1.5),
            _line("ttft.p99", "P99", "text", 2),
        ],
        "layout": _layout(
            left=44,
            right=62,
            yaxis=_y_axis(
                type="log",
                rangemode="normal",
                tickvals=[0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100],
                ticktext=["10 ms", "30 ms", "0.1 s", "0.3 s", "1 s", "3 s", "10 s", "30 s", "100 s"],
                nticks=9,
            ),
            shapes=[_limit("slo.ttft_p99_s", "slo", "6px,4px")],
        ),
    }


def wan_link(t: Strings, link: str, *, with_time_axis: bool = True) -> Figure:
    """Bytes of one link by pipeline, as Mb/s, against what it can carry."""
    layout = _layout(left=44, right=4, bottom=HEIGHT_OF_AXIS_PX if with_time_axis else 6, yaxis=_y_axis(nticks=3))
    layout["shapes"] = [_limit("capacity", "text-2", "2px,3px")]
    layout["xaxis"] |= {"showticklabels": with_time_axis, "ticks": "outside" if with_time_axis else ""}
    return {
        "data": [
            _area(f"links.{link}.direct_bytes_per_s", t("chart.js.direct"), "direct", unit="Mb/s"),
            _area(f"links.{link}.relay_bytes_per_s", t("chart.js.relay"), "relay", "/", unit="Mb/s"),
        ],
        "layout": layout,
    }


def relay_load(t: Strings) -> Figure:
    """Sequences on RLD: running against the ceiling of the policy and the slots there are."""
    waiting = _line("relay.waiting", t("chart.js.waiting"), "text", 1.5)
    waiting["line"] = {"color": _token("text"), "dash": "2px,2px"}
    return {
        "data": [
            _area("relay.running", t("chart.js.running"), "relay", "/"),
            waiting,
        ],
        "layout": _layout(
            left=28,
            right=4,
            yaxis=_y_axis(nticks=5),
            shapes=[_limit("ceiling", "text-2", "2px,3px"), _limit("slots", "axis", "solid")],
        ),
    }


def pipelines(t: Strings) -> Figure:
    """Share of requests by pipeline; a slot without requests is a gap, not zero."""
    percent = {"range": [0, 100], "tickvals": [0, 50, 100], "ticktext": ["0 %", "50 %", "100 %"]}
    return {
        "data": [
            _area("pipelines.direct", t("chart.js.direct"), "direct", share_of="pipelines"),
            _area("pipelines.relay", t("chart.js.relay"), "relay", "/", share_of="pipelines"),
            _area("pipelines.outlier", t("chart.js.outlier"), "outlier", ".", share_of="pipelines"),
        ],
        "layout": _layout(left=40, right=52, yaxis=_y_axis(**percent)),
    }


def handoffs(t: Strings) -> Figure:
    """Handoffs per minute below, their stall above: two measures, two plots, never two axes over one another."""
    bar = {"type": "bar", "hoverinfo": "skip"}
    relay = _token("relay")
    return {
        "data": [
            {
                **bar,
                "name": t("chart.js.one_shot"),
                "meta": {"path": "handoffs.one_shot", "unit": "per min"},
                "marker": {"color": relay, "line": {"width": 0}},
            },
            {
                **bar,
                "name": t("chart.js.catch_up"),
                "meta": {"path": "handoffs.catch_up", "unit": "per min"},
                "marker": {
                    "color": _token("relay-fill-2"),
                    "line": {"width": 0},
                    "pattern": {
                        "shape": "/",
                        "size": 4,
                        "solidity": 0.4,
                        "fgcolor": relay,
                        "bgcolor": "rgba(0,0,0,0)",
                    },
                },
            },
            {
                **_line("stall_p99_s", t("chart.js.stall"), "text", 1.5, unit="ms"),
                "yaxis": "y2",
                "mode": "lines+markers",
            }
            | {"marker": {"size": 3, "color": _token("text")}},
        ],
        "layout": _layout(
            left=40,
            right=52,
            barmode="stack",
            bargap=0.25,
            yaxis=_y_axis(domain=[0, 0.48], nticks=3),
            yaxis2=_y_axis(domain=[0.62, 1], side="right", anchor="x", nticks=3, ticksuffix=" ms"),
        ),
    }


def hit_rate_buckets(t: Strings) -> Figure:
    """Seven buckets against time on a square-root scale; a square marks a cell whose TTFT P99 is over the SLO."""
    scale = ((0.0, "h0"), (0.12, "h1"), (0.3, "h2"), (0.52, "h3"), (0.76, "h4"), (1.0, "h5"))
    return {
        "data": [
            {
                "type": "heatmap",
                "name": t("chart.js.requests"),
                "colorscale": [[at, _token(token)] for at, token in scale],
                "showscale": False,
                "xgap": 1,
                "ygap": 2,
                "hoverinfo": "skip",
                "hoverongaps": False,
                "meta": {"path": "buckets"},
            },
            {
                "type": "scatter",
                "mode": "markers",
                "name": t("chart.js.over_slo"),
                "hoverinfo": "skip",
                "marker": {
                    "symbol": "square",
                    "size": 5,
                    "color": _token("slo"),
                    "line": {"width": 1, "color": _token("panel")},
                },
                "meta": {"path": "bucket_ttft_p99"},
            },
        ],
        "layout": _layout(left=0, right=0, top=16, yaxis={"visible": False, "fixedrange": True, "range": [-0.5, 6.5]}),
    }


def live_figures(t: Strings) -> dict[str, Figure]:
    """Every figure of the Live page by the id of its panel; `wan_link` is copied for each link under its name."""
    return {
        "heat": hit_rate_buckets(t),
        "ttft": ttft(),
        "wan": wan_link(t, "{link}"),
        "relay": relay_load(t),
        "pipelines": pipelines(t),
        "handoffs": handoffs(t),
    }
