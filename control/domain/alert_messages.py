"""What receivers of alerts are sent: a body as Alertmanager's webhooks have it (version 4), and its signature."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from control.domain.alerts import Notice

NOT_ENDED = "0001-01-01T00:00:00Z"
ALERT_NAME = "alertname"


@dataclass(frozen=True, slots=True)
class AlertFacts:
    """An alert as it is told: its labels with `alertname` and `severity`, and a sentence."""

    id: int
    status: Notice
    labels: Mapping[str, str]
    summary: str
    value: float | None
    threshold: float
    fired_at: datetime
    resolved_at: datetime | None
    fingerprint: str


def all_labels(rule: str, severity: str, labels: Mapping[str, str]) -> dict[str, str]:
    """What matchers see: the series' labels, the rule's name and how much it matters."""
    return {**labels, ALERT_NAME: rule, "severity": severity}


def message_body(receiver: str, rule: str, alerts: Sequence[AlertFacts]) -> dict[str, Any]:
    """One message about alerts of one rule; it counts as firing while any of them does."""
    told = [_alert(alert) for alert in alerts]
    is_firing = any(alert.status is Notice.FIRING for alert in alerts)
    return {
        "version": "4",
        "groupKey": f'{{}}:{{{ALERT_NAME}="{rule}"}}',
        "truncatedAlerts": 0,
        "status": (Notice.FIRING if is_firing else Notice.RESOLVED).value,
        "receiver": receiver,
        "groupLabels": {ALERT_NAME: rule},
        "commonLabels": _common([one["labels"] for one in told]),
        "commonAnnotations": _common([one["annotations"] for one in told]),
        "externalURL": "",
        "alerts": told,
    }


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Hexadecimal HMAC-SHA256 over the Unix time in decimal, a dot, and the body."""
    return hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def _alert(alert: AlertFacts) -> dict[str, Any]:
    annotations = {"summary": alert.summary, "threshold": f"{alert.threshold:g}"}
    if alert.value is not None:
        annotations["value"] = f"{alert.value:.6g}"
    return {
        "status": alert.status.value,
        "labels": dict(alert.labels),
        "annotations": annotations,
        "startsAt": _moment(alert.fired_at),
        "endsAt": NOT_ENDED if alert.resolved_at is None else _moment(alert.resolved_at),
        "generatorURL": f"/api/v1/alerts/{alert.id}",
        "fingerprint": alert.fingerprint,
    }


def _common(many: Sequence[Mapping[str, str]]) -> dict[str, str]:
    first, *others = many
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
