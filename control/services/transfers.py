"""Transfers on a link: what is under way, and orders to pause one, let it go on, or cut it."""

from dataclasses import dataclass

from sqlmodel import Session

from control.domain.topology import Link
from control.domain.transfers import SeenTransfer, SeenTransfers, TransferAction, find_transfer, why_not_known
from control.errors import ConflictError, NotFoundError
from control.orders import CHANGE_TRANSFER, Order, site_queue
from control.services.access import Principal, Role, require_role
from control.services.audit import record_event
from control.services.fleet import find, load_links
from control.services.plane import ControlPlane


@dataclass(frozen=True, slots=True)
class TransferChange:
    """What an operator wants of which transfer, and why."""

    link: str
    transfer_id: str
    action: TransferAction
    reason: str


def load_transfers(plane: ControlPlane, link: str) -> SeenTransfers:
    """What is under way on a link.

    Raises:
        NotFoundError: there is no such link.
        ConflictError: nobody knows, as no WAN relay shapes it or none was heard of lately.
    """
    with plane.database.reading() as session:
        _find_shaped(session, link)
    return _checked(link, plane.transfers(link))


def order_change(plane: ControlPlane, principal: Principal, change: TransferChange) -> SeenTransfer:
    """Have the agent of the link's source site tell the relay; returns the transfer as it was.

    The relay's answer is seen in the next sample. Doing it twice has the effect of once.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is no such link, or no such transfer on it now.
        ConflictError: nobody knows what is under way there.
    """
    require_role(principal, Role.OPERATOR)
    seen = plane.transfers(change.link)
    with plane.database.unit_of_work(plane.send) as work:
        link = _find_shaped(work.session, change.link)
        known = _checked(change.link, seen)
        transfer = find_transfer(known.transfers, change.transfer_id)
        if transfer is None:
            raise NotFoundError(f"There is no transfer {change.transfer_id} on {change.link} now.")
        record_event(
            work.session,
            plane.now(),
            principal.name,
            f"transfer.{change.action}",
            f"link/{change.link}/transfer/{change.transfer_id}",
            before={"state": transfer.state},
            after={"ordered": change.action.value},
            reason=change.reason,
        )
        arguments = {
            "link": link.name,
            "admin_url": link.admin_url,
            "transfer_id": change.transfer_id,
            "action": change.action.value,
        }
        work.enqueue(Order(CHANGE_TRANSFER, site_queue(link.source), arguments))
    return transfer


def _find_shaped(session: Session, name: str) -> Link:
    link = find(load_links(session), "link", name)
    if not link.admin_url:
        raise ConflictError(f"No WAN relay shapes {name}: nothing is known of its transfers.")
    return link


def _checked(link: str, seen: SeenTransfers | None) -> SeenTransfers:
    reason = why_not_known(link, seen)
    if seen is None or reason:
        raise ConflictError(f"{reason}.")
    return seen
