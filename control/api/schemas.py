"""What the API takes and gives."""

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from control.api.moments import Moment
from control.domain.policy import FieldChange, unknown_fields
from control.services.rollout import GatewayStatus, RolloutState
from control.store.tables import PolicyRevisionRow

T = TypeVar("T")
MAX_NUMBER = 2**31 - 1
Document = dict[str, Any]


class Strict(BaseModel):
    """A body whose misspelt fields are refused instead of ignored."""

    model_config = ConfigDict(extra="forbid")


class Page(BaseModel, Generic[T]):
    """Part of a list; `next_cursor` asks for the next part and is null at the end."""

    items: list[T]
    next_cursor: str | None = None


class FromDomain(BaseModel):
    """Read off a domain object's or a row's attributes."""

    model_config = ConfigDict(from_attributes=True)


class TenantOut(FromDomain):
    """Who may use the gateways; `salt` is null where the policy decides."""

    name: str
    classes: list[str]
    salt: bool | None


class TenantCreatedOut(TenantOut):
    """A new tenant with its API key."""

    key: str | None = Field(
        description="Shown in this answer only; null in a repeated one, as the server keeps no more than its hash."
    )


class TenantIn(Strict):
    """A wish for a tenant; the first of its classes is the one it usually has."""

    name: str = Field(max_length=63)
    classes: list[str] = Field(default=["default"], min_length=1, max_length=20)
    salt: bool | None = None


class GatewayOut(FromDomain):
    """One entrance, and the revision it was last seen to run."""

    name: str
    site: str
    url: str
    state: RolloutState
    revision: int | None
    age_s: float | None
    error: str
    drift: bool
    canary_revision: int | None = Field(description="What some of its requests run under during a roll-out.")
    converged_s: float | None = Field(description="From the moment the revision was applied until it was confirmed.")

    @classmethod
    def of(cls, url: str, status: GatewayStatus) -> "GatewayOut":
        """A gateway with its status."""
        return cls(
            name=status.gateway,
            site=status.site,
            url=url,
            state=status.state,
            revision=status.revision,
            age_s=status.age_s,
            error=status.error,
            drift=status.is_drifted,
            canary_revision=status.canary_revision,
            converged_s=status.converged_s,
        )


class RevisionIn(Strict):
    """A new revision: a whole document, or changes by dotted path to the active one, and paths to take out of it."""

    reason: str = Field(min_length=1, max_length=500)
    document: Document | None = None
    changes: Document | None = Field(default=None, examples=[{"routing.relay_when_transfer_exceeds_s": 0.8}])
    remove: list[str] = Field(
        default=[],
        max_length=200,
        description="What is taken out has its default again, or in an override the general value.",
        examples=[["overrides.sites.fra"]],
    )
    base_revision: int | None = Field(
        default=None,
        ge=1,
        le=MAX_NUMBER,
        description="The active revision that you looked at. An If-Match header says the same.",
    )
    apply: bool = False


class ReasonIn(Strict):
    """Why."""

    reason: str = Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")


class RevisionOut(FromDomain):
    """One immutable revision."""

    number: int
    document: Document
    reason: str
    actor: str
    created_at: datetime
    base_revision: int | None
    unknown_fields: list[str]

    @classmethod
    def of(cls, row: PolicyRevisionRow) -> "RevisionOut":
        """A stored revision."""
        return cls(
            number=row.number,
            document=row.document,
            reason=row.reason,
            actor=row.actor,
            created_at=row.created_at,
            base_revision=row.base_number,
            unknown_fields=unknown_fields(row.document),
        )


class ChangeOut(FromDomain):
    """One difference between two documents."""

    path: str
    before: Any
    after: Any

    @classmethod
    def of(cls, change: FieldChange) -> "ChangeOut":
        """A difference."""
        return cls(path=change.path, before=change.before, after=change.after)


class PreviewOut(BaseModel):
    """What a revision would be; nothing is stored."""

    document: Document
    changes: list[ChangeOut]


class DiffOut(BaseModel):
    """What differs between two revisions in effect, field by field."""

    before: int
    after: int
    changes: list[ChangeOut]


class EffectiveFieldOut(FromDomain):
    """What holds for a field, and where it comes from: `site …`, `model …`, `general` or `default`."""

    path: str
    value: Any
    origin: str


class MergedOut(BaseModel):
    """The policy as it holds at a site, for a model, or both."""

    revision: int
    site: str | None
    model: str | None
    document: Document
    fields: list[EffectiveFieldOut]


class ActiveOut(BaseModel):
    """What should run, since when, and what does."""

    revision: int
    document: Document
    reason: str
    actor: str
    applied_at: datetime
    gateways: list[GatewayOut]


class AnnotationIn(Strict):
    """A remark on a moment, now where none is given."""

    text: str = Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")
    at: Moment | None = None


class AnnotationOut(FromDomain):
    """A remark on a moment, with who made it."""

    id: int
    at: datetime
    text: str
    actor: str
    created_at: datetime


class SchemaOut(BaseModel):
    """The policy's JSON Schema, and its fields as a table."""

    json_schema: Document
    fields: list[Document]


class DemoTraffic(Strict):
    """Whether the demo traffic should run."""

    running: StrictBool
