"""What the API takes and gives about operations."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field

from control.api.schemas import MAX_NUMBER, Document, FromDomain, ReasonIn, Strict
from control.domain.operation_plans import DRAIN_TIMEOUT_S, TYPICAL_S
from control.domain.operations import (
    Kind,
    OperationState,
    Stage,
    Step,
    StepPlan,
    StepState,
    progress_ratio,
    remaining_s,
)
from control.domain.topology import Role
from control.services.operation_requests import DEFAULT_PROBE_BYTES
from control.services.operation_store import Stored
from control.services.operations import Preview

MAX_TIMEOUT_S = 86_400.0
MAX_PROBE_BYTES = 32_000_000
NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=NO_CONTROLS)]
Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S, description="How long the node may take to come to rest.")]
Force = Annotated[bool, Field(description="Also where the node is the last ready one of its role.")]


class _Asked(ReasonIn):
    def parameters(self) -> dict[str, Any]:
        """All that the operation depends on: two requests with equal ones are the same."""
        return self.model_dump(mode="json", exclude={"kind", "reason"}, exclude_none=True)


class DrainIn(_Asked):
    """Take a node from the gateways and wait until nothing is in flight on it."""

    kind: Literal[Kind.DRAIN]
    node: Name
    timeout_s: Timeout = DRAIN_TIMEOUT_S
    force: Force = False


class UndrainIn(_Asked):
    """Give a node back to the gateways."""

    kind: Literal[Kind.UNDRAIN]
    node: Name


class SwitchRoleIn(_Asked):
    """Drain a node, give it another role, warm it up, give it back."""

    kind: Literal[Kind.SWITCH_ROLE]
    node: Name
    role: Role
    timeout_s: Timeout = DRAIN_TIMEOUT_S
    force: Force = False


class RestartIn(_Asked):
    """Drain a node, restart its process, warm it up, give it back."""

    kind: Literal[Kind.RESTART]
    node: Name
    timeout_s: Timeout = DRAIN_TIMEOUT_S
    force: Force = False


class RebalanceIn(_Asked):
    """Switch roles at a site, one node at a time, until P : RLD : MD is the target, a given one or the policy's."""

    kind: Literal[Kind.REBALANCE]
    site: Name
    target: str | None = Field(default=None, pattern=r"^\d{1,4}:\d{1,4}:\d{1,4}$", examples=["3:1:2"])
    to_policy: Literal[True] | None = Field(
        default=None, description="Instead of a target: pools.<site>.<role>.target of the active policy."
    )
    timeout_s: Timeout = DRAIN_TIMEOUT_S


class LinkShape(Strict):
    """Fields of the link's policy; those left out stay."""

    rate_cap_bytes_per_s: float | None = None
    flow_cap_bytes_per_s: float | None = None
    streams_per_transfer: int | None = None
    max_transfers: int | None = None


class ShapeLinkIn(_Asked):
    """Change a link's policy under a new revision, and wait until its relay enforces it."""

    kind: Literal[Kind.SHAPE_LINK]
    link: Name
    shape: LinkShape

    def parameters(self) -> dict[str, Any]:
        """A cap that is given as null is lifted; one that is left out stays."""
        return {"link": self.link, "shape": self.shape.model_dump(exclude_unset=True)}


class ProbeLinkIn(_Asked):
    """Measure bandwidth and round trip of a link through its WAN relay."""

    kind: Literal[Kind.PROBE_LINK]
    link: Name
    size_bytes: int = Field(default=DEFAULT_PROBE_BYTES, ge=100_000, le=MAX_PROBE_BYTES)


class ApplyPolicyIn(_Asked):
    """Make a revision the active one, and wait until every gateway runs it."""

    kind: Literal[Kind.APPLY_POLICY]
    revision: int = Field(ge=1, le=MAX_NUMBER)


OperationIn = Annotated[
    DrainIn | UndrainIn | SwitchRoleIn | RestartIn | RebalanceIn | ShapeLinkIn | ProbeLinkIn | ApplyPolicyIn,
    Field(discriminator="kind"),
]


class StepOut(BaseModel):
    """One step, as far as it is."""

    stage: Stage
    subject: str
    site: str
    deadline_s: float
    arguments: Document
    undoes: bool
    state: StepState = StepState.PENDING
    attempt: int = 0
    started_at_s: float | None = None
    finished_at_s: float | None = None
    progress: Document = {}
    error: str = ""

    @classmethod
    def planned(cls, plan: StepPlan) -> Self:
        """A step before it begins."""
        return cls(
            stage=plan.stage,
            subject=plan.subject,
            site=plan.site,
            deadline_s=plan.deadline_s,
            arguments=dict(plan.arguments),
            undoes=plan.undoes,
        )

    @classmethod
    def of(cls, step: Step) -> Self:
        """A step and what became of it."""
        return cls.planned(step.plan).model_copy(
            update={
                "state": step.state,
                "attempt": step.attempt,
                "started_at_s": step.started_at_s,
                "finished_at_s": step.finished_at_s,
                "progress": dict(step.progress),
                "error": step.error,
            }
        )


class OperationOut(BaseModel):
    """An operation. `progress` is the share of its steps that are settled; `eta_s` is null once it is over."""

    id: int
    kind: Kind
    target: str
    parameters: Document
    state: OperationState
    progress: float
    eta_s: float | None
    error: str
    result: Any
    reason: str
    actor: str
    created_at: datetime
    finished_at: datetime | None
    retry_of: int | None
    steps: list[StepOut]

    @classmethod
    def of(cls, stored: Stored, now: datetime, typical_s: Mapping[Stage, float]) -> Self:
        """A stored operation as it is now."""
        row, operation = stored.row, stored.operation
        return cls(
            id=stored.id,
            kind=operation.kind,
            target=row.target,
            parameters=row.parameters,
            state=operation.state,
            progress=progress_ratio(operation),
            eta_s=remaining_s(operation, now.timestamp(), {**TYPICAL_S, **typical_s}),
            error=row.error,
            result=row.result,
            reason=row.reason,
            actor=row.actor,
            created_at=row.created_at,
            finished_at=row.finished_at,
            retry_of=row.retry_of,
            steps=[StepOut.of(step) for step in operation.steps],
        )


class OperationPreviewOut(BaseModel):
    """What an operation would do; nothing has been changed."""

    kind: Kind
    target: str
    parameters: Document
    steps: list[StepOut]
    result: Any

    @classmethod
    def of(cls, preview: Preview) -> Self:
        """A planned request."""
        request = preview.request
        return cls(
            kind=request.kind,
            target=request.target,
            parameters=dict(request.parameters),
            steps=[StepOut.planned(plan) for plan in preview.steps],
            result=preview.result,
        )


class LinkProbeOut(FromDomain):
    """One measurement of a link; bytes per second and seconds."""

    id: int
    link: str
    operation_id: int
    measured_at: datetime
    size_bytes: int
    duration_s: float
    bandwidth_bytes_per_s: float
    rtt_s: float


class NodeHealthOut(BaseModel):
    """What was last seen of a node; a stale one is neither healthy nor dead. `age_s` is null where nothing was."""

    node: str
    site: str
    health: str
    age_s: float | None
