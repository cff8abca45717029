"""Loads of the twin: generated sessions, sessions of traces, and what reports make of a run."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from control.domain.cost import Objective
from control.twin.paper import PARAMETERS, paper_costs, paper_load
from control.twin.reference import simulate_plainly
from control.twin.report import summarise
from control.twin.traces import hit_rates, load_agent_sessions, load_chat
from control.twin.workload import AgentShape, agent_load, drawn_again
from tests.unit.twin.scenarios import scenario

TRACES = Path(os.environ.get("PDD_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
AGENT_TRACE, CHAT_TRACE = TRACES / "cc_traces.jsonl.gz", TRACES / "conversation_trace.jsonl"


def test_generated_sessions_grow_and_are_the_same_for_the_same_seed() -> None:
    load, again, other = (agent_load(AgentShape(), 300, 2.0, seed) for seed in (7, 7, 8))
    assert np.array_equal(load.turns, again.turns)
    assert not np.array_equal(load.turns, other.turns)
    assert (np.diff(load.first_turn) >= 1).all()
    assert load.first_turn[-1] == load.turns.size
    for begin, end in zip(load.first_turn[:-1], load.first_turn[1:], strict=True):
        turns = load.turns[begin:end]
        assert (np.diff(turns["input_tokens"]) > 0).all()
        # All of the last prompt and answer comes again, and a message on top.
        assert (turns["reuse_tokens"][1:] == turns["input_tokens"][:-1] + turns["output_tokens"][:-1]).all()
    assert (load.turns["reuse_tokens"] <= load.turns["input_tokens"]).all()


def test_hit_rates_of_agents_are_high_and_skewed() -> None:
    rates = hit_rates(agent_load(AgentShape(), 3000, 2.0, 1).turns)
    assert 0.88 < rates.mean() < 0.96
    assert 0.65 < (rates > 0.95).mean() < 0.85


def test_larger_messages_lower_the_hit_rates() -> None:
    small, large = (agent_load(AgentShape(added_tokens=tokens), 500, 2.0, 1) for tokens in (300.0, 3000.0))
    assert hit_rates(large.turns).mean() < hit_rates(small.turns).mean()


def test_a_trace_becomes_turns_with_what_they_share(tmp_path) -> None:
    requests = [
        {"i": 200, "o": 10, "h": [[1, 3]], "think": 0.0},
        {"i": 300, "o": 20, "h": [[1, 3], [7, 1]], "think": 500.0},
        {"i": 310, "o": 0, "h": [[1, 2], [9, 2]], "think": None},
        {"i": 9000, "o": 5, "h": [[1, 140]], "think": 1.0},
        {"i": 150, "o": 5, "h": [[7, 2]], "think": 1.0},
    ]
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"bs": 64, "tool": 60, "sys": 40, "reqs": requests}).encode() + b"\n"))
    (turns,) = load_agent_sessions(path, max_input_tokens=1000, max_think_s=60.0)
    assert list(turns["input_tokens"]) == [200, 300, 310, 150]
    assert list(turns["reuse_tokens"]) == [100, 192, 128, 128]
    assert list(turns["shared_tokens"]) == [100, 100, 100, 100]
    assert list(turns["output_tokens"]) == [10, 20, 1, 5]
    assert list(turns["think_s"]) == [0.0, 60.0, 0.0, 1.0]


def test_sessions_drawn_again_come_at_the_wanted_rate() -> None:
    load = agent_load(AgentShape(), 50, 1.0, 1)
    sessions = [load.turns[begin:end] for begin, end in zip(load.first_turn[:-1], load.first_turn[1:], strict=True)]
    drawn = drawn_again(sessions, requests_per_s=5.0, duration_s=4000.0, seed=1)
    assert drawn.turns.size == pytest.approx(20_000, rel=0.1)
    assert drawn.starts_s[-1] <= 4000.0
    assert (np.diff(drawn.starts_s) >= 0).all()


@pytest.mark.skipif(not AGENT_TRACE.exists(), reason=f"no agent trace at {AGENT_TRACE}; PDD_TRACES names its folder")
def test_the_agent_trace_reads_as_its_description_says() -> None:
    sessions = load_agent_sessions(AGENT_TRACE, 65_536, 120.0)
    rates = hit_rates(np.concatenate(sessions))
    assert rates.size == 11_744
    assert round(rates.mean(), 3) == 0.926
    assert round(float((rates > 0.95).mean()), 3) == 0.736


@pytest.mark.skipif(not CHAT_TRACE.exists(), reason=f"no chat trace at {CHAT_TRACE}; PDD_TRACES names its folder")
def test_the_chat_trace_reads_as_its_description_says() -> None:
    load = load_chat(CHAT_TRACE)
    rates = hit_rates(load.turns)
    assert rates.size == 12_031
    assert round(rates.mean(), 2) == 0.41
    assert round(float((rates > 0.95).mean()), 3) == 0.098


def test_a_report_counts_each_request_once() -> None:
    case = scenario(13)
    report = summarise(
        simulate_plainly(case), from_s=0.0, to_s=1e9, objective=Objective(15.0, 0.05), kv_bytes_per_token=50e3
    )
    assert report.requests == case.workload.turns.size == report.served + report.shed + report.unfinished
    assert report.ttft_s is not None
    assert report.ttft_s.p50 <= report.ttft_s.p90 <= report.ttft_s.p99
    assert json.dumps(report.to_document())


def test_a_report_of_nothing_has_no_figures() -> None:
    report = summarise(
        simulate_plainly(scenario(1)), from_s=1e8, to_s=2e8, objective=Objective(1.0, 1.0), kv_bytes_per_token=1.0
    )
    assert (report.requests, report.ttft_s, report.rld_token_share) == (0, None, None)


def test_the_published_costs_follow_exactly() -> None:
    assert paper_costs() == (0.929, 0.965)


def test_every_parameter_of_the_published_case_has_a_source() -> None:
    assert all(parameter.source for parameter in PARAMETERS)
    assert len({parameter.name for parameter in PARAMETERS}) == len(PARAMETERS)


def test_the_published_load_hits_as_published() -> None:
    rates = hit_rates(paper_load(11.5, 2000.0, 1).turns)
    assert rates.mean() == pytest.approx(0.9, abs=0.01)
    assert 0.69 <= (rates > 0.95).mean() <= 0.81
