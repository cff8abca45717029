"""Agent sessions of a trace on a small fleet over several links: plain serving, PDD, and two ways to be worse."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from control.domain.cost import Objective
from control.domain.policy import DEFAULT_POLICY_DOCUMENT, Policy, apply_changes, parse_policy
from control.domain.topology import Role
from control.twin.report import TwinReport, summarise
from control.twin.scenario import Scenario, TwinLink, TwinNode
from control.twin.state import Physics
from control.twin.workload import drawn_again

GBPS = 1e9 / 8
KV_BYTES_PER_TOKEN = 50_000.0
REQUESTS_PER_S = 15.6
"""So that 15 a second are under way while sessions begin and end."""
MAX_INPUT_TOKENS = 65_536
MAX_THINK_S = 120.0
WARM_UP_S, DURATION_S = 2400.0, 7200.0
RELAY_WHEN_TRANSFER_EXCEEDS_S = 0.15
Runner = Callable[[Scenario], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a link and a way to serve. `known` is what an earlier, throw-away simulator gave."""

    name: str
    gbps: float = 25.0
    flow_cap_gbps: float = 0.0
    is_same_site: bool = False
    relays: bool = True
    counts_in_flight: bool = True
    finishes_transfers: bool = True
    known: str = ""


ROWS: tuple[Row, ...] = (
    Row("same site", is_same_site=True, known="0.11/0.56/2.83"),
    Row("25 Gbps, plain", relays=False, known="0.19/1.46/7.24"),
    Row("25 Gbps, PDD", known="0.19/0.68/2.92, RLD 3.5 %"),
    Row("100 Gbps, flows of 1 Gbps, plain", 100.0, 1.0, relays=False, known="0.40/4.73/18.2"),
    Row("100 Gbps, flows of 1 Gbps, PDD", 100.0, 1.0, known="0.26/0.64/3.30, RLD 11.1 %"),
    *(
        row
        for gbps in (43.0, 30.0, 25.0, 21.0, 20.0)
        for row in (
            Row(f"{gbps:g} Gbps, PDD", gbps),
            Row(f"{gbps:g} Gbps, resends bytes in flight", gbps, counts_in_flight=False),
            Row(f"{gbps:g} Gbps, ends on RLD", gbps, finishes_transfers=False),
        )
    ),
)


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure's mean, lowest and highest value over the seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(float(np.mean(values)), min(values), max(values))


@dataclass(frozen=True, slots=True)
class RowReport:
    """A row's figures; `link_load` is what was sent over what the link carries."""

    row: Row
    ttft_p50_s: Spread
    ttft_p90_s: Spread
    ttft_p99_s: Spread
    rld_token_share: Spread
    transfer_p99_s: Spread
    link_load: Spread
    rps: Spread


def study_policy(*, relays: bool) -> Policy:
    """Relay what needs longer than 0.15 s to cross, or nothing; no admission, no outliers, one stream per transfer."""
    changes: dict[str, Any] = {
        "routing.relay_when_transfer_exceeds_s": RELAY_WHEN_TRANSFER_EXCEEDS_S,
        "routing.direct_hit_rate": None if relays else 0,
        "routing.relay_load_ceiling": 1.0,
        "outlier.enabled": False,
        "handoff.relay_max_tokens": 1_000_000,
        "classes.default.ttft_p90_s": 3600,
        "classes.default.ttft_p99_s": 3600,
    }
    return parse_policy(apply_changes(DEFAULT_POLICY_DOCUMENT, changes))


def study_scenario(row: Row, sessions: Sequence[npt.NDArray[Any]], seed: int) -> Scenario:
    """8 P × 15K tokens/s behind one prefix store, RLD and MD with room for all, 50 KB per token."""
    prefill = TwinNode(
        Role.PREFILL,
        "A",
        lanes=8,
        capacity_tokens=1_000_000_000,
        tokens_per_s=15_000.0,
        attention_tokens=200_000.0,
        floor_s=0.02,
    )
    main_site = "A" if row.is_same_site else "B"
    return Scenario(
        nodes=(
            prefill,
            *[TwinNode(Role.RELAY, "A", slots=128, tau0_s=0.02)] * 8,
            *[TwinNode(Role.MAIN, main_site, slots=256, capacity_tokens=100_000_000, tau0_s=0.025)] * 8,
        ),
        links=(TwinLink("A", "B", row.gbps * GBPS, 0.03, row.flow_cap_gbps * GBPS, 1, max_transfers=100_000),),
        policy=study_policy(relays=row.relays),
        physics=Physics(KV_BYTES_PER_TOKEN, 50e9, 0.005, 0.2, 0.001, slow_start=False, detect_s=1.0),
        workload=drawn_again(sessions, REQUESTS_PER_S, DURATION_S, seed),
        counts_in_flight=row.counts_in_flight,
        finishes_transfers=row.finishes_transfers,
        until_s=DURATION_S,
    )


def study(run: Runner, sessions: Sequence[npt.NDArray[Any]], seeds: Iterable[int]) -> list[RowReport]:
    """All rows under each seed."""
    seeds = list(seeds)
    return [_row_report(row, [_measured(run, study_scenario(row, sessions, seed)) for seed in seeds]) for row in ROWS]


def _measured(run: Runner, scenario: Scenario) -> TwinReport:
    return summarise(
        run(scenario),
        from_s=WARM_UP_S,
        to_s=DURATION_S,
        objective=Objective(15.0, 0.05),
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
    )


def _row_report(row: Row, reports: Sequence[TwinReport]) -> RowReport:
    ttfts = [report.ttft_s for report in reports if report.ttft_s is not None]
    link_bytes_per_s = row.gbps * GBPS
    return RowReport(
        row,
        Spread.of([ttft.p50 for ttft in ttfts]),
        Spread.of([ttft.p90 for ttft in ttfts]),
        Spread.of([ttft.p99 for ttft in ttfts]),
        Spread.of([report.rld_token_share or 0.0 for report in reports]),
        Spread.of([report.transfer_p99_s or 0.0 for report in reports]),
        Spread.of([0.0 if row.is_same_site else report.sent_bytes_per_s / link_bytes_per_s for report in reports]),
        Spread.of([report.rps for report in reports]),
    )
