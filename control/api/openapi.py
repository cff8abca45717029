"""Completes the OpenAPI document with what holds for all operations: scopes, idempotency keys, problem documents."""

from typing import Any

from fastapi import FastAPI

from control.api.idempotency import KEY_HEADER, MAX_KEY_LENGTH, REPLAYED_HEADER
from control.api.openapi_examples import add_examples
from control.api.problems import MEDIA_TYPE, PROBLEM_SCHEMA
from control.domain.access import required_scope

API_ROOT = "/api/v1"
_METHODS = ("get", "put", "post", "patch", "delete")
_DESCRIPTION = """Everything the pages do, a program can do too: send a token as `Authorization: Bearer …`.

- Refusals are problem documents (RFC 9457); `GET /api/v1/problems` lists every `type`.
- Lists have `next_cursor`, which as `cursor` asks for the next part and is null at the end.
- What can be edited has an `ETag`; a change names it in `If-Match`.
- A POST with an `Idempotency-Key` happens once, however often it is sent within a day.
- Long work answers 202 with the `Location` of its operation.
- Times are ISO 8601 with a zone; units are in the names.
"""
_KEY_PARAMETER = {
    "name": KEY_HEADER,
    "in": "header",
    "required": False,
    "description": "The same key with the same request within 24 hours gives the first answer again, marked"
    f" `{REPLAYED_HEADER}: true`; with another request it is refused. Secrets in a repeated answer are null.",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": "^[ -~]+$"},
    "example": "5f1c2a4e-apply-threshold",
}
_UNAVAILABLE = {
    "description": "The database cannot be reached or is busy; `Retry-After` says when to ask again.",
    "headers": {"Retry-After": {"schema": {"type": "string"}, "description": "Seconds."}},
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def install_openapi(app: FastAPI) -> None:
    """Let the application's document be complete from its first reading on."""
    made_by_fastapi = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = completed(made_by_fastapi())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with what holds for all operations; changes it in place."""
    document["info"]["description"] = _DESCRIPTION
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = PROBLEM_SCHEMA
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                _complete(item[method], method, path)
    add_examples(document, API_ROOT)
    return document


def _complete(operation: dict[str, Any], method: str, path: str) -> None:
    scope = required_scope(method.upper(), path)
    operation["security"] = [
        {name: [scope.value] for name in alternative} for alternative in operation.get("security", [])
    ]
    operation["x-pdd-scope"] = scope.value
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]  # refused fields are a problem document like everything else that is refused
    responses.setdefault("503", _UNAVAILABLE)
    if method == "post":
        operation.setdefault("parameters", []).append(_KEY_PARAMETER)
