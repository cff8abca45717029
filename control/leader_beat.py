"""Celery's beat under a lease in SQL: of several control workers, one beats."""

import logging
import os
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.beat import Scheduler

from control.errors import DatabaseUnavailableError
from control.settings import Settings
from control.store.leases import hold_lease, release_lease
from control.store.session import Database, open_database

LEASE_NAME = "beat"
LEASE_DURATION = timedelta(seconds=10)
RENEW_EVERY_S = 3.0
LOOK_AGAIN_S = 1.0

log = logging.getLogger(__name__)


class Leadership:
    """Whether this process is the one that beats; asks the database every few seconds."""

    def __init__(self, database: Database, holder: str) -> None:
        self._database = database
        self._holder = holder
        self._asked_at_s = float("-inf")
        self.is_leader = False

    def check(self, monotonic_s: float, now: datetime) -> bool:
        """Renew or try to get the lease where that is due. Without a database nobody leads."""
        if monotonic_s - self._asked_at_s < (RENEW_EVERY_S if self.is_leader else LOOK_AGAIN_S):
            return self.is_leader
        self._asked_at_s = monotonic_s
        was_leader = self.is_leader
        try:
            self.is_leader = hold_lease(self._database, LEASE_NAME, self._holder, now, LEASE_DURATION) is not None
        except DatabaseUnavailableError as error:
            self.is_leader = False
            log.warning("no beat: %s", error)
        if self.is_leader != was_leader:
            log.info("%s %s the beat", self._holder, "leads" if self.is_leader else "does not lead")
        return self.is_leader

    def resign(self, now: datetime) -> None:
        """Let another worker beat at once."""
        if self.is_leader:
            self.is_leader = False
            try:
                release_lease(self._database, LEASE_NAME, self._holder, now)
            except DatabaseUnavailableError:
                log.info("the beat's lease runs out by itself")


class LeaderScheduler(Scheduler):  # type: ignore[misc]
    """A scheduler that keeps its schedule and sends nothing while another process leads."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        holder = f"{socket.gethostname()}:{os.getpid()}"
        self._leadership = Leadership(open_database(Settings.from_environment().database_url), holder)
        super().__init__(*arguments, **options)

    def tick(self, *arguments: Any, **options: Any) -> float:
        """Send what is due, if this process leads; seconds until the next look."""
        if not self._leadership.check(time.monotonic(), datetime.now(UTC)):
            return LOOK_AGAIN_S
        pause_s: float = super().tick(*arguments, **options)
        return min(pause_s, LOOK_AGAIN_S)

    def close(self) -> None:
        """End, and hand the lease on."""
        self._leadership.resign(datetime.now(UTC))
        super().close()
