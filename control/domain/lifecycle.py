"""Whether a node that is held from the gateways has come to rest, and how much is still in flight. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

from control.domain.operations import Step, StepState, Verdict

# What a source counts. Requests are a gateway's; the others a node's own: generations, those in line, KV that it pulls,
# and KV that it holds for others.
IN_FLIGHT = ("requests", "running", "waiting", "pulling", "leases")


def count_in_flight(facts: Mapping[str, Any]) -> int:
    """Everything that one source says is in flight."""
    return sum(int(facts.get(name) or 0) for name in IN_FLIGHT)


def judge_rest(sources: Collection[str], seen: Mapping[str, Mapping[str, Any]]) -> tuple[Verdict, dict[str, Any]]:
    """Done once every source has been heard and counts nothing; and the countdown, for whoever watches.

    A node that does not answer any more has nothing in flight; a source that could not be asked says `error`, which
    proves nothing.
    """
    waiting_for = []
    for source in sorted(sources):
        facts = seen.get(source)
        if facts is None:
            waiting_for.append(f"{source} has not been heard")
        elif facts.get("error"):
            waiting_for.append(f"{source}: {facts['error']}")
        elif count_in_flight(facts):
            counted = ", ".join(f"{facts[name]} {name}" for name in IN_FLIGHT if facts.get(name))
            waiting_for.append(f"{source} counts {counted}")
    gateways = sum(int(facts.get("requests") or 0) for facts in seen.values())
    own = [facts for facts in seen.values() if "running" in facts]
    countdown = {
        "requests_in_flight": gateways,
        "handoffs_in_flight": sum(int(facts.get("pulling") or 0) + int(facts.get("leases") or 0) for facts in own),
        "generations_in_flight": sum(int(facts.get("running") or 0) + int(facts.get("waiting") or 0) for facts in own),
        "waiting_for": waiting_for,
    }
    return (Verdict.AGAIN if waiting_for else Verdict.DONE), countdown


def evidence_of(step: Step) -> str:
    """Why a step may not be over yet, for the error of its timeout."""
    reasons = [str(reason) for reason in step.progress.get("waiting_for", ())]
    if step.plan.site and step.state is StepState.CLAIMED:
        reasons.append(f"the agent of site {step.plan.site} has not answered")
    return "; ".join(reasons)
