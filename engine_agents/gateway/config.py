"""What a gateway runs on: one revision of policy and fleet, replaced as a whole and kept on disk."""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from control.domain.answer_parser import AnswerFormat
from control.domain.canary import Canary, is_canary
from control.domain.links import link_under
from control.domain.policy import Policy, PolicyError, parse_policy
from control.domain.policy_scopes import Scope, merge_policy, overrides_of
from control.domain.topology import FleetSnapshot, Link, Node, NodeState, Role, Tenant

log = logging.getLogger(__name__)


class ConfigError(ValueError):
    """A configuration that cannot be obeyed; the running one stays."""


class StaleRevisionError(ConfigError):
    """A configuration older than the running one."""


class CanaryDocument(msgspec.Struct, frozen=True):
    """A second policy, and which requests run under it; see `control.domain.canary`."""

    revision: int
    policy: dict[str, Any]
    site: str | None
    share: float
    salt: str


class ConfigDocument(msgspec.Struct, frozen=True):
    """Body of PUT /admin/v1/config, and the content of the file."""

    revision: int
    policy: dict[str, Any]
    fleet: dict[str, Any]
    applied_at: float = 0.0
    canary: CanaryDocument | None = None


@dataclass(frozen=True)
class RunningConfig:
    """A checked configuration, and what every request asks of it, found once. A request keeps the one it began with.

    `candidate` is the same under the policy of a canary, for the requests that `canary` names; both are None without.
    """

    revision: int
    policy: Policy
    fleet: FleetSnapshot
    applied_at_s: float
    tenants_by_key: Mapping[str, Tenant] = field(default_factory=dict)
    policies_by_model: Mapping[str, Policy] = field(default_factory=dict)
    canary: Canary | None = None
    candidate: "RunningConfig | None" = None

    def for_request(self, site: str, key: str) -> "RunningConfig":
        """What a request runs under: equal keys always get the same; `site` is the gateway's."""
        if self.canary is None or self.candidate is None:
            return self
        return self.candidate if is_canary(self.canary, site, key) else self

    def for_model(self, model: str) -> "RunningConfig":
        """This configuration under the overrides that the policy has for a model; itself where it has none."""
        return self._by_model.get(model, self)

    def nodes(self, role: Role, model: str) -> tuple[Node, ...]:
        """Nodes of a role that serve a model, in the order of the fleet document."""
        return self._pools.get((role, model), ())

    def node(self, name: str) -> Node:
        """The node of that name.

        Raises:
            KeyError: the fleet has none.
        """
        return self._nodes[name]

    def link(self, source: str, target: str) -> Link | None:
        """The link from one site to another as the policy leaves it; None inside a site or where none is known."""
        return self._links.get((source, target))

    def answer_format(self, model: str) -> AnswerFormat:
        """What a model's answers are written in, as its profile says; plain text where it says nothing."""
        return self._formats.get(model, _PLAIN)

    @cached_property
    def models(self) -> list[str]:
        """Ids of the models that ready nodes serve, the fleet's own first."""
        served = {node.model for node in self.fleet.nodes if node.state is not NodeState.DISABLED}
        return sorted(served, key=lambda model: (model != self.fleet.model, model))

    @cached_property
    def _by_model(self) -> dict[str, "RunningConfig"]:
        return {model: replace(self, policy=policy) for model, policy in self.policies_by_model.items()}

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.fleet.nodes}

    @cached_property
    def _pools(self) -> dict[tuple[Role, str], tuple[Node, ...]]:
        pools: dict[tuple[Role, str], tuple[Node, ...]] = {}
        for node in self.fleet.nodes:
            key = (node.role, node.model)
            pools[key] = (*pools.get(key, ()), node)
        return pools

    @cached_property
    def _links(self) -> dict[tuple[str, str], Link]:
        return {(link.source, link.target): link_under(link, self.policy) for link in reversed(self.fleet.links)}

    @cached_property
    def _formats(self) -> dict[str, AnswerFormat]:
        labels = {**self.fleet.model_labels, self.fleet.model: self.fleet.labels}
        return {model: _format_of(named) for model, named in labels.items()}


_PLAIN = AnswerFormat()


def _format_of(labels: Mapping[str, str]) -> AnswerFormat:
    try:
        return AnswerFormat.of_labels(labels)
    except ValueError:
        return _PLAIN  # a parser that only a newer gateway has


class ConfigStore:
    """The running configuration and its file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._document: ConfigDocument | None = None
        self.running: RunningConfig | None = None

    def load(self) -> None:
        """Start from the file, if there is one.

        Raises:
            ConfigError: the file holds no configuration.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        document = parse_document(data)
        self.running = _checked(document)
        self._document = document
        _say_who_may_call(self.running)

    def apply(self, document: ConfigDocument, *, force: bool = False) -> RunningConfig:
        """Check, write to disk, then run on it. The same content twice is one change.

        Raises:
            StaleRevisionError: it is older than the running one, and `force` is not set.
            ConfigError: it cannot be obeyed.
            OSError: it cannot be written; nothing has changed then.
        """
        current = self._document
        if current is not None and self.running is not None:
            if _age(document) < _age(current) and not force:
                raise StaleRevisionError(
                    f"revisions {_age(document)} of policy and fleet are older than {_age(current)}, which run"
                )
            if msgspec.structs.replace(document, applied_at=current.applied_at) == current:
                return self.running
        document = msgspec.structs.replace(document, applied_at=time.time())
        checked = _checked(document)
        self._write(msgspec.json.encode(document))
        self._document, self.running = document, checked
        _say_who_may_call(checked)
        return checked

    def _write(self, data: bytes) -> None:
        """Replace the file so that a crash leaves the old or the new one, never half of one."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)


def _say_who_may_call(config: RunningConfig) -> None:
    if config.tenants_by_key:
        log.info("revision %d: %d tenants may call", config.revision, len(config.tenants_by_key))
    else:
        log.warning("revision %d: no tenants, so everybody on this machine may call, and nobody else", config.revision)


def parse_document(data: bytes) -> ConfigDocument:
    """Read a configuration's JSON.

    Raises:
        ConfigError: it is not one.
    """
    try:
        return msgspec.json.decode(data, type=ConfigDocument)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not a configuration: {error}") from error


def _age(document: ConfigDocument) -> tuple[int, int]:
    """Revisions of policy and fleet: what has lower ones is older."""
    fleet_revision = document.fleet.get("revision", 0)
    return document.revision, fleet_revision if isinstance(fleet_revision, int) else 0


def _checked(document: ConfigDocument) -> RunningConfig:
    try:
        policy, by_model = _policies(document.policy)
        fleet = FleetSnapshot.from_document(document.fleet)
    except PolicyError as error:
        raise ConfigError(f"policy: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"fleet: {type(error).__name__}: {error}") from error
    tenants_by_key = {tenant.key_sha256: tenant for tenant in fleet.tenants}
    if len(tenants_by_key) < len(fleet.tenants):
        raise ConfigError("fleet: two tenants have the same API key")
    running = RunningConfig(document.revision, policy, fleet, document.applied_at, tenants_by_key, by_model)
    return running if document.canary is None else _with_canary(running, document.canary)


def _with_canary(running: RunningConfig, document: CanaryDocument) -> RunningConfig:
    try:
        policy, by_model = _policies(document.policy)
        canary = Canary(document.revision, document.site, document.share, document.salt)
    except PolicyError as error:
        raise ConfigError(f"canary: {error}") from error
    candidate = replace(running, revision=document.revision, policy=policy, policies_by_model=by_model)
    return replace(running, canary=canary, candidate=candidate)


def _policies(document: Mapping[str, Any]) -> tuple[Policy, dict[str, Policy]]:
    """A policy, and what becomes of it for the models that it has overrides for."""
    by_model = {
        override.name: parse_policy(merge_policy(document, model=override.name).document)
        for override in overrides_of(document, Scope.MODEL)
    }
    return parse_policy(document), by_model
