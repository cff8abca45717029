"""Alert rules: the built-in ones, how somebody changed them, and those that somebody made."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlmodel import Session, select

from control.domain.alert_rules import BUILT_IN_BY_NAME, AlertRule, Severity, rule_problems
from control.domain.policy import FieldProblem
from control.domain.versions import version_of
from control.errors import ConflictError, InvalidError, NotFoundError
from control.services.access import Principal, Role, require_role
from control.services.audit import record_event
from control.services.plane import ControlPlane
from control.services.versions import check_version
from control.store.tables import AlertRuleRow


@dataclass(frozen=True, slots=True)
class StatedRule:
    """A rule, and who set it when; `updated_at` is None for a built-in one as it comes."""

    rule: AlertRule
    updated_at: datetime | None = None
    updated_by: str = ""

    @property
    def is_built_in(self) -> bool:
        """Whether deleting it brings back what it was."""
        return self.rule.name in BUILT_IN_BY_NAME

    @property
    def version(self) -> str:
        """Version of its content."""
        return version_of(_values(self.rule))


def load_rules(session: Session) -> list[StatedRule]:
    """All rules by name."""
    stated = {name: StatedRule(rule) for name, rule in BUILT_IN_BY_NAME.items()}
    for row in session.exec(select(AlertRuleRow)):
        stated[row.name] = StatedRule(_rule(row), row.updated_at, row.updated_by)
    return [stated[name] for name in sorted(stated)]


def load_rule(session: Session, name: str) -> StatedRule:
    """One rule.

    Raises:
        NotFoundError: there is none of that name.
    """
    row = session.get(AlertRuleRow, name)
    if row is not None:
        return StatedRule(_rule(row), row.updated_at, row.updated_by)
    if name in BUILT_IN_BY_NAME:
        return StatedRule(BUILT_IN_BY_NAME[name])
    raise NotFoundError(f"There is no alert rule {name}.")


def create_rule(plane: ControlPlane, principal: Principal, rule: AlertRule) -> StatedRule:
    """Make a rule.

    Raises:
        ForbiddenError: the principal is no operator.
        InvalidError: it cannot be evaluated.
        ConflictError: there is one of that name.
    """
    require_role(principal, Role.OPERATOR)
    _check(rule)
    with plane.database.unit_of_work(plane.send) as work:
        if rule.name in BUILT_IN_BY_NAME or work.session.get(AlertRuleRow, rule.name) is not None:
            raise ConflictError(f"There is an alert rule {rule.name} already.")
        row = AlertRuleRow(**_values(rule), updated_at=plane.now(), updated_by=principal.name)
        work.session.add(row)
        target = f"alert-rule/{rule.name}"
        record_event(work.session, plane.now(), principal.name, "alert_rule.create", target, after=_values(rule))
    return StatedRule(rule, row.updated_at, row.updated_by)


def replace_rule(
    plane: ControlPlane, principal: Principal, rule: AlertRule, expected: Collection[str] | None
) -> StatedRule:
    """Change a rule; a built-in one keeps its metric.

    Raises:
        ForbiddenError, InvalidError: as in `create_rule`.
        NotFoundError: there is none of that name.
        PreconditionRequiredError, StaleRevisionError: see `check_version`.
    """
    require_role(principal, Role.OPERATOR)
    _check(rule)
    with plane.database.unit_of_work(plane.send) as work:
        before = load_rule(work.session, rule.name)
        check_version(before.version, expected)
        if before.is_built_in and rule.metric != before.rule.metric:
            raise InvalidError(problems=[FieldProblem("metric", "A built-in rule keeps its metric.")])
        row = AlertRuleRow(**_values(rule), updated_at=plane.now(), updated_by=principal.name)
        work.session.merge(row)
        record_event(
            work.session,
            plane.now(),
            principal.name,
            "alert_rule.replace",
            f"alert-rule/{rule.name}",
            before=_values(before.rule),
            after=_values(rule),
        )
        return StatedRule(rule, row.updated_at, row.updated_by)


def delete_rule(plane: ControlPlane, principal: Principal, name: str, expected: Collection[str] | None) -> None:
    """Delete a rule; of a built-in one, only what somebody changed.

    Raises:
        ForbiddenError: the principal is no operator.
        NotFoundError: there is none of that name.
        ConflictError: it is built in and as it comes.
        PreconditionRequiredError, StaleRevisionError: see `check_version`.
    """
    require_role(principal, Role.OPERATOR)
    with plane.database.unit_of_work(plane.send) as work:
        before = load_rule(work.session, name)
        check_version(before.version, expected)
        row = work.session.get(AlertRuleRow, name)
        if row is None:
            raise ConflictError(f"{name} is built in: switch it off instead (enabled: false).")
        work.session.delete(row)
        record_event(
            work.session,
            plane.now(),
            principal.name,
            "alert_rule.delete",
            f"alert-rule/{name}",
            before=_values(before.rule),
            after=_values(BUILT_IN_BY_NAME[name]) if before.is_built_in else None,
        )


def _check(rule: AlertRule) -> None:
    problems = rule_problems(rule)
    if problems:
        raise InvalidError("Some fields are not valid.", problems)


def _values(rule: AlertRule) -> dict[str, Any]:
    """As columns, whole numbers of seconds and the like as SQL gives them back."""
    return {
        **asdict(rule),
        "threshold": float(rule.threshold),
        "clear_threshold": None if rule.clear_threshold is None else float(rule.clear_threshold),
        "for_s": float(rule.for_s),
        "clear_for_s": float(rule.clear_for_s),
        "severity": rule.severity.value,
        "labels": dict(rule.labels),
    }


def _rule(row: AlertRuleRow) -> AlertRule:
    return AlertRule(
        name=row.name,
        metric=row.metric,
        threshold=row.threshold,
        above=row.above,
        clear_threshold=row.clear_threshold,
        window_s=row.window_s,
        for_s=row.for_s,
        clear_for_s=row.clear_for_s,
        severity=Severity(row.severity),
        enabled=row.enabled,
        labels=row.labels,
        summary=row.summary,
    )
