"""Alert rules over REST: built-in ones can be changed and brought back, others made and deleted."""

from fastapi import APIRouter, Response

from control.api.alerts_schemas import Name, RuleFields, RuleIn, RuleOut
from control.api.dependencies import Operator, Plane, Viewer
from control.api.paging import Paged
from control.api.preconditions import Expected, set_etag
from control.api.schemas import Page
from control.services import alert_rules

router = APIRouter(prefix="/alert-rules", tags=["alerts"])


@router.get("")
def list_rules(plane: Plane, _: Viewer, paging: Paged) -> Page[RuleOut]:
    """Rules by name."""
    with plane.database.reading() as session:
        known = alert_rules.load_rules(session)
    rules = [one for one in known if paging.after is None or one.rule.name > paging.after]
    return paging.page(rules[: paging.fetch], lambda one: one.rule.name, RuleOut.of)


@router.get("/{name}")
def read_rule(name: Name, plane: Plane, _: Viewer, response: Response) -> RuleOut:
    """One rule."""
    with plane.database.reading() as session:
        stated = alert_rules.load_rule(session, name)
    return _out(stated, response)


@router.post("", status_code=201)
def create_rule(body: RuleIn, plane: Plane, principal: Operator, response: Response) -> RuleOut:
    """Make a rule on a metric of `/alert-metrics`."""
    stated = alert_rules.create_rule(plane, principal, body.named(body.name))
    response.headers["Location"] = f"/api/v1/alert-rules/{body.name}"
    return _out(stated, response)


@router.put("/{name}")
def replace_rule(
    name: Name, body: RuleFields, plane: Plane, principal: Operator, response: Response, *, expected: Expected
) -> RuleOut:
    """Change a rule; a built-in one keeps its metric."""
    return _out(alert_rules.replace_rule(plane, principal, body.named(name), expected), response)


@router.delete("/{name}", status_code=204)
def delete_rule(name: Name, plane: Plane, principal: Operator, expected: Expected) -> None:
    """Delete a rule; a built-in one becomes again what it was."""
    alert_rules.delete_rule(plane, principal, name, expected)


def _out(stated: alert_rules.StatedRule, response: Response) -> RuleOut:
    set_etag(response, stated.version)
    return RuleOut.of(stated)
