"""What control and operators may ask of a gateway: its configuration and its live state."""

import logging
import math
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from control.site_secret import SiteSecret, parse_rotation
from engine_agents.gateway.config import ConfigError, RunningConfig, StaleRevisionError, parse_document
from engine_agents.gateway.errors import RefusalError, invalid
from engine_agents.gateway.gateway import Gateway
from engine_agents.gateway.stranded import list_leases, release_stranded

log = logging.getLogger(__name__)

Reply = tuple[int, dict[str, Any]]
_METHODS = {"config": "GET, PUT", "leases": "GET, DELETE", "state": "GET"}


class AdminApi:
    """Routes below /admin/v1, all of them behind the site's secret; without a secret they are switched off."""

    def __init__(self, gateway: Gateway, site_secret: SiteSecret) -> None:
        self._gateway = gateway
        self._secret = site_secret

    async def handle(self, method: str, resource: str, query: bytes, authorization: str, body: bytes) -> Reply:
        """Status and document.

        Raises:
            RefusalError: not allowed, unknown, or the configuration cannot be obeyed.
        """
        is_rotation = (method, resource) == ("PUT", "secret")
        self._check_secret(authorization, self._secret.accepts_rotation if is_rotation else self._secret.accepts)
        match method, resource:
            case "GET", "config":
                return 200, self._config()
            case "PUT", "config":
                force = _text(query, "force").lower() in {"1", "true"}
                return 200, self._apply(body, force=force)
            case "PUT", "secret":
                return 200, self._rotate(body)
            case "GET", "leases":
                return 200, await list_leases(self._gateway, _text(query, "node"))
            case "DELETE", "leases":
                older_than_s = _seconds(query, "older_than_s")
                return 200, await release_stranded(self._gateway, _text(query, "node"), older_than_s)
            case "GET", "state":
                return 200, self._gateway.state.snapshot()
            case _, known if known in _METHODS:
                raise RefusalError(
                    405, f"Use {_METHODS[known]} here.", code="method_not_allowed", allow=_METHODS[known]
                )
            case _:
                raise RefusalError(404, f"There is no {method} {resource} here.", code="not_found")

    def _check_secret(self, authorization: str, accepts: Callable[[str], bool]) -> None:
        if not self._secret.is_set:
            raise RefusalError(403, "This gateway has no site secret, so its admin API is off.", code="admin_off")
        if not accepts(authorization):
            raise RefusalError(
                401, "The site's secret is needed.", kind="authentication_error", code="invalid_site_secret"
            )

    def _config(self) -> dict[str, Any]:
        running = self._gateway.configs.running
        if running is None:
            facts = dict.fromkeys(("revision", "fleet_revision", "canary_revision", "applied_at"))
            return {"gateway": self._gateway.name, **facts}
        return self._facts(running)

    def _apply(self, body: bytes, *, force: bool) -> dict[str, Any]:
        try:
            running = self._gateway.configs.apply(parse_document(body), force=force)
        except StaleRevisionError as error:
            raise RefusalError(409, str(error), code="stale_revision") from None
        except ConfigError as error:
            raise invalid(str(error), code="invalid_config") from None
        except OSError as error:
            raise RefusalError(
                500, f"The configuration cannot be written: {error.strerror}.", kind="server_error", code="not_written"
            ) from None
        self._gateway.state.adopt(running)
        return self._facts(running)

    def _rotate(self, body: bytes) -> dict[str, Any]:
        try:
            order = parse_rotation(body)
            is_new = self._secret.rotate(order.secret, order.previous_until_s, order.rotation)
        except ValueError as error:
            raise invalid(str(error), code="invalid_secret") from None
        except OSError as error:
            raise RefusalError(
                500, f"The secret cannot be written: {error.strerror}.", kind="server_error", code="not_written"
            ) from None
        if is_new:
            log.info("the site's secret was changed by rotation %d", order.rotation)
        return {"gateway": self._gateway.name, "rotation": self._secret.rotation}

    def _facts(self, running: RunningConfig) -> dict[str, Any]:
        return {
            "gateway": self._gateway.name,
            "revision": running.revision,
            "fleet_revision": running.fleet.revision,
            "canary_revision": running.canary.revision if running.canary else None,
            "applied_at": running.applied_at_s,
        }


def _text(query: bytes, name: str) -> str:
    return parse_qs(query.decode("latin-1")).get(name, [""])[0]


def _seconds(query: bytes, name: str) -> float:
    try:
        seconds = float(_text(query, name) or 0.0)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0.0:
        raise invalid(f"`{name}` must be a number of seconds.", name)
    return seconds
