import re

import pytest

from control.services.credentials import issue_login_key
from webapp.pages.session import local_path
from webapp.security import CONTENT_SECURITY_POLICY


async def test_a_page_sends_whoever_is_not_signed_in_to_the_door(visitor):
    reply = await visitor.get("/")
    assert (reply.status_code, reply.headers["location"]) == (303, "/login")
    reply = await visitor.get("/docs")
    assert reply.headers["location"] == "/login?next=/docs"


@pytest.mark.parametrize(
    "path", ["/live/snapshot", "/live/events", "/live/knob", "/live/demo", "/live/knob/state", "/live/pulse"]
)
async def test_live_data_needs_a_session(visitor, path):
    reply = await visitor.get(path)
    assert reply.status_code == 401
    assert reply.headers["hx-redirect"] == "/login"


async def test_following_a_sign_in_link_changes_nothing_until_the_button(visitor, plane):
    key = issue_login_key(plane)
    for _ in range(2):
        page = await visitor.get("/login", params={"key": key})
        assert page.status_code == 200
        assert "set-cookie" not in page.headers
    reply = await visitor.post("/login", data={"key": key})
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
    assert (await visitor.get("/")).status_code == 200
    again = await visitor.post("/login", data={"key": key})
    assert again.status_code == 401
    assert "used or has expired" in again.text


async def test_a_wrong_password_is_told_at_its_field(visitor):
    reply = await visitor.post("/login", data={"username": "admin", "password": "wrong"})
    assert reply.status_code == 401
    assert 'id="login-error" role="alert">Unknown account or wrong password.' in reply.text
    assert 'value="admin"' in reply.text


@pytest.mark.parametrize(
    ("method", "fields", "message"),
    [
        ("POST", {"username": "a" * 201, "password": "x"}, "The name is too long"),
        ("POST", {"username": "a", "password": "x" * 1001}, "The password is too long"),
        ("POST", {"key": "k" * 201}, "The key of the sign-in link is too long"),
        ("POST", {"username": "a", "password": "x", "next": "/" * 501}, "The address to go on to is too long"),
        ("GET", {"key": "k" * 201}, "The key of the sign-in link is too long"),
        ("GET", {"next": "/" * 501}, "The address to go on to is too long"),
    ],
)
async def test_a_field_that_is_too_long_brings_the_form_back(visitor, method, fields, message):
    sent = {"params": fields} if method == "GET" else {"data": fields}
    reply = await visitor.request(method, "/login", **sent)
    assert reply.status_code == 422
    assert message in reply.text
    assert 'name="password"' in reply.text


async def test_a_form_that_no_page_sends_is_refused_with_a_sentence(visitor, admin):
    for path, sent in (
        ("/logout", {"data": {"csrf": "c" * 201}}),
        ("/live/demo", {"data": {"running": "perhaps"}}),
        ("/login", {"files": {"username": b"a file"}}),
    ):
        reply = await visitor.post(path, **sent)
        assert (reply.status_code, reply.text) == (422, "Some fields of the form are not valid."), path


async def test_too_many_wrong_passwords_are_told_when_to_come_back(visitor):
    for _ in range(5):
        assert (await visitor.post("/login", data={"username": "admin", "password": "wrong"})).status_code == 401
    reply = await visitor.post("/login", data={"username": "admin", "password": "wrong"})
    assert reply.status_code == 429
    assert 0 < int(reply.headers["retry-after"]) <= 300
    assert "try again" in reply.text


@pytest.mark.parametrize(
    ("wanted", "reached"),
    [
        ("/docs", "/docs"),
        ("/", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/x\r\nSet-Cookie: a=b", "/"),
        ("", "/"),
    ],
)
def test_signing_in_leads_only_to_paths_of_this_server(wanted, reached):
    assert local_path(wanted) == reached


async def test_signing_out_needs_the_token_and_ends_the_session(admin):
    token = admin.headers.pop("X-CSRF-Token")
    assert (await admin.post("/logout")).status_code == 403
    assert (await admin.get("/")).status_code == 200
    secret = admin.cookies["pdd_session"]
    assert (await admin.post("/logout", data={"csrf": token})).headers["location"] == "/login"
    admin.cookies.set("pdd_session", secret)
    assert (await admin.get("/")).status_code == 303


async def test_every_reply_carries_the_policy_that_forbids_foreign_and_inline_scripts(admin):
    for path in ("/", "/login", "/api/v1/sites", "/nowhere"):
        assert (await admin.get(path)).headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "script-src 'self';" in CONTENT_SECURITY_POLICY


async def test_pages_hold_no_inline_script_style_attribute_or_foreign_address(admin):
    for path in ("/", "/docs", "/live/knob", "/live/knob/state", "/live/demo", "/login?key=a", "/requests"):
        page = (await admin.get(path)).text
        assert not re.search(r"<script(?![^>]*(src=|application/json))", page)
        assert not re.search(r"\sstyle=|\son\w+=", page)
        assert not re.search(r'(src|href|action)="(https?:)?//', page)


async def test_every_link_of_a_page_leads_somewhere(admin):
    for page in ("/", "/docs", "/requests"):
        text = (await admin.get(page)).text
        for address in set(re.findall(r'(?:href|src)="(/[^"#]*)"', text)):
            assert (await admin.get(address)).status_code == 200, address


async def test_a_form_of_another_site_is_refused(admin):
    reply = await admin.post("/live/demo", data={"running": "false"}, headers={"Origin": "https://evil.example"})
    assert reply.status_code == 403
    reply = await admin.post("/login", data={"key": "x"}, headers={"Sec-Fetch-Site": "cross-site"})
    assert reply.status_code == 403


async def test_the_theme_comes_with_the_page_so_that_nothing_flashes(admin):
    admin.cookies.set("pdd_theme", "light")
    assert '<html lang="en" data-theme="light">' in (await admin.get("/")).text
    admin.cookies.set("pdd_theme", '"><script>')
    assert '<html lang="en" data-theme="auto">' in (await admin.get("/")).text


async def test_snapshot_says_so_when_redis_is_away(admin):
    reply = await admin.get("/live/snapshot")
    assert reply.status_code == 503
    assert "Redis" in reply.json()["detail"]


async def test_an_unknown_page_is_a_sentence(admin):
    reply = await admin.get("/nowhere")
    assert (reply.status_code, reply.text) == (404, "Not Found")


async def test_the_reference_shows_a_command_for_every_operation(admin):
    document = (await admin.get("/openapi.json")).json()
    page = (await admin.get("/docs")).text
    operations = [(method, path) for path, item in document["paths"].items() for method in item]
    assert ("post", "/api/v1/policies/revisions") in operations
    assert page.count("curl -sS") == len(operations)
    for _, path in operations:
        assert f'<span class="path">{path}</span>' in page
