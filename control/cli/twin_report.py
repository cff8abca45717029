"""The twin's tables as text."""

from collections.abc import Iterable

from control.twin.paper import PaperReport, Parameter
from control.twin.report import Quantiles
from control.twin.trace_study import RowReport, Spread


def render_paper(parameters: Iterable[Parameter], report: PaperReport) -> str:
    """Every parameter with its source, then the rows beside what was published."""
    document = report.to_document()
    lines = [f"  {one.name:24} {one.value:>14,g} {one.unit:9} {one.source}" for one in parameters]
    low, high = document["cost_ratio"]
    bcr_low, bcr_high = document["bcr"]
    lines += [
        "",
        f"  {'TTFT P50/P90/P99, s':34} {'twin':24} published",
        f"  {'plain, two sites':34} {_quantiles(report.plain):24} 6.7 / 18.3 / 29.7",
        f"  {'PDD, two sites':34} {_quantiles(report.pdd):24} 4.2 / - / -",
        f"  {'same site':34} {_quantiles(report.same_site):24} -",
        f"  {'cut at P90':34} {document['cut_p90']:<24.1%} -",
        f"  {'cut at P99':34} {document['cut_p99']:<24.1%} 51.5 %",
        f"  {'RLD share of output tokens':34} {report.rld_token_share:<24.1%} 6.2 %",
        f"  {'requests/s in SLA, 88 A':34} {report.baseline_rps:<24.2f} 9.0",
        f"  {'requests/s in SLA, PDD':34} {report.pdd_rps:<24.2f} 11.5",
        f"  {'ratio':34} {report.rps_ratio:<24.3f} 1.278",
        f"  {'cost':34} {f'{low - 1:.1%} to {high - 1:.1%}':24} -7.1 % to -3.5 %",
        f"  {'BCR':34} {f'{bcr_low - 1:+.1%} to {bcr_high - 1:+.1%}':24} up to +37.5 %",
    ]
    return "\n".join(lines)


def render_study(rows: Iterable[RowReport]) -> str:
    """One line per row, means over the seeds, the spread of P99 and RLD share in brackets."""
    head = f"  {'':36} {'TTFT P50/P90/P99, s':22} {'P99 from-to':12} {'RLD share':20} {'transfer P99':12}"
    lines = [f"{head} {'load':6} earlier"]
    for one in rows:
        ttft = f"{one.ttft_p50_s.mean:.2f}/{one.ttft_p90_s.mean:.2f}/{one.ttft_p99_s.mean:.2f}"
        share = f"{one.rld_token_share.mean:.1%} ({_percents(one.rld_token_share)})"
        spread = f"{one.ttft_p99_s.low:.2f}-{one.ttft_p99_s.high:.2f}"
        transfer = f"{one.transfer_p99_s.mean:.1f} s"
        line = f"  {one.row.name:36} {ttft:22} {spread:12} {share:20} {transfer:12} {one.link_load.mean:<6.0%}"
        lines.append(f"{line} {one.row.known}".rstrip())
    return "\n".join(lines)


def _quantiles(values: Quantiles) -> str:
    return f"{values.p50:.1f} / {values.p90:.1f} / {values.p99:.1f}"


def _percents(spread: Spread) -> str:
    return f"{spread.low:.1%}-{spread.high:.1%}"
