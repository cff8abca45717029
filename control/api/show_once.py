"""Answers that hold a secret: nobody may keep them, neither a cache nor the store of repeated answers."""

from fastapi import Request, Response

_STATE = "secret_fields"


def show_once(request: Request, response: Response, *fields: str) -> None:
    """Mark top-level fields of this answer as secret."""
    response.headers["Cache-Control"] = "no-store"
    setattr(request.state, _STATE, fields)


def secret_fields(state: dict[str, object]) -> tuple[str, ...]:
    """The fields that a handler marked, from the state in its ASGI scope."""
    marked = state.get(_STATE, ())
    return marked if isinstance(marked, tuple) else ()
