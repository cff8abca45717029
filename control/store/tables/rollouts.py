"""Guarded roll-outs."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON
from sqlmodel import Field

from control.store.tables.base import Row, moment


class RolloutRow(Row, table=True):
    """A policy revision on its way to all requests.

    `open_key` is the same for all that are open and null afterwards, so that one is open at a time. `canary_site` and
    `canary_share` say which requests are the canary; `guard` are the `guard.*` values that hold for it. `before`
    and `judgement` are what was compared last. `version` rises with every change.
    """

    __tablename__ = "rollout"
    id: int | None = Field(default=None, primary_key=True)
    revision: int = Field(foreign_key="policy_revision.number", index=True)
    base_revision: int = Field(foreign_key="policy_revision.number")
    reverted_to: int | None = Field(default=None, foreign_key="policy_revision.number")
    open_key: str | None = Field(default=None, unique=True)
    canary_site: str | None = None
    canary_share: float
    guard: dict[str, Any] = Field(sa_type=JSON)
    phase: str = Field(index=True)
    paused_from: str | None = None
    baked_s: float = 0.0
    looked_at_s: float | None = None
    known_until_s: float | None = None
    suspect_since_s: float | None = None
    waiting_for: list[str] = Field(sa_type=JSON)
    ending: str = ""
    before: dict[str, Any] | None = Field(default=None, sa_type=JSON, nullable=True)
    judgement: dict[str, Any] | None = Field(default=None, sa_type=JSON, nullable=True)
    version: int = 1
    actor: str
    reason: str
    created_at: datetime = moment()
    canary_at: datetime | None = moment(nullable=True)
    finished_at: datetime | None = moment(nullable=True)
