"""What the routes of alerts, rules, silences and webhooks take and give."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, Field, FiniteFloat, StringConstraints

from control.api.moments import Moment
from control.api.schemas import FromDomain, Strict
from control.domain.alert_rules import MAX_WAIT_S, MAX_WINDOW_S, MIN_WINDOW_S, AlertRule, Severity
from control.domain.alerts import AlertState
from control.domain.silences import MAX_MATCHERS, Matcher, Operator
from control.services.alert_rules import StatedRule
from control.services.alerts import SeenAlert
from control.services.webhooks import WebhookDraft, shown_url
from control.store.tables import SilenceRow, WebhookRow

_NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"
Name = Annotated[str, Path(max_length=200, pattern=_NO_CONTROLS)]
Word = Annotated[str, StringConstraints(max_length=200, pattern=_NO_CONTROLS)]
Text = Annotated[str, StringConstraints(max_length=500, pattern=_NO_CONTROLS)]
Comment = Annotated[Text, StringConstraints(min_length=1, strip_whitespace=True)]


class CommentIn(Strict):
    """Why, or what is being done about it."""

    comment: Comment


class AlertOut(FromDomain):
    """One episode of one rule on one thing.

    `state` is kept while `is_unknown`: without data nothing begins or ends. `value` is the last known one.
    """

    id: int
    rule: str
    labels: dict[str, str]
    severity: Severity
    summary: str
    state: AlertState
    is_unknown: bool
    is_flapping: bool
    value: float | None
    threshold: float
    pending_at: datetime
    fired_at: datetime | None
    resolved_at: datetime | None
    resolution: str
    evaluated_at: datetime
    acknowledged_at: datetime | None
    acknowledged_by: str
    comment: str
    silenced_by: list[int] = Field(default_factory=list)

    @classmethod
    def of(cls, seen: SeenAlert) -> "AlertOut":
        """An alert with the silences that hold for it."""
        return cls.model_validate(seen.row).model_copy(update={"silenced_by": list(seen.silenced_by)})


class AlertEventOut(FromDomain):
    """What happened to an alert."""

    at: datetime
    kind: str
    value: float | None
    actor: str
    comment: str


class AlertDetailOut(AlertOut):
    """An alert with its history, oldest first."""

    history: list[AlertEventOut]


class MetricOut(FromDomain):
    """A figure that rules may watch."""

    name: str
    unit: str
    labels: list[str]
    help: str
    is_windowed: bool


class RuleFields(Strict):
    """A rule without its name: alert where the metric stays beyond the threshold for a time."""

    metric: Word = Field(examples=["ttft_p99_s"])
    threshold: FiniteFloat = Field(examples=[5.0])
    above: bool = Field(default=True, description="False: alert where the metric is below.")
    clear_threshold: FiniteFloat | None = Field(default=None, description="Where the good side begins; null: there.")
    window_s: int = Field(default=300, ge=MIN_WINDOW_S, le=MAX_WINDOW_S)
    for_s: float = Field(default=60.0, ge=0, le=MAX_WAIT_S)
    clear_for_s: float = Field(default=60.0, ge=0, le=MAX_WAIT_S)
    severity: Severity = Severity.WARNING
    enabled: bool = True
    labels: dict[Word, Word] = Field(default={}, max_length=10, description="Only series with these labels.")
    summary: Text = ""

    def named(self, name: str) -> AlertRule:
        """The rule under a name."""
        return AlertRule(name=name, **{field: getattr(self, field) for field in RuleFields.model_fields})


class RuleIn(RuleFields):
    """A new rule."""

    name: str = Field(max_length=63, examples=["slow-first-token"])


class RuleOut(BaseModel):
    """A rule; `updated_at` is null for a built-in one as it comes."""

    name: str
    metric: str
    threshold: float
    above: bool
    clear_threshold: float | None
    window_s: int
    for_s: float
    clear_for_s: float
    severity: Severity
    enabled: bool
    labels: dict[str, str]
    summary: str
    is_built_in: bool
    updated_at: datetime | None
    updated_by: str

    @classmethod
    def of(cls, stated: StatedRule) -> "RuleOut":
        """A rule and who set it."""
        return cls(
            name=stated.rule.name,
            **{field: getattr(stated.rule, field) for field in RuleFields.model_fields},
            is_built_in=stated.is_built_in,
            updated_at=stated.updated_at,
            updated_by=stated.updated_by,
        )


class MatcherIn(Strict):
    """A condition on a label of alerts, `alertname` and `severity` included; `~` takes `*` and `?`."""

    label: Word = Field(min_length=1, examples=["site"])
    operator: Operator = Operator.EQUAL
    value: Word = Field(examples=["ams"])

    def matcher(self) -> Matcher:
        """The condition."""
        return Matcher(self.label, self.operator, self.value)


class MatcherOut(BaseModel):
    """A condition on a label."""

    label: str
    operator: Operator
    value: str


class SilenceFields(Strict):
    """Alerts that meet every matcher, until a moment."""

    matchers: list[MatcherIn] = Field(min_length=1, max_length=MAX_MATCHERS)
    ends_at: Moment
    comment: Comment

    def parsed(self) -> list[Matcher]:
        """The conditions."""
        return [one.matcher() for one in self.matchers]


class SilenceIn(SilenceFields):
    """A new silence."""

    starts_at: Moment | None = Field(default=None, description="Null: now.")


class SilenceOut(BaseModel):
    """A silence; `is_active` says whether it holds now."""

    id: int
    matchers: list[MatcherOut]
    starts_at: datetime
    ends_at: datetime
    comment: str
    created_by: str
    created_at: datetime
    is_active: bool

    @classmethod
    def of(cls, row: SilenceRow, now: datetime) -> "SilenceOut":
        """A stored silence."""
        return cls(
            id=row.id or 0,
            matchers=matchers_out(row.matchers),
            starts_at=row.starts_at,
            ends_at=row.ends_at,
            comment=row.comment,
            created_by=row.created_by,
            created_at=row.created_at,
            is_active=row.starts_at <= now < row.ends_at,
        )


class WebhookFields(Strict):
    """Who is told where; without matchers of every alert."""

    url: str = Field(max_length=2000, examples=["https://alerts.example.com/pdd"])
    matchers: list[MatcherIn] = Field(default=[], max_length=MAX_MATCHERS)
    enabled: bool = True

    def named(self, name: str) -> WebhookDraft:
        """The receiver under a name."""
        return WebhookDraft(name, self.url, [one.matcher() for one in self.matchers], self.enabled)


class WebhookIn(WebhookFields):
    """A new receiver."""

    name: str = Field(max_length=63, examples=["on-call"])


class WebhookOut(BaseModel):
    """A receiver. `failures` counts in a row; only operators see the path of the URL, as it often is a secret."""

    name: str
    url: str
    matchers: list[MatcherOut]
    enabled: bool
    failures: int
    next_attempt_at: datetime
    dropped: int
    updated_at: datetime
    updated_by: str

    @classmethod
    def of(cls, row: WebhookRow, *, whole_url: bool) -> "WebhookOut":
        """A stored receiver."""
        return cls(
            name=row.name,
            url=row.url if whole_url else shown_url(row.url),
            matchers=matchers_out(row.matchers),
            enabled=row.enabled,
            failures=row.failures,
            next_attempt_at=row.next_attempt_at,
            dropped=row.dropped,
            updated_at=row.updated_at,
            updated_by=row.updated_by,
        )


class WebhookCreatedOut(WebhookOut):
    """A new receiver with the secret that signs its messages."""

    secret: str


class SecretOut(BaseModel):
    """A secret, shown once."""

    secret: str


class ReceiptOut(FromDomain):
    """What came of a message: the receiver's status, or an error where it gave none."""

    is_delivered: bool
    status: int | None
    error: str


class DeliveryOut(FromDomain):
    """One message to one receiver."""

    id: int
    state: str
    attempts: int
    error: str
    created_at: datetime
    finished_at: datetime | None


def matchers_out(documents: Sequence[dict[str, Any]]) -> list[MatcherOut]:
    """Stored matchers."""
    return [MatcherOut(**document) for document in documents]
