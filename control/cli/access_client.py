"""The way to administer access from the command line: with a token that is given, or one made for a moment here.

Whoever can read the data folder can change the database anyway; what the short-lived token adds is that its work goes
through the API like everybody's, and into the audit trail under the name of the system's user.
"""

import contextlib
import getpass
import os
import secrets
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from control.cli.errors import CommandError
from control.cli.fleet_client import FleetAddress, find_fleet, send_request
from control.errors import ControlError
from control.services.access import Principal, Role
from control.services.access_tokens import load_tokens, revoke_token
from control.services.credentials import ensure_token
from control.services.plane import ControlPlane
from control.settings import Settings
from control.store.session import open_database

TOKEN_VARIABLE = "PDD_TOKEN"  # noqa: S105 - a name, not a secret
LIFETIME = timedelta(minutes=5)


@contextlib.contextmanager
def administrator(data: Path) -> Iterator[FleetAddress]:
    """A fleet's control plane with a token that may administer access.

    It is the one in PDD_TOKEN; without it, one made in the database that the data folder or PDD_DATABASE_URL names,
    and revoked at the end.

    Raises:
        CommandError: no fleet runs, or the database cannot be used.
    """
    fleet = find_fleet(data)
    given = os.environ.get(TOKEN_VARIABLE, "")
    if given:
        yield replace(fleet, token=given)
        return
    settings = Settings.from_environment({**os.environ, "PDD_DATA_DIR": str(data)})
    plane = ControlPlane(open_database(settings.database_url), lambda _: None)
    name = f"local-{secrets.token_hex(4)}"
    secret = secrets.token_urlsafe(32)
    try:
        try:
            ensure_token(plane, name, Role.ADMIN, secret, created_by=f"local:{_system_user()}", lifetime=LIFETIME)
        except (ControlError, SQLAlchemyError, OSError) as error:
            raise CommandError(f"Cannot use the database {settings.database_url}: {error}") from error
        try:
            yield replace(fleet, token=secret)
        finally:
            _revoke(plane, name)
    finally:
        plane.database.engine.dispose()


def fetch_all(fleet: FleetAddress, path: str, **query: str) -> list[dict[str, Any]]:
    """Every item of a list, part by part.

    Raises:
        CommandError: the control plane cannot be asked.
    """
    items: list[dict[str, Any]] = []
    cursor = ""
    while True:
        asked = {key: value for key, value in {**query, "cursor": cursor}.items() if value}
        part = send_request(fleet, "GET", path, params=asked).json()
        items += part["items"]
        cursor = part["next_cursor"] or ""
        if not cursor:
            return items


def _revoke(plane: ControlPlane, name: str) -> None:
    principal = Principal(f"local:{_system_user()}", Role.ADMIN)
    with plane.database.reading() as session:
        own = [row.id for row in load_tokens(session, principal, plane.now(), 200) if row.name == name]
    for token_id in own:
        if token_id is not None:
            revoke_token(plane, principal, token_id)


def _system_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
