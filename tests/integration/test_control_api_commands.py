"""`pdd user`, `token`, `session`, `audit` and `tenant` against a real server; no secret may be found anywhere after."""

import contextlib
import json
import logging
import os
import socket
import sqlite3
import threading

import httpx
import pytest
import uvicorn

from control.api.app import create_api
from control.cli import main
from control.cli.data_folder import DataFolder, Running
from control.domain.policy import DEFAULT_POLICY_DOCUMENT
from control.domain.topology import FleetSnapshot, Gateway, Site
from control.services.access import Role, sign_in, sign_in_with_key
from control.services.credentials import ensure_admin, ensure_token, issue_login_key
from control.services.fleet import seed_fleet
from control.services.plane import ControlPlane
from control.services.policies import found_policy
from control.settings import Settings
from control.store.migrate import upgrade_schema
from control.store.session import open_database

FLEET = FleetSnapshot(
    sites=(Site("ams", "Amsterdam"),),
    gateways=(Gateway("ams-gw-01", "ams", "http://127.0.0.1:8000"),),
    model="smollm2-135m",
    kv_bytes_per_token=23_040,
    block_tokens=64,
)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    DataFolder(folder).path.mkdir()
    return folder


@pytest.fixture
def plane(data):
    database = open_database(f"sqlite:///{data / 'pdd.sqlite3'}")
    upgrade_schema(database)
    made = ControlPlane(database, lambda _: None)
    seed_fleet(made, FLEET, "test")
    found_policy(made, "test", DEFAULT_POLICY_DOCUMENT, "First start")
    yield made
    database.engine.dispose()


@pytest.fixture
def server(plane, data):
    """The API alone on a port of its own, announced in the data folder."""
    ensure_token(plane, "local-operator", Role.OPERATOR, DataFolder(data).secrets().operator_token)
    app = create_api(Settings.from_environment({}), plane)
    listener = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    DataFolder(data).announce(Running(os.getpid(), url, "http://127.0.0.1:1"))
    yield url
    running.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture
def pdd(server, data, monkeypatch, capsys):
    """Runs a command; (exit code, standard output, standard error)."""
    monkeypatch.delenv("PDD_TOKEN", raising=False)
    monkeypatch.delenv("PDD_DATABASE_URL", raising=False)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["pdd", *arguments, "--data", str(data)])
        code = main.main()
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def decoded(result):
    code, out, error = result
    assert code == 0, error
    return json.loads(out)


def test_an_account_from_its_beginning_to_its_end(pdd, plane):
    made = decoded(pdd("user", "create", "olga", "--role", "operator", "--json"))
    assert sign_in(plane, "olga", made["password"], "127.0.0.1").principal.role is Role.OPERATOR
    assert [one["username"] for one in decoded(pdd("user", "list", "--json"))["items"]] == ["olga"]
    assert decoded(pdd("user", "role", "olga", "viewer", "--json"))["role"] == "viewer"
    code, out, _ = pdd("user", "reset-password", "olga", "--reason", "forgotten")
    fresh = out.split()[-1]
    assert code == 0
    signed_in = sign_in(plane, "olga", fresh, "127.0.0.1")
    [one] = decoded(pdd("session", "list", "--user", "olga", "--json"))["items"]
    assert one["id"] == signed_in.principal.session_id
    assert pdd("session", "end", one["id"])[0] == 0
    assert decoded(pdd("session", "list", "--json"))["items"] == []
    assert decoded(pdd("user", "create", "otto", "--role", "admin", "--json"))["role"] == "admin"
    assert pdd("user", "disable", "olga", "--reason", "left")[1] == "olga is shut out\n"
    assert "disabled" in pdd("user", "list")[1]
    assert pdd("user", "enable", "olga")[0] == 0
    code, _, error = pdd("user", "disable", "otto")
    assert (code, "last active administrator" in error) == (1, True)


def test_a_token_is_printed_once_and_works_until_it_is_revoked(pdd, server, monkeypatch):
    secret = pdd("token", "create", "ci", "--scope", "read", "--scope", "access:admin", "--days", "1")[1].strip()
    me = httpx.get(f"{server}/api/v1/me", headers={"Authorization": f"Bearer {secret}"}, trust_env=False).json()
    assert me["scopes"] == ["read", "access:admin"]
    monkeypatch.setenv("PDD_TOKEN", secret)
    [own] = [one for one in decoded(pdd("token", "list", "--json"))["items"] if one["name"] == "ci"]
    assert own["last_used_at"] is not None
    assert secret not in pdd("token", "list", "--all")[1]
    assert pdd("token", "revoke", str(own["id"]))[0] == 0
    code, _, error = pdd("token", "list")
    assert (code, "revoked or expired" in error) == (1, True)


def test_the_token_made_for_one_command_is_gone_after_it(pdd):
    pdd("user", "list")
    tokens = decoded(pdd("token", "list", "--all", "--json"))["items"]
    [own] = [one for one in tokens if one["revoked_at"] is None and one["name"].startswith("local-")
             and one["name"] != "local-operator"]  # fmt: skip
    assert own["created_by"].startswith("local:")
    assert any(one["revoked_at"] for one in tokens if one["name"].startswith("local-"))


def test_the_trail_is_listed_exported_and_checked(pdd, data, tmp_path):
    decoded(pdd("tenant", "create", "acme", "--json"))
    assert "acme" in pdd("tenant", "list")[1]
    assert pdd("tenant", "delete", "acme")[0] == 0
    events = decoded(pdd("audit", "list", "--target", "tenant/", "--json"))["items"]
    assert [event["action"] for event in events] == ["tenant.delete", "tenant.create"]
    code, out, _ = pdd("audit", "verify")
    head = out.split()[-1]
    assert (code, "hold" in out) == (0, True)
    export = tmp_path / "audit.jsonl"
    export.write_text(pdd("audit", "export")[1])
    assert pdd("audit", "verify", "--file", str(export), "--head", head)[0] == 0
    export.write_text(export.read_text().replace("tenant.create", "tenant.forged"))
    code, out, _ = pdd("audit", "verify", "--file", str(export))
    assert (code, "is not what was written" in out) == (1, True)
    with contextlib.closing(sqlite3.connect(data / "pdd.sqlite3")) as connection:
        connection.execute("drop trigger audit_event_update")
        connection.execute("update audit_event set actor = 'nobody' where action = 'tenant.create'")
        connection.commit()
    verdict = pdd("audit", "verify", "--json")
    assert (verdict[0], json.loads(verdict[1])["broken"]["fault"]) == (1, "changed")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("user", "create", "Bad Name"), "Name"),
        (("user", "role", "nobody", "viewer"), "nobody"),
        (("token", "create", "x", "--scope", "everything"), "not valid"),
        (("session", "end", "0123456789abcdef"), "no such session"),
        (("audit", "verify", "--head", "x"), "ID:HASH"),
        (("audit", "verify", "--file", "/nowhere"), "/nowhere"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_1(pdd, arguments, told):
    code, out, error = pdd(*arguments)
    assert (code, out) == (1, "")
    assert told.lower() in error.lower()
    assert "Traceback" not in error


def test_a_program_hears_of_a_change_over_http_and_goes_on_where_it_stopped(server, data, pdd):
    headers = {"Authorization": f"Bearer {DataFolder(data).secrets().operator_token}"}
    with httpx.Client(base_url=f"{server}/api/v1", headers=headers, trust_env=False, timeout=60) as client:
        pdd("tenant", "create", "acme")
        [made] = client.get("/audit", params={"action": "tenant.create"}).json()["items"]
        before = {"Last-Event-ID": str(made["id"] - 1)}
        with client.stream("GET", "/events", headers=before, params={"target": "tenant/"}) as reply:
            assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            lines = reply.iter_lines()
            assert next(line for line in lines if line.startswith("id: ")) == f"id: {made['id']}"
            assert json.loads(next(lines).removeprefix("data: "))["target"] == "tenant/acme"
            pdd("tenant", "delete", "acme")
            assert "tenant.delete" in next(line for line in lines if line.startswith("data: "))
        assert client.get("/events", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/events", headers={"Last-Event-ID": "x"}).status_code == 422


def test_no_secret_is_found_where_none_belongs(pdd, plane, server, data, caplog):
    caplog.set_level(logging.DEBUG)
    admin_password = ensure_admin(plane)
    made = decoded(pdd("user", "create", "olga", "--json"))
    secrets = {
        "operator token": DataFolder(data).secrets().operator_token,
        "first password": admin_password or "",
        "password": made["password"],
        "token": pdd("token", "create", "ci", "--scope", "read")[1].strip(),
        "tenant key": pdd("tenant", "create", "acme")[1].strip(),
        "sign-in key": issue_login_key(plane),
    }
    secrets["reset password"] = decoded(pdd("user", "reset-password", "olga", "--json"))["password"]
    signed_in = sign_in_with_key(plane, issue_login_key(plane))
    secrets |= {"session": signed_in.secret}
    secrets["own password"] = "my own long password"
    headers = {"Authorization": f"Bearer {secrets['token']}", "Idempotency-Key": "planted idempotency key"}
    with httpx.Client(base_url=f"{server}/api/v1", trust_env=False) as client:
        answers = [client.get(path, headers=headers).text for path in ("/me", "/tokens", "/audit", "/audit/export")]
        browser = {"Cookie": f"pdd_session={signed_in.secret}", "X-CSRF-Token": signed_in.principal.csrf_token or ""}
        for name in ("current", "new"):
            body = {"current": secrets["own password"], "new": "x", name: secrets["own password"]}
            answers.append(client.put("/users/me/password", headers=browser, json=body).text)
        for wrong in (secrets["password"], secrets["own password"]):
            answers.append(client.get("/me", headers={"Authorization": f"Bearer {wrong}"}).text)
            answers.append(client.post("/users", headers=headers, json={"username": wrong, "role": wrong}).text)
        repeated = {"Idempotency-Key": "a key", **browser}
        wish = {"name": "once", "scopes": ["read"]}
        first, again = (client.post("/tokens", headers=repeated, json=wish) for _ in range(2))
        secrets["repeated token"] = first.json()["secret"]
        assert again.json()["secret"] is None
        answers += [again.text, client.get("/../openapi.json").text]
    for command in (("audit", "list"), ("audit", "export"), ("token", "list", "--all"), ("user", "list")):
        answers.append("".join(map(str, pdd(*command))))
    with contextlib.closing(sqlite3.connect(data / "pdd.sqlite3")) as connection:
        places = {"answers": "\n".join(answers), "log": caplog.text, "database": "\n".join(connection.iterdump())}
    assert all(len(secret) >= 20 for secret in secrets.values())
    for place, content in places.items():
        for name, secret in secrets.items():
            assert secret not in content, f"{name} in the {place}"
    assert "planted idempotency key" not in places["database"]
    assert "olga" in places["answers"]
    assert "olga" in places["database"]
