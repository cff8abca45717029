"""Follows roll-outs and puts them into words."""

import time
from collections.abc import Callable
from typing import Any

from control.cli.fleet_client import FleetAddress, call_api
from control.cli.operation_client import EXIT_CANCELLED, EXIT_OPEN

POLL_S = 1.0
_EXIT_CODES = {"done": 0, "aborted": EXIT_CANCELLED}


def exit_code(rollout: dict[str, Any]) -> int:
    """0 done, 3 aborted, 4 still open."""
    return _EXIT_CODES.get(rollout["phase"], EXIT_OPEN)


def follow(
    fleet: FleetAddress,
    rollout: dict[str, Any],
    say: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Say each change of a roll-out until it is over; the roll-out as it was then.

    Raises:
        CommandError: the control plane cannot be asked.
    """
    said = ""
    while True:
        # How many requests there are is news every time; who waits for what is not.
        news = f"{rollout['phase']} {rollout['progress']:.1f} {len(rollout['waiting_for'])}"
        if news != said:
            say(progress_line(rollout))
            said = news
        if exit_code(rollout) != EXIT_OPEN:
            return rollout
        sleep(POLL_S)
        rollout = call_api(fleet, "GET", f"/rollouts/{rollout['id']}")


def progress_line(rollout: dict[str, Any]) -> str:
    """Where a roll-out is, in one line."""
    head = f"roll-out {rollout['id']} of r{rollout['revision']} ({_canary(rollout['canary'])}): {rollout['phase']}"
    parts = [head]
    if rollout["phase"] == "baking":
        parts.append(f"{rollout['baked_s']:.0f} of {rollout['bake_s']:.0f} s within bounds")
    if rollout["waiting_for"]:
        parts.append("waiting: " + "; ".join(rollout["waiting_for"]))
    line = ", ".join(parts)
    return f"{line}: {rollout['ending']}" if rollout["ending"] else line


def render_rollout(rollout: dict[str, Any]) -> str:
    """A roll-out with its signals, in lines."""
    sizes = rollout["requests"]
    lines = [
        progress_line(rollout),
        f"  asked for by {rollout['actor']}: {rollout['reason']}",
        f"  requests: {sizes['canary']} canary, {sizes['control']} control, {sizes['before']} before",
    ]
    if rollout["reverted_to"] is not None:
        lines.append(f"  taken back as r{rollout['reverted_to']}")
    if rollout["signals"]:
        lines.append(f"  {'signal':<14}{'before':>10}{'control':>10}{'canary':>10}{'bound':>10}  verdict")
    for signal in rollout["signals"]:
        figures = "".join(f"{_number(signal[name]):>10}" for name in ("before", "control", "canary", "bound"))
        lines.append(f"  {signal['signal']:<14}{figures}  {signal['verdict']} {signal['unit']}")
    return "\n".join(lines)


def render_plan(plan: dict[str, Any]) -> str:
    """What a dry run would do, in lines."""
    lines = [f"r{plan['revision']} would be tried by {_canary(plan['canary'])} instead of r{plan['base_revision']}:"]
    lines += [f"  {change['path']}: {change['before']} → {change['after']}" for change in plan["tried"]]
    if plan["held_back"]:
        lines.append("only once it goes to all, as nobody can do it for some requests:")
        lines += [f"  {change['path']}: {change['before']} → {change['after']}" for change in plan["held_back"]]
    lines.append(f"it would be compared with {plan['requests_before']} requests of the time before")
    lines += [f"it would wait: {words}" for words in plan["waiting_for"]]
    return "\n".join(lines)


def _canary(canary: dict[str, Any]) -> str:
    return f"site {canary['site']}" if canary["site"] else f"{canary['share']:.1%} of the requests"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
