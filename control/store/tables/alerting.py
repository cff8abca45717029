"""What users were promised, what is watched, what was found, and who is told."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON
from sqlmodel import Field

from control.store.tables.base import Row, moment, only_add


class SloRow(Row, table=True):
    """An objective that somebody set; those of the policy's service classes have no row."""

    __tablename__ = "slo"
    name: str = Field(primary_key=True)
    indicator: str
    target: float
    threshold_s: float | None = None
    service_class: str | None = None
    site: str | None = None
    description: str = ""
    updated_at: datetime = moment()
    updated_by: str


class AlertRuleRow(Row, table=True):
    """A rule that somebody made, or a built-in one that somebody changed."""

    __tablename__ = "alert_rule"
    name: str = Field(primary_key=True)
    metric: str
    above: bool
    threshold: float
    clear_threshold: float | None = None
    window_s: int
    for_s: float
    clear_for_s: float
    severity: str
    enabled: bool
    labels: dict[str, str] = Field(sa_type=JSON)
    summary: str
    updated_at: datetime = moment()
    updated_by: str


class AlertClockRow(Row, table=True):
    """The one row that says when the rules were last evaluated; whoever moves it forward may write what came of it."""

    __tablename__ = "alert_clock"
    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    evaluated_at: datetime = moment()


class AlertRow(Row, table=True):
    """One episode of one rule on one thing. `open_key` is null once it is over, so that only one is open at a time."""

    __tablename__ = "alert"
    id: int | None = Field(default=None, primary_key=True)
    rule: str = Field(index=True)
    open_key: str | None = Field(default=None, unique=True)
    labels: dict[str, str] = Field(sa_type=JSON)
    severity: str
    summary: str
    state: str = Field(index=True)
    is_unknown: bool = False
    is_flapping: bool = False
    value: float | None = None
    threshold: float
    pending_at: datetime = moment()
    fired_at: datetime | None = moment(nullable=True)
    clear_since: datetime | None = moment(nullable=True)
    resolved_at: datetime | None = moment(nullable=True)
    evaluated_at: datetime = moment()
    resolution: str = ""
    acknowledged_at: datetime | None = moment(nullable=True)
    acknowledged_by: str = ""
    comment: str = ""
    notified_state: str = ""
    notified_at: datetime | None = moment(nullable=True)


class AlertEventRow(Row, table=True):
    """What happened to an alert, and who did it; rows are only ever added."""

    __tablename__ = "alert_event"
    id: int | None = Field(default=None, primary_key=True)
    alert_id: int = Field(foreign_key="alert.id", index=True)
    at: datetime = moment(index=True)
    kind: str
    value: float | None = None
    actor: str = ""
    comment: str = ""


class SilenceRow(Row, table=True):
    """Alerts that nobody is to be told of for a time."""

    __tablename__ = "silence"
    id: int | None = Field(default=None, primary_key=True)
    matchers: list[dict[str, str]] = Field(sa_type=JSON)
    starts_at: datetime = moment()
    ends_at: datetime = moment(index=True)
    comment: str
    created_by: str
    created_at: datetime = moment()


class WebhookRow(Row, table=True):
    """Who is told of alerts. The secret signs what is sent; it is shown once and never given out again."""

    __tablename__ = "webhook"
    name: str = Field(primary_key=True)
    url: str
    secret: str = Field(repr=False)
    matchers: list[dict[str, str]] = Field(sa_type=JSON)
    enabled: bool = True
    failures: int = 0
    next_attempt_at: datetime = moment()
    lease_token: str | None = None
    leased_until: datetime | None = moment(nullable=True)
    dropped: int = 0
    updated_at: datetime = moment()
    updated_by: str


class WebhookDeliveryRow(Row, table=True):
    """One message to one receiver: waiting, delivered, or given up."""

    __tablename__ = "webhook_delivery"
    id: int | None = Field(default=None, primary_key=True)
    webhook: str = Field(foreign_key="webhook.name", index=True)
    state: str = Field(index=True)
    body: dict[str, Any] = Field(sa_type=JSON)
    attempts: int = 0
    error: str = ""
    created_at: datetime = moment()
    finished_at: datetime | None = moment(nullable=True)


only_add(AlertEventRow)
