"""A site's agent: `celery -A engine_agents.tasks worker -Q site.<name>`."""

import logging

from control.celery_app import create_celery, log_quietly, tie_children_to_worker
from control.orders import WATCH_FLEET
from control.settings import Settings

settings = Settings.from_environment()
_MODULES = ("policies", "links", "sites", "nodes", "gateways", "probes")
app = create_celery(settings, "agent", include=tuple(f"engine_agents.tasks.{module}" for module in _MODULES))
tie_children_to_worker()
log_quietly(WATCH_FLEET)
# A push every few seconds is no news; its failure is reported, not logged.
logging.getLogger("httpx").setLevel(logging.WARNING)
