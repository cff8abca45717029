"""Writes the Grafana board beside this file; tests hold it against the catalogue of metrics.

Run: `python -m deploy.grafana.make_board`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BOARD = Path(__file__).with_name("pdd.json")
WINDOW = "[$__rate_interval]"
SITE = '{site=~"$site"}'
_COLUMNS, _HEIGHT, _GRID = 3, 8, 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: its queries with their legends, and a unit that Grafana knows."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str = ""


def rate(name: str, by: str, where: str = "") -> str:
    """Growth per second of a counter, summed."""
    return f"sum by ({by}) (rate({name}{where}{WINDOW}))"


def quantile(rank: float, name: str, by: str = "", where: str = "") -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({rank}, {rate(f'{name}_bucket', f'le, {by}' if by else 'le', where)})"


def share(role: str) -> str:
    """Output tokens per second that nodes of a role made."""
    return f'sum(rate(pdd_output_tokens_total{{role="{role}"}}{WINDOW}))'


PANELS = (
    Panel(
        "Time to first token",
        "s",
        tuple((quantile(rank, "pdd_request_ttft_seconds", "", SITE), f"P{rank * 100:g}") for rank in (0.5, 0.9, 0.99)),
    ),
    Panel(
        "Time to first token P99 by pipeline",
        "s",
        ((quantile(0.99, "pdd_request_ttft_seconds", "pipeline", SITE), "{{pipeline}}"),),
    ),
    Panel(
        "Time per output token",
        "s",
        tuple((quantile(rank, "pdd_request_tpot_seconds", "", SITE), f"P{rank * 100:g}") for rank in (0.5, 0.9)),
    ),
    Panel("Requests by outcome", "reqps", ((rate("pdd_requests_total", "outcome", SITE), "{{outcome}}"),)),
    Panel("Requests by pipeline", "reqps", ((rate("pdd_requests_total", "pipeline", SITE), "{{pipeline}}"),)),
    Panel(
        "Requests by service class",
        "reqps",
        ((rate("pdd_class_requests_total", "service_class", SITE), "{{service_class}}"),),
    ),
    Panel(
        "Share of output tokens made by relay decode",
        "percentunit",
        ((f"{share('relay')} / sum(rate(pdd_output_tokens_total{WINDOW}))", "RLD share"),),
        "Rising together with transfer times and cache lag while TTFT stays flat: a link that no longer drains.",
    ),
    Panel(
        "Prompt share found in the caches, mean",
        "percentunit",
        tuple(
            (f"{rate(f'{name}_sum', 'site', SITE)} / {rate(f'{name}_count', 'site', SITE)}", legend)
            for name, legend in (("pdd_prefix_hit_ratio", "on P {{site}}"), ("pdd_drc_hit_ratio", "on MD {{site}}"))
        ),
    ),
    Panel(
        "Why requests went where they did",
        "reqps",
        ((rate("pdd_routing_decisions_total", "reason", SITE), "{{reason}}"),),
    ),
    Panel("WAN links: use of capacity", "percentunit", (("pdd_link_utilization_ratio", "{{link}}"),)),
    Panel(
        "WAN links: KV by pipeline",
        "Bps",
        ((rate("pdd_kv_transfer_bytes_total", "link, pipeline", '{service_class=~".+"}'), "{{link}} {{pipeline}}"),),
    ),
    Panel(
        "WAN links: transfers that wait",
        "none",
        (("pdd_link_queue_depth", "{{link}}"), ('pdd_kv_transfers_in_flight{link=~".+"}', "{{link}} under way")),
    ),
    Panel(
        "WAN links: wait for a place P99",
        "s",
        (
            (quantile(0.99, "pdd_link_queue_wait_seconds", "link"), "{{link}}"),
            ("pdd_link_longest_wait_seconds", "{{link}} now"),
        ),
    ),
    Panel(
        "KV transfers P99",
        "s",
        ((quantile(0.99, "pdd_kv_transfer_seconds", "link, pipeline"), "{{link}} {{pipeline}}"),),
    ),
    Panel("Cache lag of main nodes", "none", ((f"pdd_cache_lag_tokens{SITE}", "{{node}}"),)),
    Panel("Relay decode: use of slots", "percentunit", ((f"pdd_relay_utilization_ratio{SITE}", "{{site}}"),)),
    Panel("Handoffs", "ops", ((rate("pdd_handoffs_total", "mode, outcome"), "{{mode}} {{outcome}}"),)),
    Panel("Pause at the handoff P99", "s", ((quantile(0.99, "pdd_handoff_seconds", "mode"), "{{mode}}"),)),
    Panel(
        "Made good: resumes and pulls again",
        "ops",
        (
            (rate("pdd_resumes_total", "site", SITE), "resumes {{site}}"),
            (rate("pdd_repulls_total", "site", SITE), "pulls {{site}}"),
        ),
    ),
    Panel("KV leased while nobody reads it", "bytes", ((f"pdd_stranded_kv_bytes{SITE}", "{{node}}"),)),
    Panel("Gateway's own work P99", "s", ((quantile(0.99, "pdd_gateway_overhead_seconds", "site", SITE), "{{site}}"),)),
    Panel(
        "Engines: requests",
        "none",
        (
            ("sum by (instance) (vllm:num_requests_running)", "running {{instance}}"),
            ("sum by (instance) (vllm:num_requests_waiting)", "waiting {{instance}}"),
        ),
    ),
    Panel("Engines: resident share of KV", "percentunit", (("vllm:kv_cache_usage_perc", "{{instance}}"),)),
    Panel(
        "Policy revision that gateways run",
        "none",
        ((f"count by (site, revision) (pdd_policy_revision_info{SITE})", "{{site}} r{{revision}}"),),
    ),
    Panel(
        "Telemetry: what was read and left out",
        "ops",
        (
            (f"sum(rate(pdd_telemetry_records_total{WINDOW}))", "records"),
            (rate("pdd_telemetry_left_out_total", "reason"), "left out: {{reason}}"),
            (rate("pdd_observer_dropped_batches_total", "site"), "rounds lost: {{site}}"),
        ),
    ),
    Panel("Telemetry: age of the rollups", "s", (("pdd_telemetry_save_age_seconds", "age"),)),
    Panel("Browsers on the live feed", "none", (("pdd_live_subscribers", "{{instance}}"),)),
)


def board() -> dict[str, Any]:
    """The board as Grafana imports it."""
    return {
        "uid": "pdd-fleet",
        "title": "PDD fleet",
        "tags": ["pdd"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "site",
            "type": "query",
            "label": "Site",
            "datasource": _SOURCE,
            "query": {"query": "label_values(pdd_requests_in_flight, site)", "refId": "site"},
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
        },
    ]


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    width = _GRID // _COLUMNS
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % _COLUMNS * width,
            "y": number // _COLUMNS * _HEIGHT,
            "w": width,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"spanNulls": False}}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    BOARD.write_text(json.dumps(board(), indent=2) + "\n", encoding="utf-8")
