"""What the API gives about the audit trail."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from control.api.schemas import FromDomain
from control.domain.audit import ChainVerdict, Fault

_HASH = "0123456789abcdef" * 4


class AuditEventOut(FromDomain):
    """Who changed what, from what, to what, and why."""

    id: int
    at: datetime
    actor: str = Field(examples=["olga"])
    action: str = Field(examples=["policy.apply"])
    target: str = Field(examples=["policy/r3"])
    before: Any
    after: Any
    reason: str
    previous_hash: str = Field(examples=[_HASH])
    hash: str = Field(examples=[_HASH])


class AuditBreakOut(BaseModel):
    """Where a trail fails, and how."""

    id: int
    fault: Fault
    detail: str


class AuditVerdictOut(BaseModel):
    """What a check of the trail found; note the head elsewhere to be able to check against it later."""

    valid: bool
    events: int = Field(description="How many hold.")
    head_id: int = Field(description="The last event that holds; 0 where there is none.")
    head_hash: str = Field(examples=[_HASH])
    broken: AuditBreakOut | None

    @classmethod
    def of(cls, verdict: ChainVerdict) -> "AuditVerdictOut":
        """A verdict."""
        broken = verdict.broken
        return cls(
            valid=broken is None,
            events=verdict.events,
            head_id=verdict.head.id,
            head_hash=verdict.head.hash,
            broken=AuditBreakOut(id=broken.id, fault=broken.fault, detail=broken.detail) if broken else None,
        )
