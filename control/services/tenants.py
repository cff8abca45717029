"""Who may use the gateways: tenants, and the API keys that are shown once."""

import secrets
from collections.abc import Sequence

from control.domain.policy import parse_policy
from control.domain.policy_fields import DEFAULT_CLASS, is_member_name
from control.domain.topology import Tenant
from control.errors import ConflictError, InvalidError, NotFoundError
from control.services.access import Principal, Role, hash_secret, require_role
from control.services.audit import record_event
from control.services.fleet_push import tell_gateways
from control.services.fleet_revision import raise_fleet_revision
from control.services.plane import ControlPlane
from control.services.policies import find_active_number, load_revision
from control.store.session import UnitOfWork
from control.store.tables import TenantRow

KEY_PREFIX = "pdd_"


def create_tenant(
    plane: ControlPlane,
    principal: Principal,
    name: str,
    classes: Sequence[str] = (DEFAULT_CLASS,),
    *,
    salt: bool | None = None,
) -> tuple[Tenant, str]:
    """Let a tenant in, and tell every gateway.

    Returns:
        The tenant, and its API key, which nobody can read again.

    Raises:
        ForbiddenError: the principal is no operator.
        InvalidError: the name is none, or a class is not in the active policy.
        ConflictError: there is one of that name.
    """
    require_role(principal, Role.OPERATOR)
    if not is_member_name(name):
        raise InvalidError("A name has lower-case letters, digits, `-` and `_`, and begins with a letter or digit.")
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    tenant = Tenant(name, hash_secret(key), tuple(dict.fromkeys(classes)) or (DEFAULT_CLASS,), salt)
    with plane.database.unit_of_work(plane.send) as work:
        if work.session.get(TenantRow, name) is not None:
            raise ConflictError(f"There is a tenant {name} already.")
        _check_classes(work, tenant.classes)
        at = plane.now()
        work.session.add(
            TenantRow(
                name=name,
                key_sha256=tenant.key_sha256,
                classes=list(tenant.classes),
                salt=salt,
                created_at=at,
                created_by=principal.name,
            )
        )
        record_event(work.session, at, principal.name, "tenant.create", f"tenant/{name}", after=_facts(tenant))
        raise_fleet_revision(work.session, plane.now(), principal.name)
        tell_gateways(work)
    return tenant, key


def delete_tenant(plane: ControlPlane, principal: Principal, name: str) -> None:
    """Shut a tenant out, and tell every gateway. Without any tenant a gateway serves its own machine only.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is no such tenant.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.unit_of_work(plane.send) as work:
        row = work.session.get(TenantRow, name)
        if row is None:
            raise NotFoundError(f"There is no tenant {name}.")
        before = _facts(Tenant(row.name, row.key_sha256, tuple(row.classes), row.salt))
        work.session.delete(row)
        record_event(work.session, plane.now(), principal.name, "tenant.delete", f"tenant/{name}", before=before)
        raise_fleet_revision(work.session, plane.now(), principal.name)
        tell_gateways(work)


def _check_classes(work: UnitOfWork, classes: Sequence[str]) -> None:
    number = find_active_number(work.session)
    document = load_revision(work.session, number).document if number is not None else {}
    unknown = [name for name in classes if name not in parse_policy(document).classes]
    if unknown:
        raise InvalidError(f"The active policy has no service class {', '.join(unknown)}.")


def _facts(tenant: Tenant) -> dict[str, object]:
    """What may be written down of a tenant: not even its key's hash."""
    return {"classes": list(tenant.classes), "salt": tenant.salt}
