"""Prepares the database of a fleet that is about to start: schema, fleet, first policy, ways in."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control.domain.policy import DEMO_POLICY_DOCUMENT
from control.domain.topology import FleetSnapshot
from control.orders import Order
from control.services.access import Role
from control.services.credentials import ensure_admin, ensure_token, issue_login_key
from control.services.fleet import seed_fleet
from control.services.plane import ControlPlane
from control.services.policies import found_policy
from control.settings import Settings
from control.store.migrate import upgrade_schema
from control.store.session import open_database

LOCAL_TOKEN = "local-operator"  # noqa: S105 - a name, not a secret
_ACTOR = "pdd up"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What to show or keep: the password only on the first start, the others on every one."""

    admin_password: str | None
    operator_token: str
    login_key: str


def prepare(
    settings: Settings,
    fleet_document: Mapping[str, Any],
    operator_token: str | None = None,
    policy_document: Mapping[str, Any] = DEMO_POLICY_DOCUMENT,
) -> Bootstrap:
    """Bring the database up to date; safe to run on every start.

    Args:
        settings: names the database.
        fleet_document: the fleet that is about to run; the stored one becomes equal to it.
        operator_token: secret that programs on this machine will send; a new one is made where none is given.
        policy_document: revision 1, stored and applied where no policy is active yet.

    Raises:
        KeyError, TypeError, ValueError: one of the documents is not valid.
    """
    database = open_database(settings.database_url)
    plane = ControlPlane(database, _send_nothing)
    try:
        upgrade_schema(database)
        seed_fleet(plane, FleetSnapshot.from_document(dict(fleet_document)), _ACTOR)
        found_policy(plane, _ACTOR, policy_document, "First start")
        admin_password = ensure_admin(plane)
        token = operator_token or secrets.token_urlsafe(32)
        ensure_token(plane, LOCAL_TOKEN, Role.OPERATOR, token)
        return Bootstrap(admin_password, token, issue_login_key(plane))
    finally:
        database.engine.dispose()


def _send_nothing(order: Order) -> None:
    # The broker may not run yet; the first sweep sends what is missing.
    del order
