"""Who asks, and as what: a tenant by its API key, or anybody on this machine where no tenant is configured."""

import hashlib
import ipaddress
from dataclasses import dataclass
from functools import lru_cache

from control.domain.policy_fields import DEFAULT_CLASS
from engine_agents.gateway.config import RunningConfig
from engine_agents.gateway.errors import RefusalError, invalid

_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `tenant` is empty where none is configured; `is_salted`: its cached prefixes are its own."""

    tenant: str = ""
    service_class: str = DEFAULT_CLASS
    is_salted: bool = False


ANYBODY = Caller()


def identify(config: RunningConfig | None, authorization: str, peer: str, wanted_class: str) -> Caller:
    """The caller of a request under /v1; without a configuration there is nothing yet to let anybody into.

    Args:
        config: what the gateway runs on.
        authorization: the header of that name; it is not kept.
        peer: the client's address.
        wanted_class: the service class that it asks for; empty for its usual one.

    Raises:
        RefusalError: 401, it is nobody known; 403, the class is not for it; 400, there is no such class.
    """
    if config is None:
        return ANYBODY
    if not config.tenants_by_key:
        if not _is_this_machine(peer):
            raise _unauthenticated("This gateway has no tenants, so it serves its own machine only.", "no_tenants")
        if wanted_class and wanted_class not in config.policy.classes:
            raise invalid(f"There is no service class `{wanted_class}`.", code="unknown_service_class")
        return Caller(service_class=wanted_class or DEFAULT_CLASS)
    if not authorization.lower().startswith(_SCHEME):
        raise _unauthenticated("An API key is needed: Authorization: Bearer …", "missing_api_key")
    # The keys are random, so looking one up by its hash tells nothing about the others.
    tenant = config.tenants_by_key.get(key_hash(authorization[len(_SCHEME) :].strip()))
    if tenant is None:
        raise _unauthenticated("The API key is not valid.", "invalid_api_key")
    if wanted_class and wanted_class not in tenant.classes:
        raise RefusalError(
            403,
            f"The service class `{wanted_class}` is not open to this tenant.",
            kind="permission_error",
            code="service_class_not_allowed",
        )
    is_salted = config.policy.cache.tenant_salt if tenant.salt is None else tenant.salt
    return Caller(tenant.name, wanted_class or tenant.classes[0], is_salted)


def key_hash(key: str) -> str:
    """What is kept of an API key: its SHA-256 in hex. Keys are random, so no slower hash is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


def _unauthenticated(message: str, code: str) -> RefusalError:
    return RefusalError(401, message, kind="authentication_error", code=code)


@lru_cache(maxsize=256)
def _is_this_machine(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False
