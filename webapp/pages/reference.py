"""The reference of the REST API, made from its own OpenAPI document, with a command for every operation."""

import json
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from control.api.dependencies import Plane, Viewer
from webapp.render import PagesDep

router = APIRouter(include_in_schema=False)

_METHODS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One operation as the page shows it."""

    anchor: str
    method: str
    path: str
    summary: str
    parameters: list[dict[str, str]]
    fields: list[dict[str, str]]
    responses: list[tuple[str, str]]
    command: str


@router.get("/docs")
def reference_page(request: Request, pages: PagesDep, plane: Plane, principal: Viewer) -> HTMLResponse:
    """Every operation by group; loads nothing from anywhere."""
    base = f"{request.url.scheme}://{request.url.netloc}"
    groups = endpoints_by_tag(request.app.openapi(), base)
    return pages.page(request, plane, principal, "docs", "docs.html", groups=groups)


def endpoints_by_tag(document: dict[str, Any], base: str) -> dict[str, list[Endpoint]]:
    """Operations of an OpenAPI document in its own order, under their first tag."""
    groups: dict[str, list[Endpoint]] = {}
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                endpoint = _endpoint(document, base, path, method, item[method])
                groups.setdefault((item[method].get("tags") or ["other"])[0], []).append(endpoint)
    return groups


def _endpoint(document: dict[str, Any], base: str, path: str, method: str, operation: dict[str, Any]) -> Endpoint:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    body = _resolved(document, body) if body else None
    return Endpoint(
        anchor=f"{method}{path}".replace("/", "-").translate({ord("{"): None, ord("}"): None}),
        method=method.upper(),
        path=path,
        summary=(operation.get("description") or operation.get("summary", "")).replace("`", ""),
        parameters=[
            _parameter(parameter) for parameter in operation.get("parameters", []) if parameter["in"] != "cookie"
        ],
        fields=_fields(document, body) if body else [],
        responses=[(status, reply.get("description", "")) for status, reply in operation.get("responses", {}).items()],
        command=_command(document, base, path, method, body),
    )


def _parameter(parameter: dict[str, Any]) -> dict[str, str]:
    return {
        "name": parameter["name"],
        "where": parameter["in"],
        "type": _type(parameter.get("schema", {})),
        "need": "required" if parameter.get("required") else "optional",
        "help": parameter.get("description") or parameter.get("schema", {}).get("description", ""),
    }


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, str]]:
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "where": "body",
            "type": _type(_resolved(document, inner)),
            "need": "required" if name in required else "optional",
            "help": inner.get("description", ""),
        }
        for name, inner in schema.get("properties", {}).items()
    ]


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(inner) for inner in schema["anyOf"]))
    return str(schema.get("type") or schema.get("$ref", "any").rsplit("/", 1)[-1])


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def _command(document: dict[str, Any], base: str, path: str, method: str, body: dict[str, Any] | None) -> str:
    lines = [f"curl -sS {base}{path}", '-H "Authorization: Bearer $(cat .data/operator-token)"']
    if method != "get":
        lines[0] = f"curl -sS -X {method.upper()} {base}{path}"
    if body is not None:
        sample = json.dumps({name: _sample(_resolved(document, inner)) for name, inner in _wanted(body).items()})
        lines += ['-H "Content-Type: application/json"', f"-d '{sample}'"]
    return " \\\n  ".join(lines)


def _wanted(body: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = body.get("properties", {})
    required = [name for name in properties if name in body.get("required", [])]
    return {name: properties[name] for name in required} or properties


def _sample(schema: dict[str, Any]) -> Any:
    if schema.get("examples"):
        return schema["examples"][0]
    return {"string": "…", "integer": 1, "number": 1.0, "boolean": True, "object": {}, "array": []}.get(
        _type(schema).split(" or ")[0]
    )
