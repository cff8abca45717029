"""A site's agent: `celery -A engine_agents.tasks worker -Q site.<name>`."""

import logging

from control.celery_app import create_celery, log_quietly, tie_children_to_worker
from control.metric_catalogue import Process
from control.orders import WATCH_FLEET
from control.settings import Settings
from control.site_secret import SiteSecret
from control.task_metrics import count_tasks

settings = Settings.from_environment()
site_secret = SiteSecret.of(settings)
_MODULES = ("policies", "links", "sites", "nodes", "gateways", "probes", "secrets")
app = create_celery(settings, "agent", include=tuple(f"engine_agents.tasks.{module}" for module in _MODULES))
tie_children_to_worker()
count_tasks(Process.AGENT, settings.metrics_address)
log_quietly(WATCH_FLEET)
# A push every few seconds is no news; its failure is reported, not logged.
logging.getLogger("httpx").setLevel(logging.WARNING)
