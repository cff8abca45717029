"""Turns timed answers into TTFT, TTST, TPOT, ITL and goodput. Pure."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from control.cli.stream_client import TimedAnswer


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a request must meet to count as good, seconds."""

    ttft_s: float = 10.0
    tpot_s: float = 0.05


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """The figures of one answer, seconds; None where the answer was too short to have one."""

    ttft_s: float | None
    ttst_s: float | None
    tpot_s: float | None
    itl_s: tuple[float, ...]
    e2e_s: float


@dataclass(frozen=True, slots=True)
class Quantiles:
    """P50, P90 and P99, mean and maximum of one figure."""

    p50: float
    p90: float
    p99: float
    mean: float
    max: float


def request_times(answer: TimedAnswer) -> RequestTimes:
    """The figures of one answer. Tokens that came in one chunk came at one time."""
    arrivals = [at for at, tokens in zip(answer.chunk_s, answer.chunk_tokens, strict=True) for _ in range(tokens)]
    ttft_s = arrivals[0] if arrivals else None
    tokens = max(answer.output_tokens, len(arrivals))
    return RequestTimes(
        ttft_s=ttft_s,
        ttst_s=arrivals[1] if len(arrivals) > 1 else None,
        tpot_s=(answer.end_s - ttft_s) / (tokens - 1) if ttft_s is not None and tokens > 1 else None,
        itl_s=tuple(later - earlier for earlier, later in itertools.pairwise(arrivals)),
        e2e_s=answer.end_s,
    )


def is_good(times: RequestTimes, objectives: Objectives) -> bool:
    """Whether a completed request met every objective."""
    return (
        times.ttft_s is not None
        and times.ttft_s <= objectives.ttft_s
        and (times.tpot_s is None or times.tpot_s <= objectives.tpot_s)
    )


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """None for no values: no data is not zero."""
    if not values:
        return None
    array = np.asarray(values)
    p50, p90, p99 = np.quantile(array, [0.5, 0.9, 0.99])
    return Quantiles(float(p50), float(p90), float(p99), float(array.mean()), float(array.max()))


def summarise(answers: Sequence[TimedAnswer], elapsed_s: float, objectives: Objectives) -> dict[str, Any]:
    """The report as plain data: counts, rates per second, and quantiles in seconds (null: no data)."""
    completed = [answer for answer in answers if answer.is_complete]
    times = [request_times(answer) for answer in completed]
    good = sum(is_good(each, objectives) for each in times)
    figures = {
        "ttft_s": [each.ttft_s for each in times if each.ttft_s is not None],
        "ttst_s": [each.ttst_s for each in times if each.ttst_s is not None],
        "tpot_s": [each.tpot_s for each in times if each.tpot_s is not None],
        "itl_s": [gap for each in times for gap in each.itl_s],
        "e2e_s": [each.e2e_s for each in times],
    }
    input_tokens = sum(answer.input_tokens for answer in completed)
    cached = [answer for answer in completed if answer.cached_tokens is not None and answer.input_tokens]
    return {
        "requests": len(answers),
        "completed": len(completed),
        "failed": len(answers) - len(completed),
        "elapsed_s": round(elapsed_s, 3),
        "input_tokens": input_tokens,
        "output_tokens": sum(answer.output_tokens for answer in completed),
        "mean_prefix_hit_rate": (
            sum((answer.cached_tokens or 0) / answer.input_tokens for answer in cached) / len(cached)
            if cached
            else None
        ),
        "rps": len(completed) / elapsed_s if elapsed_s else 0.0,
        "goodput_rps": good / elapsed_s if elapsed_s else 0.0,
        "objectives": asdict(objectives),
        **{name: asdict(found) if (found := quantiles(values)) else None for name, values in figures.items()},
        "errors": sorted({answer.error for answer in answers if answer.error})[:5],
    }


def render(report: dict[str, Any]) -> str:
    """The report for a terminal, times in milliseconds."""
    objectives, hit_rate = report["objectives"], report["mean_prefix_hit_rate"]
    wanted = f"TTFT within {objectives['ttft_s']:g} s and TPOT within {objectives['tpot_s'] * 1000:g} ms"
    lines = [
        f"{report['completed']} of {report['requests']} requests completed in {report['elapsed_s']:.1f} s",
        f"{report['rps']:.2f} per second, {report['goodput_rps']:.2f} per second with {wanted}",
        f"{report['input_tokens']} tokens in, {report['output_tokens']} out, prefix hit rate "
        + ("unknown" if hit_rate is None else f"{hit_rate:.1%}"),
        f"{'ms':>6} {'P50':>9} {'P90':>9} {'P99':>9} {'mean':>9} {'max':>9}",
    ]
    for name in ("ttft_s", "ttst_s", "tpot_s", "itl_s", "e2e_s"):
        found = report[name]
        cells = [f"{found[key] * 1000:9.1f}" for key in ("p50", "p90", "p99", "mean", "max")] if found else ["no data"]
        lines.append(f"{name.removesuffix('_s').upper():>6} {' '.join(cells)}")
    lines += [f"error: {error}" for error in report["errors"]]
    return "\n".join(lines)
