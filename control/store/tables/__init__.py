"""The tables of the control plane, a module per subject."""

from control.store.tables.access import ApiTokenRow, LoginFailureRow, LoginKeyRow, UserRow, WebSessionRow
from control.store.tables.audit import AuditEventRow, AuditHeadRow
from control.store.tables.base import ImmutableRowError, Row, UtcDateTime
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
from control.store.tables.policy import GatewayReportRow, LinkReportRow, PolicyActivationRow, PolicyRevisionRow

__all__ = [
    "ApiTokenRow",
    "AuditEventRow",
    "AuditHeadRow",
    "ChipProfileRow",
    "GatewayReportRow",
    "GatewayRow",
    "ImmutableRowError",
    "LeaseRow",
    "LinkProbeRow",
    "LinkReportRow",
    "LinkRow",
    "LoginFailureRow",
    "LoginKeyRow",
    "ModelProfileRow",
    "NodeRow",
    "OperationRow",
    "OperationStepRow",
    "PolicyActivationRow",
    "PolicyRevisionRow",
    "Row",
    "SettingRow",
    "SiteRow",
    "TenantRow",
    "UserRow",
    "UtcDateTime",
    "WebSessionRow",
]
