"""Who may do what: roles of people, scopes of programs, and which scope a request needs."""

import re
from collections.abc import Iterable
from enum import StrEnum

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_USERNAME = re.compile(r"[a-z0-9][a-z0-9._@-]{0,62}")
_TOKEN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
# Names that the audit trail or an address already uses for something else.
_RESERVED = frozenset({"me", "system", "anonymous"})


class Role(StrEnum):
    """What somebody may do; each role includes the ones before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class Scope(StrEnum):
    """One kind of request; a role is a set of them, and a token may have fewer."""

    READ = "read"
    POLICIES_WRITE = "policies:write"
    FLEET_WRITE = "fleet:write"
    OPERATIONS_WRITE = "operations:write"
    ALERTS_WRITE = "alerts:write"
    ANNOTATIONS_WRITE = "annotations:write"
    ACCESS_ADMIN = "access:admin"


ROLE_SCOPES: dict[Role, frozenset[Scope]] = {
    Role.VIEWER: frozenset({Scope.READ}),
    Role.OPERATOR: frozenset(set(Scope) - {Scope.ACCESS_ADMIN}),
    Role.ADMIN: frozenset(Scope),
}
# The first prefix that fits a path says what writing there needs; reading needs `read` everywhere.
_WRITE_SCOPES = (
    ("/api/v1/policies", Scope.POLICIES_WRITE),
    ("/api/v1/rollouts", Scope.POLICIES_WRITE),
    ("/live/knob", Scope.POLICIES_WRITE),
    ("/policies", Scope.POLICIES_WRITE),
    ("/operations", Scope.OPERATIONS_WRITE),
    ("/api/v1/operations", Scope.OPERATIONS_WRITE),
    # Whoever watches the fleet need not be able to change it, and a pipeline that marks its releases need do no more.
    ("/api/v1/alert", Scope.ALERTS_WRITE),
    ("/api/v1/silences", Scope.ALERTS_WRITE),
    ("/api/v1/webhooks", Scope.ALERTS_WRITE),
    ("/api/v1/slos", Scope.ALERTS_WRITE),
    ("/api/v1/annotations", Scope.ANNOTATIONS_WRITE),
    # People keep their own password, sessions and tokens; their handlers see to it that nobody touches another's.
    ("/api/v1/users/me/", Scope.READ),
    ("/api/v1/tokens", Scope.READ),
    ("/api/v1/sessions", Scope.READ),
    ("/access/own/", Scope.READ),
    ("/api/v1/users", Scope.ACCESS_ADMIN),
    ("/api/v1/site-secret", Scope.ACCESS_ADMIN),
    ("/access/users", Scope.ACCESS_ADMIN),
)


def required_scope(method: str, path: str) -> Scope:
    """What a request needs; writing anywhere that has no rule of its own needs `fleet:write`."""
    if method in _SAFE_METHODS:
        return Scope.READ
    return next((scope for prefix, scope in _WRITE_SCOPES if path.startswith(prefix)), Scope.FLEET_WRITE)


def role_for(scopes: Iterable[Scope]) -> Role:
    """The least role that includes all of these scopes."""
    wanted = frozenset(scopes)
    return next(role for role in Role if wanted <= ROLE_SCOPES[role])


def in_order(scopes: Iterable[Scope]) -> list[Scope]:
    """Each scope once, in the order of their definition."""
    wanted = frozenset(scopes)
    return [scope for scope in Scope if scope in wanted]


def is_username(text: str) -> bool:
    """Whether an account may have this name."""
    return _USERNAME.fullmatch(text) is not None and text not in _RESERVED


def is_token_name(text: str) -> bool:
    """Whether an API token may have this name."""
    return _TOKEN_NAME.fullmatch(text) is not None
