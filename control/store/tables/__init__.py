"""The tables of the control plane, a module per subject."""

from control.store.tables.access import ApiTokenRow, LoginFailureRow, LoginKeyRow, UserRow, WebSessionRow
from control.store.tables.alerting import (
    AlertClockRow,
    AlertEventRow,
    AlertRow,
    AlertRuleRow,
    SilenceRow,
    SloRow,
    WebhookDeliveryRow,
    WebhookRow,
)
from control.store.tables.audit import AuditEventRow, AuditHeadRow
from control.store.tables.base import ImmutableRowError, Row, UtcDateTime
from control.store.tables.idempotency import IdempotencyRow
from control.store.tables.inventory import (
    ChipProfileRow,
    GatewayRow,
    LinkRow,
    ModelProfileRow,
    NodeRow,
    SettingRow,
    SiteRow,
    TenantRow,
)
from control.store.tables.operations import LeaseRow, LinkProbeRow, OperationRow, OperationStepRow
from control.store.tables.policy import (
    AnnotationRow,
    GatewayReportRow,
    LinkReportRow,
    PolicyActivationRow,
    PolicyRevisionRow,
)
from control.store.tables.rollouts import RolloutRow
from control.store.tables.telemetry import (
    LinkRollupRow,
    RequestRollupRow,
    RequestSampleRow,
    SiteRollupRow,
    StreamPositionRow,
    TelemetryCountRow,
    TelemetrySourceRow,
)

__all__ = [
    "AlertClockRow",
    "AlertEventRow",
    "AlertRow",
    "AlertRuleRow",
    "AnnotationRow",
    "ApiTokenRow",
    "AuditEventRow",
    "AuditHeadRow",
    "ChipProfileRow",
    "GatewayReportRow",
    "GatewayRow",
    "IdempotencyRow",
    "ImmutableRowError",
    "LeaseRow",
    "LinkProbeRow",
    "LinkReportRow",
    "LinkRollupRow",
    "LinkRow",
    "LoginFailureRow",
    "LoginKeyRow",
    "ModelProfileRow",
    "NodeRow",
    "OperationRow",
    "OperationStepRow",
    "PolicyActivationRow",
    "PolicyRevisionRow",
    "RequestRollupRow",
    "RequestSampleRow",
    "RolloutRow",
    "Row",
    "SettingRow",
    "SilenceRow",
    "SiteRollupRow",
    "SiteRow",
    "SloRow",
    "StreamPositionRow",
    "TelemetryCountRow",
    "TelemetrySourceRow",
    "TenantRow",
    "UserRow",
    "UtcDateTime",
    "WebSessionRow",
    "WebhookDeliveryRow",
    "WebhookRow",
]
