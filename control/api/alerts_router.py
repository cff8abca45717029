"""Everything about alerts: what fires, by which rules, who is told, and who is not."""

from fastapi import APIRouter

from control.api import alerts, alerts_rules, alerts_silences, alerts_webhooks

router = APIRouter()
for part in (alerts.router, alerts_rules.router, alerts_silences.router, alerts_webhooks.router):
    router.include_router(part)
