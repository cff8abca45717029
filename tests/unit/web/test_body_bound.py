"""Bodies are refused where they pass the bound, and nobody reads the rest."""

import pytest

from control.api.body_bound import MAX_BYTES, MAX_DOCUMENT_BYTES

PIECE = b" " * 65_536


class Body:
    """A body that comes in pieces, without a length; knows how much of it was taken."""

    def __init__(self, size_bytes):
        self.left_bytes = self.size_bytes = size_bytes

    @property
    def taken_bytes(self):
        return self.size_bytes - self.left_bytes

    async def __aiter__(self):
        while self.left_bytes > 0:
            piece = PIECE[: self.left_bytes]
            self.left_bytes -= len(piece)
            yield piece


@pytest.mark.parametrize(
    ("method", "path", "limit_bytes"),
    [
        ("POST", "/api/v1/tokens", MAX_BYTES),
        ("POST", "/api/v1/nodes.csv", MAX_DOCUMENT_BYTES),
        ("PUT", "/api/v1/fleet", MAX_DOCUMENT_BYTES),
        ("POST", "/live/knob", MAX_BYTES),
        ("POST", "/login", MAX_BYTES),
    ],
)
@pytest.mark.parametrize("with_length", [True, False], ids=["stated", "unstated"])
async def test_a_body_over_the_bound_is_refused_before_it_is_read(admin, method, path, limit_bytes, with_length):
    body = Body(limit_bytes * 3)
    headers = {"Content-Type": "application/x-www-form-urlencoded" if path in {"/live/knob", "/login"} else "text/csv"}
    if with_length:
        headers["Content-Length"] = str(body.size_bytes)
    reply = await admin.request(method, path, content=body, headers=headers, params={"reason": "x"})
    assert reply.status_code == 413, reply.text
    assert reply.headers["connection"] == "close"
    assert str(limit_bytes) in reply.text
    assert body.taken_bytes <= (0 if with_length else limit_bytes + len(PIECE))
    if path.startswith("/api/"):
        assert reply.json()["type"] == "urn:pdd:problem:body-too-large"


async def test_a_repeatable_request_over_the_bound_is_refused_the_same(admin):
    reply = await admin.post("/api/v1/tokens", content=Body(2 * MAX_BYTES), headers={"Idempotency-Key": "one"})
    assert (reply.status_code, reply.json()["type"]) == (413, "urn:pdd:problem:body-too-large")


async def test_a_length_of_any_digits_is_refused_and_no_crash(admin):
    reply = await admin.post("/api/v1/tokens", content=Body(1), headers={"Content-Length": "9" * 5000})
    assert reply.status_code == 413


async def test_a_body_at_the_bound_reaches_its_handler(admin):
    reply = await admin.post("/api/v1/tokens", content=Body(MAX_BYTES), headers={"Content-Type": "application/json"})
    assert reply.status_code == 400


async def test_nobody_unknown_is_told_more_than_that(visitor):
    reply = await visitor.post("/api/v1/tokens", content=Body(2 * MAX_BYTES))
    assert reply.status_code == 401
