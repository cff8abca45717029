"""What the API takes and gives about roll-outs."""

from datetime import datetime
from typing import Self

from pydantic import BaseModel, Field

from control.api.operation_schemas import Name
from control.api.schemas import MAX_NUMBER, ChangeOut, Document, FromDomain, ReasonIn
from control.domain.guard_rules import Decision, SignalVerdict
from control.domain.rollout import Phase, progress_ratio
from control.services.rollout_store import StoredRollout, decision_of, readings_of
from control.services.rollouts import RolloutDraft, RolloutPlan

MAX_BAKE_S = 86_400.0


class RolloutIn(ReasonIn):
    """A revision to give to some requests first, and to all if it does no harm."""

    revision: int = Field(ge=1, le=MAX_NUMBER)
    site: Name | None = Field(default=None, description="The canary is all requests of this site.")
    share: float | None = Field(
        default=None,
        ge=0.001,
        le=0.9,
        description="The canary is this share of all requests; without it and a site, the policy's guard.canary_share.",
    )
    bake_s: float | None = Field(
        default=None, ge=1, le=MAX_BAKE_S, description="How long signals must be good; else the policy's guard.bake_s."
    )
    base_revision: int | None = Field(
        default=None, ge=1, le=MAX_NUMBER, description="The active revision that you looked at."
    )

    def draft(self) -> RolloutDraft:
        """The wish."""
        return RolloutDraft(self.revision, self.reason, self.site, self.share, self.bake_s, self.base_revision)


class PromotionIn(ReasonIn):
    """Give the revision to all now."""

    force: bool = Field(default=False, description="Also against the guard's word, or without one.")


class CanaryOut(BaseModel):
    """Which requests run under the new revision: all of a site, or a share of all by a hash of their session."""

    site: str | None
    share: float


class SignalOut(FromDomain):
    """One signal; above `hold_bound` it holds the roll-out, above `bound` it aborts it; null: nothing to compare.

    What is compared is `canary_at_least`: the canary's true value is below it once in a thousand times.
    """

    signal: str
    unit: str
    before: float | None
    control: float | None
    canary: float | None
    hold_bound: float | None
    bound: float | None
    verdict: SignalVerdict
    canary_at_least: float | None = None


class GroupSizesOut(BaseModel):
    """How many requests the verdict rests on."""

    before: int = 0
    control: int = 0
    canary: int = 0


class RolloutOut(BaseModel):
    """A roll-out as it is now.

    `waiting_for` says why it does not go forward, `ending` why it ended or is about to. `progress` is the share of the
    baking that is done. `reverted_to` is the revision that took the place of one that had gone to all already.
    """

    id: int
    revision: int
    base_revision: int
    reverted_to: int | None
    phase: Phase
    paused_from: Phase | None
    canary: CanaryOut
    guard: Document
    progress: float
    baked_s: float
    bake_s: float
    decision: Decision | None
    waiting_for: list[str]
    ending: str
    requests: GroupSizesOut
    signals: list[SignalOut]
    reason: str
    actor: str
    created_at: datetime
    canary_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, stored: StoredRollout) -> Self:
        """A stored roll-out."""
        row, rollout = stored.row, stored.rollout
        sizes = row.judgement["requests"] if row.judgement else {}
        return cls(
            id=stored.id,
            revision=row.revision,
            base_revision=row.base_revision,
            reverted_to=row.reverted_to,
            phase=rollout.phase,
            paused_from=rollout.paused_from,
            canary=CanaryOut(site=row.canary_site, share=row.canary_share),
            guard=row.guard,
            progress=progress_ratio(rollout),
            baked_s=rollout.baked_s,
            bake_s=rollout.bake_s,
            decision=decision_of(row.judgement),
            waiting_for=list(rollout.waiting_for),
            ending=rollout.ending,
            requests=GroupSizesOut(**sizes),
            signals=[SignalOut.model_validate(reading) for reading in readings_of(row.judgement)],
            reason=row.reason,
            actor=row.actor,
            created_at=row.created_at,
            canary_at=row.canary_at,
            finished_at=row.finished_at,
        )


class RolloutPreviewOut(BaseModel):
    """What a roll-out would do; nothing has been changed.

    `held_back` are the changes that nobody can make for some requests only: they hold from the promotion on.
    """

    revision: int
    base_revision: int
    canary: CanaryOut
    guard: Document
    tried: list[ChangeOut]
    held_back: list[ChangeOut]
    requests_before: int
    waiting_for: list[str]

    @classmethod
    def of(cls, plan: RolloutPlan) -> Self:
        """A plan."""
        return cls(
            revision=plan.candidate.number,
            base_revision=plan.base.number,
            canary=CanaryOut(site=plan.site, share=plan.share),
            guard=plan.guard.to_values(),
            tried=[ChangeOut.of(change) for change in plan.trial.tried],
            held_back=[ChangeOut.of(change) for change in plan.trial.held_back],
            requests_before=plan.before.requests,
            waiting_for=list(plan.waiting_for),
        )
