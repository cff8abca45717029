"""Tenants over REST: an API key is in the answer that makes it, and never again."""

from fastapi import APIRouter, Request, Response

from control.api.dependencies import Operator, Plane, Viewer
from control.api.schemas import Page, TenantCreatedOut, TenantIn, TenantOut
from control.api.show_once import show_once
from control.services.fleet import load_tenants
from control.services.tenants import create_tenant, delete_tenant

router = APIRouter(prefix="/tenants", tags=["tenants"])


@router.get("")
def list_tenants(plane: Plane, _: Viewer) -> Page[TenantOut]:
    """All tenants, without their keys."""
    with plane.database.reading() as session:
        return Page(items=[TenantOut.model_validate(tenant) for tenant in load_tenants(session)])


@router.post("", status_code=201)
def add_tenant(
    body: TenantIn, plane: Plane, principal: Operator, request: Request, response: Response
) -> TenantCreatedOut:
    """Let a tenant in. Keep the key: it cannot be read again."""
    tenant, key = create_tenant(plane, principal, body.name, body.classes, salt=body.salt)
    response.headers["Location"] = f"/api/v1/tenants/{tenant.name}"
    show_once(request, response, "key")
    return TenantCreatedOut(name=tenant.name, classes=list(tenant.classes), salt=tenant.salt, key=key)


@router.delete("/{name}", status_code=204)
def remove_tenant(name: str, plane: Plane, principal: Operator) -> None:
    """Shut a tenant out."""
    delete_tenant(plane, principal, name)
