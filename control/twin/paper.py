"""The published case in the twin: 64K context, 90 % hits, 43 A + 32 B in two sites against 88 A in one.

One set of parameters serves all rows; each says where it comes from. Where the report gives none it was
fitted to the published quantiles of plain serving, PDD's P50, its cut at P99 and RLD's share, and to nothing else.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from control.domain.cost import FleetCost, Objective, benefit_cost_ratio, cost_ratio
from control.domain.policy import DEFAULT_POLICY_DOCUMENT, Policy, apply_changes, parse_policy
from control.domain.topology import Role
from control.twin.report import Quantiles, TwinReport, summarise
from control.twin.scenario import Scenario, TwinLink, TwinNode, Workload
from control.twin.state import TURN, Physics

GBPS = 1e9 / 8
Runner = Callable[[Scenario], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One figure of the case and where it comes from."""

    name: str
    value: float
    unit: str
    source: str


_PUBLISHED = "published"
_FITTED = "fitted to the published quantiles"
_ASSUMED = "assumed"

PARAMETERS: tuple[Parameter, ...] = (
    Parameter("context_tokens", 65_536, "tokens", f"{_PUBLISHED}: 64K in all"),
    Parameter("output_tokens", 1024, "tokens", f"{_PUBLISHED}: 1K"),
    Parameter("kv_bytes_per_token", 50_000, "bytes", f"{_PUBLISHED}: a model of 1T parameters, 10 to 80 KB, take 50"),
    Parameter("skewed_share", 0.70, "ratio", f"{_PUBLISHED}: 70 to 80 % of requests hit above 95 %"),
    Parameter(
        "lowest_hit_rate", 0.5, "ratio", f"{_PUBLISHED}: follows from a mean of 90 %, hits even on both sides of 95 %"
    ),
    Parameter("requests_per_s", 11.5, "1/s", f"{_PUBLISHED}: what PDD serves within its SLA"),
    Parameter("prefill_chips_a", 40, "chips", f"{_PUBLISHED}: 43 A, of which 3 relay"),
    Parameter("relay_chips_a", 3, "chips", _PUBLISHED),
    Parameter("main_chips_b", 32, "chips", _PUBLISHED),
    Parameter("baseline_chips_a", 88, "chips", _PUBLISHED),
    Parameter("price_b_low", 1.2, "A", _PUBLISHED),
    Parameter("price_b_high", 1.3, "A", _PUBLISHED),
    Parameter("line_at_low", 0.352, "A", f"{_PUBLISHED}: follows from −7.1 %"),
    Parameter("line_at_high", 0.32, "A", f"{_PUBLISHED}: follows from −3.5 %"),
    Parameter("chips_per_node", 8, "chips", f"{_ASSUMED}: one server; a relay node is one chip"),
    Parameter("prefill_tokens_per_s", 17_300, "tokens/s", _FITTED),
    Parameter("attention_tokens", 1e6, "tokens", f"{_ASSUMED}: attention adds 3 % at 64K"),
    Parameter("prefill_floor_s", 0.1, "s", f"{_ASSUMED}: no chunk costs less"),
    Parameter("chunk_tokens", 8192, "tokens", "default policy"),
    Parameter("link_bytes_per_s", 100 * GBPS, "bytes/s", f"{_PUBLISHED}: 10 to 100 Gbps between sites, take 100"),
    Parameter("flow_cap_bytes_per_s", 0.66 * GBPS, "bytes/s", f"{_FITTED}; one TCP stream reaches about 1 Gbps"),
    Parameter("streams_per_transfer", 1, "streams", f"{_ASSUMED}: plain TCP"),
    Parameter("rtt_s", 0.03, "s", f"{_ASSUMED}: another city"),
    Parameter("direct_bytes_per_s", 50e9, "bytes/s", f"{_ASSUMED}: RDMA, 400 Gbps"),
    Parameter("direct_setup_s", 0.005, "s", f"{_ASSUMED}: KV reaches RLD within tens of ms"),
    Parameter("relay_tau0_s", 0.06, "s", f"{_FITTED}: to RLD's share"),
    Parameter("relay_tau1_s", 0.0005, "s", _ASSUMED),
    Parameter("main_tau0_s", 0.015, "s", _ASSUMED),
    Parameter("main_tau1_s", 0.0002, "s", _ASSUMED),
    Parameter("baseline_tau0_s", 0.02, "s", _ASSUMED),
    Parameter("baseline_tau1_s", 0.0004, "s", "fitted to the baseline's published 9.0 requests/s"),
    Parameter("handoff_x0_s", 0.2, "s", f"{_PUBLISHED}: 100 tokens take 305 ms"),
    Parameter("handoff_x1_s", 0.00075, "s", f"{_PUBLISHED}: 100 tokens take 305 ms, ρ = 30 ms"),
    Parameter("ttft_limit_s", 15.0, "s", "default policy: P99 of the class"),
    Parameter("tpot_limit_s", 0.05, "s", "default policy: P90 of the class"),
    Parameter("turns_per_session", 10, "turns", f"{_ASSUMED}: tens of rounds, closed loop"),
    Parameter("think_s", 30.0, "s", f"{_ASSUMED}: mean, exponential"),
)
_VALUE = {parameter.name: parameter.value for parameter in PARAMETERS}

WARM_UP_S = 1500.0
DURATION_S = 9000.0
# The relay is judged by what it hides, so neither the hit rule nor admission hides it first.
_CHANGES: dict[str, Any] = {
    "classes.default.ttft_p90_s": 3600,
    "classes.default.ttft_p99_s": 3600,
    "outlier.enabled": False,
    "routing.direct_hit_rate": None,
}


def paper_policy(*, relays: bool) -> Policy:
    """PDD, or plain serving across sites, which sends everything straight to MD."""
    plain = {} if relays else {"routing.direct_hit_rate": 0}
    return parse_policy(apply_changes(DEFAULT_POLICY_DOCUMENT, _CHANGES | plain))


def paper_load(requests_per_s: float, duration_s: float, seed: int) -> Workload:
    """Sessions whose prompts are always full; of each, a skewed share is cached. They are under way when they begin."""
    rng = np.random.default_rng([seed, 3])
    turns = int(_VALUE["turns_per_session"])
    sessions = max(1, int(requests_per_s * duration_s / turns))
    rows = np.zeros(sessions * turns, TURN)
    is_skewed = rng.random(rows.size) < _VALUE["skewed_share"]
    low = rng.uniform(_VALUE["lowest_hit_rate"], 0.95, rows.size)
    hit_rate = np.where(is_skewed, rng.uniform(0.95, 1.0, rows.size), low)
    rows["input_tokens"] = int(_VALUE["context_tokens"] - _VALUE["output_tokens"])
    rows["reuse_tokens"] = (hit_rate * rows["input_tokens"]).astype(np.int64)
    rows["shared_tokens"][::turns] = rows["reuse_tokens"][::turns]
    rows["output_tokens"] = rows["bound_tokens"] = int(_VALUE["output_tokens"])
    rows["think_s"] = rng.exponential(_VALUE["think_s"], rows.size)
    starts_s = np.sort(rng.uniform(0.0, duration_s, sessions))
    return Workload(starts_s, np.arange(0, rows.size + 1, turns), rows)


def paper_scenario(requests_per_s: float, seed: int, *, relays: bool, main_site: str = "B") -> Scenario:
    """43 A + 32 B, with B across the line or beside A."""
    per_node = _VALUE["chips_per_node"]
    main = TwinNode(Role.MAIN, main_site, slots=512, tau0_s=_VALUE["main_tau0_s"], tau1_s=_VALUE["main_tau1_s"])
    relay = TwinNode(Role.RELAY, "A", slots=64, tau0_s=_VALUE["relay_tau0_s"], tau1_s=_VALUE["relay_tau1_s"])
    return _scenario(
        (
            *[_prefill_node()] * int(_VALUE["prefill_chips_a"] / per_node),
            *[relay] * int(_VALUE["relay_chips_a"]),
            *[main] * int(_VALUE["main_chips_b"] / per_node),
        ),
        requests_per_s,
        seed,
        relays=relays,
    )


def baseline_scenario(requests_per_s: float, seed: int) -> Scenario:
    """88 A in one site: as many prefill as in PDD, the rest decode."""
    per_node = _VALUE["chips_per_node"]
    decode = TwinNode(Role.MAIN, "A", slots=512, tau0_s=_VALUE["baseline_tau0_s"], tau1_s=_VALUE["baseline_tau1_s"])
    prefill = int(_VALUE["prefill_chips_a"] / per_node)
    nodes = (*[_prefill_node()] * prefill, *[decode] * (int(_VALUE["baseline_chips_a"] / per_node) - prefill))
    return _scenario(nodes, requests_per_s, seed, relays=False)


def _prefill_node() -> TwinNode:
    return TwinNode(
        Role.PREFILL,
        "A",
        capacity_tokens=1_000_000_000,
        tokens_per_s=_VALUE["prefill_tokens_per_s"],
        attention_tokens=_VALUE["attention_tokens"],
        chunk_tokens=int(_VALUE["chunk_tokens"]),
        floor_s=_VALUE["prefill_floor_s"],
    )


def _scenario(nodes: tuple[TwinNode, ...], requests_per_s: float, seed: int, *, relays: bool) -> Scenario:
    link = TwinLink(
        "A",
        "B",
        _VALUE["link_bytes_per_s"],
        _VALUE["rtt_s"],
        _VALUE["flow_cap_bytes_per_s"],
        int(_VALUE["streams_per_transfer"]),
        max_transfers=512,
    )
    physics = Physics(
        kv_bytes_per_token=_VALUE["kv_bytes_per_token"],
        direct_bytes_per_s=_VALUE["direct_bytes_per_s"],
        direct_setup_s=_VALUE["direct_setup_s"],
        handoff_x0_s=_VALUE["handoff_x0_s"],
        handoff_x1_s=_VALUE["handoff_x1_s"],
        slow_start=True,
        detect_s=1.0,
    )
    nodes = tuple(
        replace(node, capacity_tokens=1_000_000_000) if node.role is not Role.RELAY else node for node in nodes
    )
    load = paper_load(requests_per_s, DURATION_S, seed)
    return Scenario(nodes, (link,), paper_policy(relays=relays), physics, load, until_s=DURATION_S)


@dataclass(frozen=True, slots=True)
class PaperReport:
    """The case's rows; quantiles are means over the seeds."""

    plain: Quantiles
    pdd: Quantiles
    same_site: Quantiles
    rld_token_share: float
    baseline_rps: float
    pdd_rps: float
    cost_ratio: tuple[float, float]

    @property
    def rps_ratio(self) -> float:
        """Requests per second within the SLA, PDD's over the baseline's."""
        return self.pdd_rps / self.baseline_rps

    def to_document(self) -> dict[str, Any]:
        """Plain JSON data. A cut is the share that PDD takes off plain serving's quantile."""
        low, high = self.cost_ratio
        return {
            "plain": {"ttft_s": asdict(self.plain)},
            "pdd": {"ttft_s": asdict(self.pdd)},
            "same_site": {"ttft_s": asdict(self.same_site)},
            "cut_p90": 1.0 - self.pdd.p90 / self.plain.p90,
            "cut_p99": 1.0 - self.pdd.p99 / self.plain.p99,
            "rld_token_share": self.rld_token_share,
            "rps_ratio": self.rps_ratio,
            "cost_ratio": [low, high],
            "bcr": [benefit_cost_ratio(self.rps_ratio, high), benefit_cost_ratio(self.rps_ratio, low)],
        }


def paper_costs() -> tuple[float, float]:
    """Cost of 43 A + 32 B and the line over 88 A, at the low and at the high price of B."""
    chips_a = _VALUE["prefill_chips_a"] + _VALUE["relay_chips_a"]
    baseline = FleetCost(_VALUE["baseline_chips_a"])
    ratios = [
        cost_ratio(
            FleetCost(chips_a, _VALUE["main_chips_b"], _VALUE[f"price_b_{at}"], _VALUE[f"line_at_{at}"]), baseline
        )
        for at in ("low", "high")
    ]
    return round(ratios[0], 6), round(ratios[1], 6)


def paper_report(run: Runner, seeds: Iterable[int]) -> PaperReport:
    """Run all rows under each seed."""
    seeds = list(seeds)
    rate = _VALUE["requests_per_s"]
    rows = {
        "plain": [measured(run, paper_scenario(rate, seed, relays=False)) for seed in seeds],
        "pdd": [measured(run, paper_scenario(rate, seed, relays=True)) for seed in seeds],
        "same_site": [measured(run, paper_scenario(rate, seed, relays=False, main_site="A")) for seed in seeds],
    }
    shares = [report.rld_token_share or 0.0 for report in rows["pdd"]]
    return PaperReport(
        **{name: _mean_ttft(reports) for name, reports in rows.items()},
        rld_token_share=float(np.mean(shares)),
        baseline_rps=float(np.mean([_most_rps(run, partial(baseline_scenario, seed=seed)) for seed in seeds])),
        pdd_rps=float(np.mean([_most_rps(run, partial(paper_scenario, seed=seed, relays=True)) for seed in seeds])),
        cost_ratio=paper_costs(),
    )


def measured(run: Runner, scenario: Scenario) -> TwinReport:
    """The figures of a run once it has warmed up."""
    return summarise(
        run(scenario),
        from_s=WARM_UP_S,
        to_s=DURATION_S,
        objective=Objective(_VALUE["ttft_limit_s"], _VALUE["tpot_limit_s"]),
        kv_bytes_per_token=_VALUE["kv_bytes_per_token"],
    )


def _mean_ttft(reports: list[TwinReport]) -> Quantiles:
    rows = [report.ttft_s for report in reports if report.ttft_s is not None]
    p50, p90, p99 = np.mean([(row.p50, row.p90, row.p99) for row in rows], axis=0)
    return Quantiles(float(p50), float(p90), float(p99))


def _most_rps(run: Runner, scenario_at: Callable[[float], Scenario]) -> float:
    """The most requests per second at which P99 of TTFT and P90 of TPOT stay within the SLA, to 0.1."""
    low, high = 40, 160
    while high - low > 1:
        middle = (low + high) // 2
        report = measured(run, scenario_at(middle / 10.0))
        meets = (
            report.ttft_s is not None
            and report.tpot_p90_s is not None
            and report.ttft_s.p99 <= _VALUE["ttft_limit_s"]
            and report.tpot_p90_s <= _VALUE["tpot_limit_s"]
        )
        low, high = (middle, high) if meets else (low, middle)
    return low / 10.0
