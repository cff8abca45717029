"""Whether the demo traffic should run."""

from sqlmodel import Session

from control.services.access import Principal, Role, require_role
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.store.tables import SettingRow

_SETTING = "demo_traffic"


def is_demo_wanted(session: Session) -> bool:
    """True until somebody stops it."""
    row = session.get(SettingRow, _SETTING)
    return row is None or bool(row.value["running"])


def set_demo_wanted(plane: ControlPlane, principal: Principal, *, running: bool) -> None:
    """Start or stop the demo traffic; the generator follows within seconds.

    Raises:
        ForbiddenError: the principal is no operator.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.unit_of_work(plane.send) as work:
        before = is_demo_wanted(work.session)
        if before == running:
            return
        at = plane.now()
        row = SettingRow(key=_SETTING, value={"running": running}, updated_at=at, updated_by=principal.name)
        work.session.merge(row)
        record_event(
            work.session,
            at,
            principal.name,
            "demo_traffic.set",
            "demo-traffic",
            before={"running": before},
            after={"running": running},
        )
