"""What a run showed: quantiles of TTFT, RLD share, transfers, goodput, of the requests in a window of time."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from control.domain.cost import Objective

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class TwinReport:
    """Figures of the requests that arrived within a window. Nothing that is not known: no request, no figure."""

    requests: int
    served: int
    shed: int
    unfinished: int
    rps: float
    goodput_rps: float
    ttft_s: Quantiles | None
    e2e_s: Quantiles | None
    tpot_p90_s: float | None
    transfer_p99_s: float | None
    rld_token_share: float | None
    relay_share: float | None
    sent_bytes_per_s: float
    mean_hit_rate: float | None
    lag_tokens: float | None
    resumes: int
    max_stall_s: float | None

    def to_document(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)


def summarise(
    results: npt.NDArray[Any],
    *,
    from_s: float,
    to_s: float,
    objective: Objective,
    kv_bytes_per_token: float,
) -> TwinReport:
    """The figures of requests that arrived from `from_s` on and before `to_s`, whenever they ended."""
    rows = results[(results["arrived_s"] >= from_s) & (results["arrived_s"] < to_s) & (results["input_tokens"] > 0)]
    refused = rows["shed"] == 1
    ended = (rows["end_s"] > 0.0) & ~refused
    done = rows[ended]
    seconds = to_s - from_s
    moved = done[done["transfer_s"] > 0.0]
    good = (done["ttft_s"] <= objective.ttft_s) & (done["tpot_s"] <= objective.tpot_s)
    return TwinReport(
        requests=rows.size,
        served=done.size,
        shed=int(refused.sum()),
        unfinished=int(rows.size - done.size - refused.sum()),
        rps=done.size / seconds,
        goodput_rps=int(good.sum()) / seconds,
        ttft_s=quantiles(done["ttft_s"]),
        e2e_s=quantiles(done["end_s"] - done["arrived_s"]),
        tpot_p90_s=_quantile(done["tpot_s"], 0.9),
        transfer_p99_s=_quantile(moved["transfer_s"], 0.99),
        rld_token_share=_share(done["eager_tokens"], done["output_tokens"]),
        relay_share=float((done["pipeline"] != 1).mean()) if done.size else None,
        sent_bytes_per_s=float(rows["sent_tokens"].sum()) * kv_bytes_per_token / seconds,
        mean_hit_rate=float((done["cached_tokens"] / done["input_tokens"]).mean()) if done.size else None,
        lag_tokens=float(done["lag_tokens"].mean()) if done.size else None,
        resumes=int(rows["resumes"].sum()),
        max_stall_s=float(done["stall_s"].max()) if done.size else None,
    )


def quantiles(values: npt.NDArray[np.float64]) -> Quantiles | None:
    """P50, P90 and P99; none of nothing."""
    if not values.size:
        return None
    p50, p90, p99 = np.quantile(values, QUANTILES)
    return Quantiles(float(p50), float(p90), float(p99))


def _quantile(values: npt.NDArray[np.float64], quantile: float) -> float | None:
    return float(np.quantile(values, quantile)) if values.size else None


def _share(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> float | None:
    total = int(whole.sum())
    return int(part.sum()) / total if total else None
