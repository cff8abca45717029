"""A site's part in draining a node: what its gateway has in flight there."""

from typing import Any

import httpx

from control.orders import OBSERVE_GATEWAY
from engine_agents.tasks.celery import app
from engine_agents.tasks.site_client import site_client
from engine_agents.tasks.steps import Outcome, StepHeader, look_until, report_outcome


@app.task(name=OBSERVE_GATEWAY)  # type: ignore[untyped-decorator]
def observe_gateway(*, gateway: dict[str, str], node: str, **header: Any) -> None:
    """Report how many requests of a gateway are, or will be, on a node; waits a little for them to end."""
    with site_client(gateway["url"]) as client:
        outcome = look_until(lambda: observe(client, node))
    report_outcome(StepHeader(**header), outcome)


def observe(client: httpx.Client, node: str) -> Outcome:
    """Done when the gateway has nothing on the node, also when it is gone and its requests with it."""
    try:
        state = client.get("/admin/v1/state").raise_for_status().json()
        requests = int(state["nodes"].get(node, 0))
    except httpx.ConnectError:
        return Outcome("done", {"requests": 0, "note": "the gateway does not listen", "error": ""})
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Outcome("again", {"error": f"{type(error).__name__}: {error}"[:200]})
    return Outcome("again" if requests else "done", {"requests": requests, "error": ""})
