"""Objectives over REST: what was promised, how fast its budget burns, what is left."""

from datetime import datetime

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from control.api.alerts_schemas import Name, Text, Word
from control.api.dependencies import Operator, Plane, Viewer
from control.api.paging import Paged
from control.api.preconditions import Expected, set_etag
from control.api.schemas import Page, Strict
from control.domain.burn_rate import BUDGET_WINDOW_S, BurnState, PairBurn
from control.domain.slo import Indicator, Slo
from control.services import slos
from control.services.plane import ControlPlane

router = APIRouter(prefix="/slos", tags=["slos"])


class SloFields(Strict):
    """An objective without its name: `target` of the events are good. Good TTFT and TPOT are within the threshold."""

    indicator: Indicator
    target: float = Field(gt=0, le=slos.MAX_TARGET, examples=[0.99])
    threshold_s: float | None = Field(default=None, gt=0, le=slos.MAX_THRESHOLD_S, examples=[15.0])
    service_class: Word | None = Field(default=None, description="Null: every class.")
    site: Word | None = Field(default=None, description="Null: every site.")
    description: Text = ""

    def named(self, name: str) -> Slo:
        """The objective under a name."""
        return Slo(name, self.indicator, self.target, self.threshold_s, self.service_class, self.site)


class SloIn(SloFields):
    """A new objective."""

    name: str = Field(max_length=63, examples=["gold-ttft-p99"])


class BurnOut(BaseModel):
    """Burn rates of one pair of windows, seconds; null where a window holds no events."""

    pair: str
    long_s: int
    short_s: int
    factor: float
    long_rate: float | None
    short_rate: float | None
    state: BurnState

    @classmethod
    def of(cls, burn: PairBurn) -> "BurnOut":
        """The rates of a pair."""
        pair = burn.pair
        return cls(
            pair=pair.name,
            long_s=pair.long_s,
            short_s=pair.short_s,
            factor=pair.factor,
            long_rate=burn.long_rate,
            short_rate=burn.short_rate,
            state=burn.state,
        )


class SloOut(BaseModel):
    """An objective and how it is kept; `source` is `policy` or `explicit`, and what is unknown is never good."""

    name: str
    indicator: Indicator
    target: float
    threshold_s: float | None
    service_class: str | None
    site: str | None
    description: str
    source: str
    updated_at: datetime | None
    updated_by: str
    state: BurnState
    burn: list[BurnOut]
    budget_window_s: int
    budget_events: int
    budget_bad_events: int
    budget_left: float | None

    @classmethod
    def of(cls, stated: slos.StatedSlo, status: slos.SloStatus) -> "SloOut":
        """An objective with its status."""
        slo = stated.slo
        return cls(
            name=slo.name,
            indicator=slo.indicator,
            target=slo.target,
            threshold_s=slo.threshold_s,
            service_class=slo.service_class,
            site=slo.site,
            description=stated.description,
            source="policy" if stated.updated_at is None else "explicit",
            updated_at=stated.updated_at,
            updated_by=stated.updated_by,
            state=status.state,
            burn=[BurnOut.of(burn) for burn in status.pairs],
            budget_window_s=BUDGET_WINDOW_S,
            budget_events=status.budget.total,
            budget_bad_events=status.budget.bad,
            budget_left=status.budget_left,
        )


@router.get("")
def list_slos(plane: Plane, _: Viewer, paging: Paged) -> Page[SloOut]:
    """Objectives by name, with their burn rates and budgets."""
    with plane.database.reading() as session:
        known = [one for one in slos.load_slos(session) if paging.after is None or one.slo.name > paging.after]
        stated = known[: paging.fetch]
        statuses = slos.load_statuses(session, [one.slo for one in stated], plane.now().timestamp())
    return paging.page(stated, lambda one: one.slo.name, lambda one: SloOut.of(one, statuses[one.slo.name]))


@router.get("/{name}")
def read_slo(name: Name, plane: Plane, _: Viewer, response: Response) -> SloOut:
    """One objective with its burn rates and budget."""
    with plane.database.reading() as session:
        stated = slos.load_slo(session, name)
    return _out(plane, stated, response)


@router.post("", status_code=201)
def create_slo(body: SloIn, plane: Plane, principal: Operator, response: Response) -> SloOut:
    """Set an objective; one of the same name that the policy states no longer counts."""
    stated = slos.create_slo(plane, principal, body.named(body.name), body.description)
    response.headers["Location"] = f"/api/v1/slos/{body.name}"
    return _out(plane, stated, response)


@router.put("/{name}")
def replace_slo(
    name: Name, body: SloFields, plane: Plane, principal: Operator, response: Response, *, expected: Expected
) -> SloOut:
    """Change an objective that somebody set."""
    return _out(plane, slos.replace_slo(plane, principal, body.named(name), body.description, expected), response)


@router.delete("/{name}", status_code=204)
def delete_slo(name: Name, plane: Plane, principal: Operator, expected: Expected) -> None:
    """Take back an objective that somebody set."""
    slos.delete_slo(plane, principal, name, expected)


def _out(plane: ControlPlane, stated: slos.StatedSlo, response: Response) -> SloOut:
    set_etag(response, stated.version)
    with plane.database.reading() as session:
        statuses = slos.load_statuses(session, [stated.slo], plane.now().timestamp())
    return SloOut.of(stated, statuses[stated.slo.name])
