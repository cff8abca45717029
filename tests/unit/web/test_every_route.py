"""What a request with no credentials, or too few, gets from every route there is: a new one cannot be forgotten."""

import re

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from control.services.access import Principal, Role, sign_in
from control.services.access_users import create_user
from webapp.pages.session import OPEN_PATHS

SAFE = {"GET", "HEAD", "OPTIONS"}
# The application has the same routes in every test, and its document takes seconds to make.
FOUND: list[tuple[str, str]] = []
# Open to everybody, as somebody has to be able to sign in, and as a machine looks after this one.
PUBLIC = {"/login", "/health", "/metrics", "/openapi.json", "/static/{path:path}"}
# What a viewer may change: their own way in.
OWN = {
    ("POST", "/login"),
    ("POST", "/logout"),
    ("PUT", "/api/v1/users/me/password"),
    ("POST", "/api/v1/tokens"),
    ("DELETE", "/api/v1/tokens/{token_id}"),
    ("DELETE", "/api/v1/sessions/{session_id}"),
    ("POST", "/access/own/tokens"),
    ("POST", "/access/own/tokens/revoke"),
    ("POST", "/access/own/sessions/end"),
    ("POST", "/access/own/password"),
}
BODIES = [
    ({}, {"json": {}}),
    ({}, {"data": {"a": "b"}}),
    ({}, {"content": b"\x00"}),
    ({"Content-Type": "application/json"}, {"content": b"{"}),
    ({"Content-Type": "multipart/form-data"}, {"content": b"{"}),
    ({"Idempotency-Key": "k"}, {"json": {}}),
    ({"Idempotency-Key": "k" * 201}, {"json": {}}),
]
SAMPLES = {"number": "1", "alert_id": "1", "silence_id": "1", "token_id": "1", "session_id": "0123456789abcdef"}


def every_route(routes, prefix=""):
    """All (method, path) of an application, those of included routers too; what is of another kind fails the test."""
    for route in routes:
        included = getattr(route, "include_context", None)
        if included is not None:
            yield from every_route(route.original_router.routes, prefix + included.prefix)
        else:
            assert isinstance(route, Route | APIRoute), f"what can {route!r} do?"
            for method in sorted(route.methods):
                yield method, prefix + route.path


@pytest.fixture
def routes(app):
    if not FOUND:
        FOUND.extend(documented_routes(app))
    return FOUND


def documented_routes(app):
    found = set(every_route(app.routes))
    listed = {
        (method.upper(), path)
        for path, item in app.openapi()["paths"].items()
        for method in item
        if method in {"get", "put", "post", "patch", "delete"}
    }
    assert listed <= {(method, re.sub(r":\w+}", "}", path)) for method, path in found}
    assert {("POST", "/login"), ("POST", "/live/knob"), ("POST", "/live/demo"), ("POST", "/api/v1/users")} <= found
    return sorted(found)


def sample(path):
    return re.sub(r"{(\w+)(:\w+)?}", lambda match: SAMPLES.get(match[1], "ams"), path)


def is_sent_away(reply):
    return reply.status_code in {401, 403} or (
        reply.status_code == 303 and reply.headers["location"].startswith("/login")
    )


@pytest.mark.parametrize(
    "credentials",
    [{}, {"Authorization": "Bearer guessed"}, {"Authorization": "Basic YTpi"}, {"Cookie": "pdd_session=guessed"}],
    ids=["none", "token", "basic", "cookie"],
)
async def test_no_route_that_changes_anything_answers_without_credentials(visitor, routes, credentials):
    changing = [(method, path) for method, path in routes if method not in SAFE]
    assert len(changing) > 15
    for method, path in changing:
        for more, body in BODIES if not credentials else BODIES[:1]:
            reply = await visitor.request(method, sample(path), headers={**credentials, **more}, **body)
            is_no_form = path in OPEN_PATHS and reply.status_code == 400
            assert is_sent_away(reply) or is_no_form, (method, path, reply.status_code)
            assert "set-cookie" not in reply.headers or path == "/logout", (method, path)


async def test_no_route_shows_anything_without_credentials(visitor, routes):
    for method, path in routes:
        if method == "GET" and path not in PUBLIC:
            reply = await visitor.get(sample(path))
            assert is_sent_away(reply), (path, reply.status_code)


@pytest.fixture
async def viewer(visitor, plane):
    _, password = create_user(plane, Principal("admin", Role.ADMIN), "vera", Role.VIEWER)
    signed_in = sign_in(plane, "vera", password, "127.0.0.1")
    visitor.cookies.set("pdd_session", signed_in.secret)
    visitor.headers["X-CSRF-Token"] = signed_in.principal.csrf_token
    return visitor


async def test_a_viewer_changes_nothing_but_their_own_way_in(viewer, routes):
    for method, path in routes:
        if method not in SAFE and (method, path) not in OWN:
            reply = await viewer.request(method, sample(path), json={})
            assert reply.status_code == 403, (method, path, reply.status_code)


async def test_a_browsers_change_needs_the_token_of_its_session(viewer, routes):
    for token in ("", "guessed"):
        viewer.headers["X-CSRF-Token"] = token
        for method, path in routes:
            if method not in SAFE and path not in OPEN_PATHS:
                reply = await viewer.request(method, sample(path), json={})
                assert reply.status_code == 403, (method, path, reply.status_code)
    assert (await viewer.post("/logout", data={"csrf": "guessed"})).status_code == 403


async def test_every_answer_has_the_security_headers(visitor, routes):
    for method, path in routes:
        reply = await visitor.request(method, sample(path))
        for name in ("content-security-policy", "x-content-type-options", "referrer-policy", "cache-control"):
            assert name in reply.headers, (method, path, name)
