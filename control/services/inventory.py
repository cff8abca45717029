"""Changes of the inventory: each is a plan that is checked, stored, written down and told to the gateways."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlmodel import Session

from control.domain.access import Scope
from control.domain.fleet_plan import Action, FleetPlan, ItemChange, plan_fleet
from control.domain.inventory import Inventory, Item, ItemRef, Kind, Wish, item_facts
from control.domain.inventory_checks import new_problems
from control.domain.policy import FieldProblem
from control.domain.versions import version_of
from control.errors import ConflictError, ForbiddenError, InUseError, InvalidError, NotFoundError
from control.services.access import Principal, Role, require_role
from control.services.audit import record_event
from control.services.fleet import load_links
from control.services.fleet_push import send_fleet
from control.services.fleet_revision import raise_fleet_revision
from control.services.inventory_rows import load_inventory, save_plan
from control.services.inventory_users import operations_on, outside_users
from control.services.link_rollout import shape_orders
from control.services.plane import ControlPlane
from control.services.policies import find_active_number, load_revision
from control.services.versions import check_version
from control.store.session import UnitOfWork

_MOVES = frozenset({"site", "role", "url", "state"})
_VERBS = {Action.ADDED: "create", Action.CHANGED: "change", Action.REMOVED: "delete"}

Decide = Callable[[Inventory], Inventory]


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms a change is asked for: why, against which version, and whether it is only to be shown."""

    reason: str
    expected: Collection[str] | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change does, or with a dry run would do, and the inventory before and after it."""

    plan: FleetPlan
    before: Inventory
    after: Inventory


@dataclass(frozen=True, slots=True)
class FleetWish:
    """A fleet document: the kinds that it names are as it says, the others stay as they are."""

    sections: Mapping[Kind, Sequence[Wish]]
    model: str | None = None

    def settled(self, current: Inventory) -> Inventory:
        """The inventory that it leads to.

        Raises:
            InvalidError: it names an item twice.
        """
        wanted = current
        for kind, wishes in self.sections.items():
            _check_doubles(kind, wishes)
            empty = replace(wanted, **_section(kind))
            known = current.by_name(kind)
            wanted = empty.with_items(kind, [wish.settled(known.get(wish.item.name)) for wish in wishes])
        return wanted if self.model is None else replace(wanted, model=self.model)


def item_version(item: Item) -> str:
    """Version of an item."""
    return version_of(item_facts(item))


def inventory_version(inventory: Inventory) -> str:
    """Version of a whole inventory."""
    items = {kind.value: [item_facts(item) for item in inventory.items(kind)] for kind in Kind}
    return version_of({**items, "model": inventory.model})


def create_item(plane: ControlPlane, principal: Principal, wish: Wish, terms: Terms) -> Changed:
    """Add one item.

    Raises:
        ForbiddenError: the principal is no operator, or no administrator and it sets a site's networks.
        ConflictError: there is one of that name.
        InvalidError: it does not fit the others; each problem is named.
    """

    def decide(current: Inventory) -> Inventory:
        if current.find(wish.ref) is not None:
            raise ConflictError(f"There is a {wish.ref} already.")
        return current.with_item(wish.ref.kind, wish.item)

    return _change(plane, principal, decide, terms, wish.item)


def replace_item(plane: ControlPlane, principal: Principal, wish: Wish, terms: Terms) -> Changed:
    """Change one item to what is wished for.

    Raises:
        ForbiddenError: the principal is no operator, or no administrator and it sets a site's networks.
        NotFoundError: there is none of that name.
        PreconditionRequiredError, StaleRevisionError: it does not say against which version, or against another one.
        InvalidError: it does not fit the others; each problem is named.
    """

    def decide(current: Inventory) -> Inventory:
        item = _found(current, wish.ref, terms)
        return current.with_item(wish.ref.kind, wish.settled(item))

    return _change(plane, principal, decide, terms, wish.item)


def delete_item(plane: ControlPlane, principal: Principal, ref: ItemRef, terms: Terms) -> Changed:
    """Remove one item that nothing needs.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is none of that name.
        PreconditionRequiredError, StaleRevisionError: it does not say against which version, or against another one.
        InUseError: others need it; each is named.
    """

    def decide(current: Inventory) -> Inventory:
        _found(current, ref, terms)
        return current.without(ref)

    return _change(plane, principal, decide, terms)


def apply_fleet(plane: ControlPlane, principal: Principal, wish: FleetWish, terms: Terms) -> Changed:
    """Bring the inventory to a document.

    Raises:
        ForbiddenError: the principal is no operator, or no administrator and it sets a site's networks.
        PreconditionRequiredError, StaleRevisionError: it does not say against which version, or against another one.
        InvalidError: it does not fit together; each problem is named.
        InUseError: it removes what others need.
    """

    def decide(current: Inventory) -> Inventory:
        _check_terms(inventory_version(current), terms)
        return wish.settled(current)

    return _change(plane, principal, decide, terms)


def import_items(
    plane: ControlPlane, principal: Principal, kind: Kind, wishes: Sequence[Wish], terms: Terms
) -> Changed:
    """Add and change items of one kind, and remove none.

    Raises:
        ForbiddenError: the principal is no operator.
        StaleRevisionError: it was made against another version.
        InvalidError: they do not fit together, or one is named twice; each problem is named.
    """

    def decide(current: Inventory) -> Inventory:
        if terms.expected is not None:
            _check_terms(inventory_version(current), terms)
        _check_doubles(kind, wishes)
        return current.with_wishes(kind, wishes)

    return _change(plane, principal, decide, terms)


def _change(
    plane: ControlPlane, principal: Principal, decide: Decide, terms: Terms, around: Item | None = None
) -> Changed:
    require_role(principal, Role.OPERATOR)
    if not terms.reason.strip():
        raise InvalidError("Say why: a change needs a reason.")
    if terms.dry_run:
        with plane.database.reading() as session:
            return _decided(session, principal, load_inventory(session, around), decide)
    with plane.database.unit_of_work(plane.send) as work:
        at = plane.now()
        # Its row is locked from here on, so that what has been read stays true until the commit.
        raise_fleet_revision(work.session, at, principal.name)
        before = load_inventory(work.session, around)
        changed = _decided(work.session, principal, before, decide)
        if changed.plan.is_empty:
            work.session.rollback()
            return changed
        save_plan(work.session, changed.plan, changed.after, at, principal.name)
        action, target, old, new = _told(changed.plan, before, changed.after)
        record_event(work.session, at, principal.name, action, target, before=old, after=new, reason=terms.reason)
        _tell(work, changed.plan)
    return changed


def _decided(session: Session, principal: Principal, before: Inventory, decide: Decide) -> Changed:
    after = decide(before)
    plan = plan_fleet(before, after)
    _check_networks(principal, plan)
    for change in plan.of(Action.REMOVED):
        _check_users(change.ref, after, outside_users(session, change.ref))
    _check_operations(session, plan)
    problems = new_problems(before, after)
    if problems:
        raise InvalidError("It does not fit the rest of the fleet.", problems)
    return Changed(plan, before, after)


def _check_operations(session: Session, plan: FleetPlan) -> None:
    """An operation moves its nodes by itself, and puts them back if it fails: nobody may do so under its hands."""
    moved = [
        change.ref for change in plan.of(Action.CHANGED, Kind.NODE) if _MOVES & {one.path for one in change.changes}
    ]
    users = operations_on(session, moved)
    if users:
        raise InUseError(users[0].message, users)


def _check_networks(principal: Principal, plan: FleetPlan) -> None:
    """Whoever may widen a site's networks may have its secret sent to an address of their own."""
    sites = [
        change.ref.name
        for change in (*plan.of(Action.ADDED, Kind.SITE), *plan.of(Action.CHANGED, Kind.SITE))
        if any(field.path == "networks" and (field.before or field.after) for field in change.changes)
    ]
    if sites and Scope.ACCESS_ADMIN not in principal.granted:
        raise ForbiddenError(
            "Only an administrator (role admin, scope access:admin) may set or change a site's networks, "
            f"as addresses in them get the site's secret: {', '.join(sites)}."
        )


def _check_users(ref: ItemRef, after: Inventory, outside: Sequence[FieldProblem]) -> None:
    users = after.users_of(ref)
    named = [str(user) for user in users]
    problems = [FieldProblem(f"{user.kind}.{user.name}", f"Needs the {ref}.") for user in users]
    if ref == ItemRef(Kind.MODEL, after.model):
        named.insert(0, "the fleet, whose first model it is")
        problems.insert(0, FieldProblem("model", "It is the fleet's first model."))
    named += [user.message.rstrip(".") for user in outside]
    problems += outside
    if problems:
        more = f" and {len(named) - 5} more" if len(named) > 5 else ""
        raise InUseError(f"The {ref} is in use: {', '.join(named[:5])}{more}.", problems)


def _found(current: Inventory, ref: ItemRef, terms: Terms) -> Item:
    item = current.find(ref)
    if item is None:
        raise NotFoundError(f"There is no {ref}.")
    _check_terms(item_version(item), terms)
    return item


def _check_terms(version: str, terms: Terms) -> None:
    if not (terms.dry_run and terms.expected is None):
        check_version(version, terms.expected)


def _check_doubles(kind: Kind, wishes: Sequence[Wish]) -> None:
    names = Counter(wish.item.name for wish in wishes)
    doubles = [
        FieldProblem(f"{kind}.{name}", f"Stands there {count} times.") for name, count in names.items() if count > 1
    ]
    if doubles:
        raise InvalidError("Each item has one place.", doubles)


def _section(kind: Kind) -> dict[str, Any]:
    return {kind.value: ()}


def _told(plan: FleetPlan, before: Inventory, after: Inventory) -> tuple[str, str, Any, Any]:
    """What the audit keeps of a plan: one item as a whole, several by the fields that differ."""
    if len(plan.items) == 1 and not plan.facts:
        [change] = plan.items
        old, new = before.find(change.ref), after.find(change.ref)
        action = f"{change.ref.kind.singular}.{_VERBS[change.action]}"
        target = f"{change.ref.kind.singular}/{change.ref.name}"
        return action, target, old and item_facts(old), new and item_facts(new)
    return "fleet.apply", "fleet", _side(plan, "before"), _side(plan, "after")


def _side(plan: FleetPlan, side: str) -> dict[str, Any]:
    facts: dict[str, Any] = {fact.path: getattr(fact, side) for fact in plan.facts}
    gone = Action.ADDED if side == "before" else Action.REMOVED
    for change in plan.items:
        key = f"{change.ref.kind.singular}/{change.ref.name}"
        facts[key] = None if change.action is gone else _fields(change, side)
    return facts


def _fields(change: ItemChange, side: str) -> dict[str, Any]:
    return {field.path: getattr(field, side) for field in change.changes}


def _tell(work: UnitOfWork, plan: FleetPlan) -> None:
    """Send what changed to gateways, observers and relays; what gets lost comes again with a later sweep."""
    send_fleet(work)
    touched = {change.ref.name for change in plan.items if change.ref.kind is Kind.LINK}
    number = find_active_number(work.session)
    if number is None or not touched:
        return
    links = [link for link in load_links(work.session) if link.name in touched]
    for order in shape_orders(links, number, load_revision(work.session, number).document):
        work.enqueue(order)
