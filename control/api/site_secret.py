"""The secret that sites share: how far its last change is, and a new one."""

from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response
from pydantic import Field

from control.api.dependencies import Admin, Plane, Viewer
from control.api.schemas import FromDomain, Strict
from control.api.show_once import show_once
from control.errors import NotFoundError
from control.services.site_secret import RotationState, load_rotation, start_rotation

router = APIRouter(prefix="/site-secret", tags=["access"])


class RotationIn(Strict):
    """A wish for a new secret, and how long the present one is accepted beside it."""

    reason: str = Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")
    grace_s: int = Field(default=3600, ge=60, le=7 * 86_400, description="Seconds.")


class RotationOut(FromDomain):
    """The newest rotation. It is complete once every agent, node, gateway and relay has the new secret."""

    number: int
    actor: str
    reason: str
    started_at: datetime
    previous_until: datetime = Field(description="Until then the secret before is accepted, and nobody is given up.")
    state: RotationState
    waiting_for: list[str] = Field(description="As `site/program`.", examples=[["fra/fra-md-01"]])
    failed: dict[str, str] = Field(description="What the site's agent met with, by program.")


class RotationStartedOut(RotationOut):
    """A new rotation with its secret, which programs that start later are given as PDD_SITE_SECRET."""

    secret: str | None = Field(
        description="Shown in this answer only; null in a repeated one, as the server does not keep it.",
        examples=["one-time-random-text"],
    )


@router.get("/rotation")
def read_rotation(plane: Plane, _: Viewer) -> RotationOut:
    """How far the newest rotation is."""
    with plane.database.reading() as session:
        rotation = load_rotation(session, plane.now())
    if rotation is None:
        raise NotFoundError("The secret has not been rotated yet.")
    return RotationOut.model_validate(rotation)


@router.post("/rotations", status_code=202)
def rotate_site_secret(
    body: RotationIn, plane: Plane, principal: Admin, request: Request, response: Response
) -> RotationStartedOut:
    """Give all sites a new secret. Programs take it while they run; look at the rotation for who lacks it."""
    rotation, secret = start_rotation(plane, principal, timedelta(seconds=body.grace_s), body.reason)
    response.headers["Location"] = "/api/v1/site-secret/rotation"
    show_once(request, response, "secret")
    return RotationStartedOut(**RotationOut.model_validate(rotation).model_dump(), secret=secret)
