"""TTFT of the same sessions on three fleets: PD inside one site, plain PD across the WAN, and PDD across the WAN.

Run: `python -m benchmarks.bench_ttft` on two quiet cores (about 17 minutes). The last line is JSON.
"""

import argparse
import asyncio
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import numpy as np

from benchmarks.small_fleet import SmallFleet, running_fleet, say, tell_if_busy
from benchmarks.ttft_scenario import (
    SESSIONS_AT_A_TIME,
    SYSTEM_TOKENS,
    Session,
    Turn,
    bucket_shares,
    mean_hit_rate,
    plan_sessions,
)
from control.cli.concurrency import together
from control.cli.fleet_plan import MODEL, SITE_A, SITE_B, Engine
from control.cli.load_report import request_times
from control.cli.stream_client import TimedAnswer, stream_answer
from control.domain.policy import DEMO_POLICY_DOCUMENT, apply_changes
from control.domain.topology import Role
from control.domain.workload import message_text

DEFAULT_REQUESTS = 80
_REQUEST_TIMEOUT_S = 300.0
_PROGRESS_EVERY = 10

# A request is never relayed where any hit rate goes straight to MD.
PLAIN_CHANGES: Mapping[str, Any] = {"routing.direct_hit_rate": 0.0, "routing.relay_when_transfer_exceeds_s": 600.0}
# The demo's policy with the transfer time as the only criterion. Its hit rule would leave the user waiting for as much
# as 150 of 1,500 tokens, two seconds on this link; 0.6 s keep P90 clear of the requests that stay direct.
PDD_CHANGES: Mapping[str, Any] = {"routing.direct_hit_rate": None, "routing.relay_when_transfer_exceeds_s": 0.6}


@dataclass(frozen=True, slots=True)
class Scheme:
    """One way to serve: where main decode stands, and what is changed in the demo's policy."""

    name: str
    main_site: str
    changes: Mapping[str, Any]


SCHEMES = (
    Scheme("same_site", SITE_A, PLAIN_CHANGES),
    Scheme("plain", SITE_B, PLAIN_CHANGES),
    Scheme("pdd", SITE_B, PDD_CHANGES),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one scheme did; `answers` are in the order of the plan, `cpu_s` is that of its processes, start included."""

    answers: tuple[TimedAnswer, ...]
    link_bytes: int
    elapsed_s: float
    cpu_s: float


@dataclass(slots=True)
class _Lane:
    """Sessions sent one after another, and what came back."""

    sessions: Sequence[Session]
    answers: dict[tuple[int, int], TimedAnswer] = field(default_factory=dict)


async def measure(scheme: Scheme, engine: Engine, seed: int, sessions: Sequence[Session]) -> Measured:
    """Send all sessions through one fresh fleet."""
    timeout, cpu_before_s = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S), _children_cpu_s()
    async with (
        running_fleet(engine, main_site=scheme.main_site) as fleet,
        aiohttp.ClientSession(timeout=timeout) as http,
    ):
        await fleet.configure(http, apply_changes(DEMO_POLICY_DOCUMENT, scheme.changes))
        streams = [await _token_stream(http, fleet, seed, session) for session in sessions]
        before = await fleet.fetch_quiet_link(http)
        began_s = time.monotonic()
        lanes = [_Lane(sessions[index::SESSIONS_AT_A_TIME]) for index in range(SESSIONS_AT_A_TIME)]
        await together(*(_run_lane(http, fleet, lane, streams, scheme.name) for lane in lanes))
        elapsed_s = time.monotonic() - began_s
        after = await fleet.fetch_quiet_link(http)
    answers = {key: answer for lane in lanes for key, answer in lane.answers.items()}
    return Measured(
        answers=tuple(answers[key] for key in sorted(answers)),
        link_bytes=after["bytes_total"] - before["bytes_total"],
        elapsed_s=elapsed_s,
        cpu_s=_children_cpu_s() - cpu_before_s,
    )


def _children_cpu_s() -> float:
    """Processor time of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _token_stream(http: aiohttp.ClientSession, fleet: SmallFleet, seed: int, session: Session) -> list[int]:
    """The session's tokens, of which its prompts are beginnings; all sessions begin with one system prompt."""
    system = await _tokens(http, fleet, Random(f"{seed}/system"), SYSTEM_TOKENS)
    own = await _tokens(http, fleet, Random(f"{seed}/tokens/{session.index}"), session.turns[-1].prompt_tokens)
    return system + own


async def _tokens(http: aiohttp.ClientSession, fleet: SmallFleet, rng: Random, count: int) -> list[int]:
    text = f"{rng.randrange(10**9)} {message_text(rng, 2 * count)}"
    url = f"{fleet.node(Role.PREFILL).url}/tokenize"
    async with http.post(url, json={"model": MODEL, "prompt": text}) as response:
        response.raise_for_status()
        tokens: list[int] = (await response.json())["tokens"]
    assert len(tokens) >= count, "the text is long enough"
    return tokens[:count]


async def _run_lane(
    http: aiohttp.ClientSession, fleet: SmallFleet, lane: _Lane, streams: Sequence[Sequence[int]], name: str
) -> None:
    for session in lane.sessions:
        for number, turn in enumerate(session.turns):
            await asyncio.sleep(turn.think_s)
            answer = await _send(http, fleet, streams[session.index][: turn.prompt_tokens], turn)
            lane.answers[session.index, number] = answer
            if not answer.is_complete:
                say(f"{name}: session {session.index}, turn {number + 1} failed: {answer.error}")
                say(fleet.end_of_log("gateway"))
            elif number % _PROGRESS_EVERY == 0:
                say(f"{name}: session {session.index}, turn {number + 1} of {len(session.turns)}")


async def _send(http: aiohttp.ClientSession, fleet: SmallFleet, prompt: Sequence[int], turn: Turn) -> TimedAnswer:
    body = {
        "model": MODEL,
        "prompt": list(prompt),
        "max_tokens": turn.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return await stream_answer(http, f"{fleet.gateway_url}/v1/completions", body, {"X-PDD-Explain": "1"})


def summarise(measured: Measured) -> dict[str, Any]:
    """One scheme's figures, seconds as the client felt them; quantiles are over requests."""
    times = [request_times(answer) for answer in measured.answers]
    explained = [answer.explanation for answer in measured.answers]
    output_tokens = sum(answer.output_tokens for answer in measured.answers)
    hits = [told["prefix_hit_rate"] for told in explained if told.get("prefix_hit_rate") is not None]
    ttft = _quantiles([each.ttft_s for each in times if each.ttft_s is not None])
    ttst = _quantiles([each.ttst_s for each in times if each.ttst_s is not None])
    return {
        "ttft_s": ttft,
        "ttst_p90_s": ttst["p90"],
        "max_itl_p90_s": _quantiles([max(each.itl_s) for each in times if each.itl_s])["p90"],
        "rld_token_share": round(sum(told.get("eager_tokens") or 0 for told in explained) / max(1, output_tokens), 4),
        "link_bytes": measured.link_bytes,
        "output_tokens": output_tokens,
        "elapsed_s": round(measured.elapsed_s, 1),
        "cpu_s": round(measured.cpu_s, 1),
        "pipelines": Counter(told.get("pipeline", "none") for told in explained),
        "handoffs": Counter(told["handoff_mode"] for told in explained if told.get("handoff_mode")),
        "stages_mean_s": _stage_means(explained),
        "resumes": sum(told.get("resumes") or 0 for told in explained),
        "prefix_hit_rate": round(sum(hits) / len(hits), 4) if hits else None,
        "hit_rate_buckets": [round(share, 3) for share in bucket_shares(hits)] if hits else None,
        "failed": sum(not answer.is_complete for answer in measured.answers),
    }


def _stage_means(explained: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean seconds of each stage over the requests that had it."""
    spent: dict[str, list[float]] = {}
    for told in explained:
        for name, start_s, end_s in told.get("stages", ()):
            spent.setdefault(name, []).append(end_s - start_s)
    return {name: round(sum(values) / len(values), 4) for name, values in sorted(spent.items())}


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("p50", "p90", "p99"))
    found = np.quantile(values, [0.5, 0.9, 0.99])
    return {name: round(float(value), 4) for name, value in zip(("p50", "p90", "p99"), found, strict=True)}


def report(seed: int, sessions: Sequence[Session], measured: Mapping[str, Measured]) -> dict[str, Any]:
    """All schemes, and how much of plain PD's TTFT is gone with PDD (ratio of the quantiles; null: no data)."""
    figures = {name: summarise(each) for name, each in measured.items()}
    plain, pdd, same_site = (figures[name]["ttft_s"] for name in ("plain", "pdd", "same_site"))
    answers = [each.answers for each in measured.values()]
    return {
        "requests": sum(len(session.turns) for session in sessions),
        **figures,
        "cut_p90": _cut(plain["p90"], pdd["p90"]),
        "cut_p99": _cut(plain["p99"], pdd["p99"]),
        "above_same_site_p90": _cut(same_site["p90"], pdd["p90"], sign=-1),
        "same_answers": sum(len({tuple(each.token_ids) for each in same}) == 1 for same in zip(*answers, strict=True)),
        "seed": seed,
        "planned_hit_rate": round(mean_hit_rate(sessions), 4),
        "policy_changes": PDD_CHANGES,
    }


def _cut(before: float | None, after: float | None, sign: int = 1) -> float | None:
    return round(sign * (1 - after / before), 4) if before and after is not None else None


async def run(engine: Engine, seed: int, requests: int) -> dict[str, Any]:
    """Measure every scheme, one after another."""
    sessions = plan_sessions(seed, requests)
    measured = {}
    for scheme in SCHEMES:
        measured[scheme.name] = await measure(scheme, engine, seed, sessions)
        told = summarise(measured[scheme.name])
        say(f"{scheme.name}: TTFT {told['ttft_s']}, TTST P90 {told['ttst_p90_s']}, {told['elapsed_s']} s")
    return report(seed, sessions, measured)


def main() -> int:
    """Print the report; 1 where a request failed, so that nobody takes the figures for whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=DEFAULT_REQUESTS, help="requests of each scheme")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", type=Engine, choices=list(Engine), default=Engine.LLAMA)
    arguments = parser.parse_args()
    tell_if_busy()
    found = asyncio.run(run(arguments.engine, arguments.seed, arguments.requests))
    print(json.dumps(found))
    return 1 if any(found[scheme.name]["failed"] for scheme in SCHEMES) else 0


if __name__ == "__main__":
    sys.exit(main())
