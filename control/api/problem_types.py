"""The list of refusals, for programs that act on their types."""

from fastapi import APIRouter
from pydantic import BaseModel, Field

from control.api.dependencies import Viewer
from control.api.problems import problem_types
from control.api.schemas import Page

router = APIRouter(tags=["problems"])


class ProblemTypeOut(BaseModel):
    """One kind of refusal; `type` never changes its meaning."""

    type: str = Field(examples=["urn:pdd:problem:stale-revision"])
    status: int = Field(examples=[412])
    title: str


@router.get("/problems")
def list_problems(_: Viewer) -> Page[ProblemTypeOut]:
    """Every `type` of a problem document, by status."""
    return Page(
        items=[ProblemTypeOut(type=name, status=face.status, title=face.title) for name, face in problem_types()]
    )
