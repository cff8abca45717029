"""Opens operations over REST and follows them to their end."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from control.cli.errors import CommandError
from control.cli.fleet_client import FleetAddress, call_api

POLL_S = 0.5
EXIT_FAILED = 2
EXIT_CANCELLED = 3
EXIT_OPEN = 4
_EXIT_CODES = {"done": 0, "failed": EXIT_FAILED, "cancelled": EXIT_CANCELLED}


def exit_code(operation: dict[str, Any]) -> int:
    """0 done, 2 failed, 3 cancelled, 4 still open."""
    return _EXIT_CODES.get(operation["state"], EXIT_OPEN)


def request(fleet: FleetAddress, body: dict[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
    """Open an operation, or with `dry_run` have it planned.

    Raises:
        CommandError: the control plane cannot be asked, or it refuses.
    """
    return call_api(fleet, "POST", f"/operations{'?dry_run=true' if dry_run else ''}", body)


def follow(
    fleet: FleetAddress,
    operation: dict[str, Any],
    say: Callable[[str], None],
    *,
    timeout_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Say each change of an operation until it is over, or the time is up; the operation as it was last.

    Raises:
        CommandError: the control plane cannot be asked.
    """
    said = ""
    give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        line = progress_line({**operation, "eta_s": None})
        if line != said:
            say(progress_line(operation))
            said = line
        if exit_code(operation) != EXIT_OPEN or (give_up_s is not None and time.monotonic() > give_up_s):
            return operation
        sleep(POLL_S)
        operation = call_api(fleet, "GET", f"/operations/{operation['id']}")


def progress_line(operation: dict[str, Any]) -> str:
    """Where an operation is, in one line."""
    head = f"operation {operation['id']} {operation['kind']} {operation['target']}: {operation['state']}"
    steps = operation["steps"]
    current = next((step for step in steps if step["state"] in {"pending", "claimed", "running"}), None)
    if current is None or exit_code(operation) != EXIT_OPEN:
        return f"{head}: {operation['error']}" if operation["error"] else head
    settled = sum(step["state"] not in {"pending", "claimed", "running"} for step in steps)
    parts = [f"step {settled + 1} of {len(steps)}", " ".join(filter(None, (current["stage"], current["subject"])))]
    progress = current["progress"]
    if "requests_in_flight" in progress:
        counts = (("requests", "requests_in_flight"), ("handoffs", "handoffs_in_flight"))
        parts.append(", ".join(f"{progress[name]} {noun} in flight" for noun, name in counts))
    if progress.get("waiting_for"):
        parts.append("waiting: " + "; ".join(progress["waiting_for"]))
    if operation["eta_s"] is not None:
        parts.append(f"about {operation['eta_s']:.0f} s left")
    return f"{head}, {', '.join(parts)}"


def render_plan(preview: dict[str, Any]) -> str:
    """What a dry run would do, in lines."""
    lines = [f"{preview['kind']} of {preview['target']} would take {len(preview['steps'])} steps:"]
    result = preview.get("result") or {}
    lines += [f"  {move['node']}: {move['from']} → {move['to']}" for move in result.get("moves", ())]
    if "before" in result:
        before, after = (":".join(str(result[name][role]) for role in _ROLES) for name in ("before", "after"))
        lines.append(f"  P:RLD:MD {before} → {after}")
    lines += [
        f"  {change['path']}: {json.dumps(change['before'])} → {json.dumps(change['after'])}"
        for change in result.get("changes", ())
    ]
    lines += [f"  {i}. {' '.join(filter(None, (s['stage'], s['subject'])))}" for i, s in enumerate(preview["steps"], 1)]
    return "\n".join(lines)


_ROLES = ("prefill", "relay", "main")


def render_operation(operation: dict[str, Any]) -> str:
    """An operation with its steps, in lines."""
    lines = [progress_line(operation), f"  asked for by {operation['actor']}: {operation['reason']}"]
    if operation["result"]:
        lines.append(f"  result: {json.dumps(operation['result'])}")
    for step in operation["steps"]:
        name = " ".join(filter(None, ("undo:" if step["undoes"] else "", step["stage"], step["subject"])))
        seconds = _duration(step)
        attempts = f", attempt {step['attempt']}" if step["attempt"] > 1 else ""
        lines.append(
            f"  {step['state']:<10} {name}{seconds}{attempts}" + (f": {step['error']}" if step["error"] else "")
        )
    return "\n".join(lines)


def _duration(step: dict[str, Any]) -> str:
    if step["started_at_s"] is None or step["finished_at_s"] is None:
        return ""
    return f" ({step['finished_at_s'] - step['started_at_s']:.1f} s)"


def tell(line: str) -> None:
    """Progress goes to stderr, so that stdout holds the result alone."""
    print(line, file=sys.stderr, flush=True)


def parse_number(value: str) -> float | None:
    """A number, or `none` for lifting a cap.

    Raises:
        CommandError: neither.
    """
    if value.lower() == "none":
        return None
    try:
        return float(value)
    except ValueError:
        raise CommandError(f"{value} is neither a number nor none") from None
