"""The demo traffic's switch."""

from fastapi import APIRouter

from control.api.dependencies import Operator, Plane, Viewer
from control.api.schemas import DemoTraffic
from control.services import demo

router = APIRouter()


@router.get("/demo-traffic", tags=["demo"])
def read_demo_traffic(plane: Plane, _: Viewer) -> DemoTraffic:
    """Whether the demo traffic should run."""
    with plane.database.reading() as session:
        return DemoTraffic(running=demo.is_demo_wanted(session))


@router.put("/demo-traffic", tags=["demo"])
def set_demo_traffic(body: DemoTraffic, plane: Plane, principal: Operator) -> DemoTraffic:
    """Start or stop the demo traffic."""
    demo.set_demo_wanted(plane, principal, running=body.running)
    return body
