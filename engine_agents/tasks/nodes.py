"""A site's part in operations on its nodes: look, tell, warm up, restart."""

from typing import Any

from control.domain.topology import Role
from control.orders import ASSIGN_NODE, OBSERVE_NODE, RESTART_NODE, WARM_NODE
from engine_agents.drivers import driver_of, node_of_document
from engine_agents.drivers.driver import Driver, DriverError, StaleOrderError, UnreachableError, UnsupportedError
from engine_agents.tasks.celery import app
from engine_agents.tasks.site_client import site_client
from engine_agents.tasks.steps import Outcome, StepHeader, look_until, report_outcome

IN_FLIGHT = ("running", "waiting", "pulling", "leases")
NOTHING_IN_FLIGHT = dict.fromkeys(IN_FLIGHT, 0)


@app.task(name=OBSERVE_NODE)  # type: ignore[untyped-decorator]
def observe_node(*, node: dict[str, Any], **header: Any) -> None:
    """Report what is in flight on a node; waits a little for it to come to rest."""
    known = node_of_document(node)
    with site_client(known.url) as client:
        driver = driver_of(known, client)
        outcome = look_until(lambda: observe(driver))
    report_outcome(StepHeader(**header), outcome)


@app.task(name=ASSIGN_NODE)  # type: ignore[untyped-decorator]
def assign_node(*, node: dict[str, Any], role: str, draining: bool, **header: Any) -> None:
    """Tell a node what it is used for."""
    known, step = node_of_document(node), StepHeader(**header)
    with site_client(known.url) as client:
        driver = driver_of(known, client)
        outcome = look_until(lambda: assign(driver, step, Role(role), draining=draining))
    report_outcome(step, outcome)


@app.task(name=WARM_NODE)  # type: ignore[untyped-decorator]
def warm_node(*, node: dict[str, Any], **header: Any) -> None:
    """Have a node answer one small request."""
    known = node_of_document(node)
    with site_client(known.url) as client:
        driver = driver_of(known, client)
        outcome = look_until(lambda: Outcome("done", {"warm_s": driver.warm(), "error": ""}))
    report_outcome(StepHeader(**header), outcome)


@app.task(name=RESTART_NODE)  # type: ignore[untyped-decorator]
def restart_node(*, node: dict[str, Any], incarnation: str | None, **header: Any) -> None:
    """End one incarnation of a node and see the next one."""
    known, step = node_of_document(node), StepHeader(**header)
    with site_client(known.url) as client:
        driver = driver_of(known, client)
        outcome = look_until(lambda: restart(driver, step, incarnation))
    report_outcome(step, outcome)


def observe(driver: Driver) -> Outcome:
    """Done when nothing is in flight; nothing is on a node that does not listen any more."""
    try:
        facts = driver.observe().to_document()
    except UnreachableError as error:
        return Outcome("done", {**NOTHING_IN_FLIGHT, "note": str(error), "error": ""})
    is_at_rest = not any(facts[name] for name in IN_FLIGHT)
    return Outcome("done" if is_at_rest else "again", {**facts, "error": ""})


def assign(driver: Driver, step: StepHeader, role: Role, *, draining: bool) -> Outcome:
    """Done when the node has been told; a late order does nothing."""
    try:
        effect = driver.assign(role, step.engine_fence, draining=draining)
    except StaleOrderError as error:
        return Outcome("failed", {}, str(error))
    return Outcome("done", {"effect": effect.value, "error": ""})


def restart(driver: Driver, step: StepHeader, incarnation: str | None) -> Outcome:
    """Done when another incarnation answers."""
    try:
        driver.restart(incarnation, step.engine_fence)
        seen = driver.observe().incarnation
    except (UnsupportedError, StaleOrderError) as error:
        return Outcome("failed", {}, str(error))
    except DriverError as error:
        return Outcome("again", {"waiting_for": [str(error)]})
    if seen == incarnation:
        return Outcome("again", {"waiting_for": ["the node has not ended yet"]})
    return Outcome("done", {"incarnation": seen, "waiting_for": []})
