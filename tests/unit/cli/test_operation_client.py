"""What the command line says of operations, and how it follows them."""

import json

import httpx
import pytest
from typer.testing import CliRunner

from control.cli import fleet_client, operation_client
from control.cli.errors import CommandError
from control.cli.fleet_client import FleetAddress
from control.cli.main import app, main
from control.cli.operation_client import follow, parse_number, progress_line, render_operation, render_plan

FLEET = FleetAddress("http://control", "http://gateway", "secret")


def step(stage, state, subject="n1", **fields):
    known = {"undoes": False, "attempt": 1, "error": "", "progress": {}, "started_at_s": None, "finished_at_s": None}
    return {"stage": stage, "subject": subject, "state": state, **known, **fields}


def operation(state, *steps, **fields):
    known = {"id": 7, "kind": "drain", "target": "node/n1", "error": "", "eta_s": 12.4, "result": None}
    return {**known, "actor": "olga", "reason": "why", "state": state, "steps": list(steps), **fields}


def test_a_line_counts_down_what_is_in_flight():
    progress = {"requests_in_flight": 3, "handoffs_in_flight": 1, "waiting_for": ["gw counts 3 requests"]}
    running = operation("running", step("hold", "done"), step("empty", "running", progress=progress))
    assert progress_line(running) == (
        "operation 7 drain node/n1: running, step 2 of 2, empty n1, 3 requests in flight, 1 handoffs in flight, "
        "waiting: gw counts 3 requests, about 12 s left"
    )
    assert progress_line(operation("done", step("hold", "done"), eta_s=None)) == "operation 7 drain node/n1: done"
    assert progress_line(operation("failed", error="it broke")).endswith("failed: it broke")


def test_an_operation_is_shown_with_its_steps():
    lines = render_operation(
        operation(
            "failed",
            step("warm", "failed", started_at_s=1.0, finished_at_s=3.5, attempt=2, error="no"),
            step("restore", "done", undoes=True),
            error="no",
        )
    ).splitlines()
    assert lines[2].split() == ["failed", "warm", "n1", "(2.5", "s),", "attempt", "2:", "no"]
    assert lines[3].split() == ["done", "undo:", "restore", "n1"]


def test_a_plan_is_shown_before_anything_is_done():
    result = {
        "before": {"prefill": 3, "relay": 1, "main": 0},
        "after": {"prefill": 2, "relay": 2, "main": 0},
        "moves": [{"node": "p3", "from": "prefill", "to": "relay"}],
    }
    shown = render_plan(
        {"kind": "rebalance", "target": "site/ams", "steps": [step("hold", "pending")], "result": result}
    )
    assert "p3: prefill → relay" in shown
    assert "P:RLD:MD 3:1:0 → 2:2:0" in shown
    assert "1. hold n1" in shown


def test_following_says_each_change_once_and_ends_with_the_operation(monkeypatch):
    answers = [operation("running", step("hold", "running")), operation("running", step("hold", "running"))]
    answers.append(operation("cancelled", step("hold", "cancelled"), eta_s=None))
    monkeypatch.setattr(operation_client, "call_api", lambda *_: answers.pop(0))
    said = []
    last = follow(FLEET, operation("running", step("hold", "running")), said.append, sleep=lambda _: None)
    assert last["state"] == "cancelled"
    assert len(said) == 2


def test_a_cap_is_a_number_or_none():
    assert (parse_number("none"), parse_number("2.5e6")) == (None, 2.5e6)
    with pytest.raises(CommandError, match="neither a number nor none"):
        parse_number("fast")


@pytest.fixture
def api(monkeypatch):
    """An API that answers every call with what the test says; gives the calls."""
    calls, answers = [], []

    def request(method, url, *, json=None, **_):
        calls.append((method, url.removeprefix("http://control/api/v1"), json))
        return httpx.Response(200, json=answers.pop(0) if len(answers) > 1 else answers[0])

    monkeypatch.setattr(fleet_client, "find_fleet", lambda *_: FLEET)
    monkeypatch.setattr(fleet_client.httpx, "request", request)
    monkeypatch.setattr(operation_client, "POLL_S", 0.0)
    return calls, answers


def run(*arguments):
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["node", "drain", "n1", "--force"], {"kind": "drain", "node": "n1", "timeout_s": 300.0, "force": True}),
        (["node", "undrain", "n1"], {"kind": "undrain", "node": "n1"}),
        (
            ["node", "switch", "n1", "relay", "--timeout", "9"],
            {"kind": "switch_role", "node": "n1", "role": "relay", "timeout_s": 9.0, "force": False},
        ),
        (["node", "restart", "n1"], {"kind": "restart", "node": "n1", "timeout_s": 300.0, "force": False}),
        (
            ["link", "shape", "l", "--rate-cap", "1e6", "--flow-cap", "none", "--streams", "2"],
            {
                "kind": "shape_link",
                "link": "l",
                "shape": {"rate_cap_bytes_per_s": 1e6, "flow_cap_bytes_per_s": None, "streams_per_transfer": 2},
            },
        ),
    ],
)
def test_each_command_asks_for_its_operation(api, arguments, body):
    calls, answers = api
    answers.append(operation("pending", step("hold", "pending")))
    result = run(*arguments, "--reason", "because", "--json")
    assert result.exit_code == 0, result.output
    assert calls == [("POST", "/operations", {**body, "reason": "because"})]
    assert json.loads(result.stdout)["id"] == 7


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 2), ("cancelled", 3)])
def test_waiting_ends_with_a_code_for_the_outcome(api, state, code):
    _, answers = api
    answers += [operation("running", step("hold", "running")), operation(state, step("hold", state), eta_s=None)]
    result = run("node", "drain", "n1", "--wait", "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout.splitlines()[-1])["state"] == state


def test_the_outcome_is_the_exit_code_of_the_program_and_a_misuse_is_explained(api, monkeypatch, capsys):
    _, answers = api
    answers.append(operation("failed", step("hold", "failed"), eta_s=None))
    monkeypatch.setattr("sys.argv", ["pdd", "operation", "watch", "7"])
    assert main() == 2
    monkeypatch.setattr("sys.argv", ["pdd", "operation", "show", "7"])
    assert main() == 0
    monkeypatch.setattr("sys.argv", ["pdd", "node", "drain"])
    assert main() == 2
    assert "NODE" in capsys.readouterr().err.upper()


def test_operations_are_watched_cancelled_and_retried_by_number(api):
    calls, answers = api
    answers.append(operation("failed", step("hold", "failed"), eta_s=None))
    assert run("operation", "watch", "7").exit_code == 2
    assert run("operation", "cancel", "7", "--reason", "no").exit_code == 0
    assert run("operation", "retry", "7").exit_code == 0
    assert run("operation", "show", "7").exit_code == 0
    assert [(method, path) for method, path, _ in calls] == [
        ("GET", "/operations/7"),
        ("POST", "/operations/7/cancel"),
        ("POST", "/operations/7/retry"),
        ("GET", "/operations/7"),
    ]


def test_a_dry_run_is_a_query_and_prints_the_plan(api):
    calls, answers = api
    answers.append({"kind": "drain", "target": "node/n1", "steps": [step("hold", "pending")], "result": None})
    result = run("node", "drain", "n1", "--dry-run")
    assert "would take 1 steps" in result.stdout
    assert calls[0][1] == "/operations?dry_run=true"


def test_a_rebalance_shows_its_plan_before_it_begins(api):
    calls, answers = api
    moves = {"moves": [{"node": "p3", "from": "prefill", "to": "relay"}]}
    answers.append({"kind": "rebalance", "target": "site/ams", "steps": [step("hold", "pending")], "result": moves})
    answers.append(operation("pending", step("hold", "pending")))
    result = run("rebalance", "ams", "2:2:0", "--reason", "because", "--json")
    assert (result.exit_code, json.loads(result.stdout)["id"]) == (0, 7)
    assert "p3: prefill → relay" in result.stderr
    body = {"kind": "rebalance", "site": "ams", "target": "2:2:0"}
    assert calls == [
        ("POST", "/operations?dry_run=true", {**body, "reason": "to show the plan"}),
        ("POST", "/operations", {**body, "reason": "because"}),
    ]


def test_the_list_is_filtered_by_the_server(api):
    calls, answers = api
    answers.append({"items": [operation("done", eta_s=None)], "next_cursor": None})
    assert "operation 7" in run("operation", "list", "--state", "done", "--kind", "drain").stdout
    assert calls[0][1] == "/operations?limit=20&state=done&kind=drain"
