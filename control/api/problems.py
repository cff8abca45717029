"""Refusals as RFC 9457 problem documents."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler, request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from control.domain.policy import FieldProblem
from control.errors import (
    FACES,
    ControlError,
    Face,
    InUseError,
    InvalidError,
    UnauthenticatedError,
    face_of,
)

API_PREFIX = "/api/"
MEDIA_TYPE = "application/problem+json"
_TYPE = "urn:pdd:problem:"

# What the framework itself refuses, beside the refusals of `control.errors.FACES`.
FRAMEWORK_FACES = (
    Face(400, "bad-request", "Bad Request"),
    Face(400, "malformed-json", "The body is not JSON"),
    Face(403, "cross-site", "The request was made by another site's page"),
    Face(404, "not-found", "Not found"),
    Face(405, "method-not-allowed", "Method Not Allowed"),
    Face(413, "content-too-large", "Content Too Large"),
    Face(415, "unsupported-media-type", "Unsupported Media Type"),
)
PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Problem",
    "description": "Why a request was refused (RFC 9457). `type` is stable for programs, the rest is for people.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "examples": [f"{_TYPE}stale-revision"]},
        "title": {"type": "string", "examples": ["It has changed meanwhile"]},
        "status": {"type": "integer", "examples": [412]},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["path", "message"],
                "properties": {"path": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "Refused; a problem document (RFC 9457) says why.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}
PageErrorHandler = Callable[[Request, Exception], Awaitable[Response]]


def problem(
    status: int,
    slug: str,
    title: str,
    detail: str,
    *,
    problems: Sequence[FieldProblem] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem document; `type` is stable for programs, the rest is for people."""
    body: dict[str, Any] = {"type": f"{_TYPE}{slug}", "title": title, "status": status, "detail": detail}
    if problems:
        body["errors"] = [{"path": found.path, "message": found.message} for found in problems]
    # Escaped, as it may quote text that UTF-8 cannot hold.
    return Response(json.dumps(body), status, media_type=MEDIA_TYPE, headers=headers)


def problem_types() -> list[tuple[str, Face]]:
    """Every `type` that an answer may have, with status and title, by status and name."""
    faces = {face.slug: face for face in (*FRAMEWORK_FACES, *FACES.values())}
    return [(f"{_TYPE}{face.slug}", face) for face in sorted(faces.values(), key=lambda one: (one.status, one.slug))]


def problem_of(error: ControlError) -> Response:
    """The problem document of a refusal."""
    face = face_of(error)
    headers = {}
    if isinstance(error, UnauthenticatedError):
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    problems = error.problems if isinstance(error, InvalidError | InUseError) else ()
    return problem(face.status, face.slug, face.title, error.detail, problems=problems, headers=headers)


def install_problems(app: FastAPI, page_error: PageErrorHandler | None = None) -> None:
    """Answer errors below /api/ with problem documents and leave those of pages to `page_error`."""

    async def on_error(request: Request, error: Exception) -> Response:
        if request.url.path.startswith(API_PREFIX) or page_error is None:
            return await _problem_for(request, error)
        return await page_error(request, error)

    for kind in (ControlError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, on_error)


async def _problem_for(request: Request, error: Exception) -> Response:
    is_api = request.url.path.startswith(API_PREFIX)
    if isinstance(error, ControlError):
        return problem_of(error)
    if isinstance(error, RequestValidationError):
        return _validation_problem(error) if is_api else await request_validation_exception_handler(request, error)
    if isinstance(error, HTTPException):
        return _http_problem(error) if is_api else await http_exception_handler(request, error)
    return problem(500, "internal", "Something went wrong", "The server has logged what happened.")


def _http_problem(error: HTTPException) -> Response:
    phrase = HTTPStatus(error.status_code).phrase
    slug = phrase.lower().replace(" ", "-")
    return problem(error.status_code, slug, phrase, str(error.detail), headers=error.headers)


def _validation_problem(error: RequestValidationError) -> Response:
    found = error.errors()
    if any(item["type"] == "json_invalid" for item in found):
        return problem(400, "malformed-json", "The body is not JSON", "The body is not JSON.")
    # Only path and message go back: the input may hold a secret.
    problems = [FieldProblem(".".join(str(part) for part in item["loc"][1:]), item["msg"]) for item in found]
    return problem(422, "invalid", "The request is not valid", "Some fields are not valid.", problems=problems)
