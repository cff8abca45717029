"""A POST that is repeated with its key: one effect, one answer."""

import json
import threading
from dataclasses import replace

import pytest
from alembic import command
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlmodel import select

from control.api.app import create_api
from control.api.dependencies import SESSION_COOKIE, Operator, Plane
from control.api.idempotency import MAX_BODY_BYTES, Idempotency, without
from control.api.show_once import show_once
from control.errors import AnswerLostError, IdempotencyKeyReusedError, InvalidError, RequestInProgressError
from control.services.access import Role, sign_in_with_key
from control.services.credentials import ensure_admin, ensure_token, issue_login_key
from control.services.idempotency import CLAIM_LIFETIME, KEPT, Answer, claim_request, keep_answer, release_claim
from control.services.plane import ControlPlane
from control.settings import Settings
from control.store.idempotency import Claim, current_claim
from control.store.migrate import alembic_config, upgrade_schema
from control.store.session import open_database
from control.store.tables import IdempotencyRow, SettingRow

API = "/api/v1"
ANSWER = Answer(201, {"location": "/x"}, "{}")


def rows(plane):
    with plane.database.reading() as session:
        return session.exec(select(IdempotencyRow)).all()


def write(plane, claim, value=1):
    """A change under a claim, as a handler makes it."""
    before = current_claim.set(claim)
    try:
        with plane.database.unit_of_work(plane.send) as work:
            work.session.merge(SettingRow(key="k", value=value, updated_at=plane.now()))
    finally:
        current_claim.reset(before)


def setting(plane):
    with plane.database.reading() as session:
        row = session.get(SettingRow, "k")
        return row.value if row else None


def test_the_first_answer_is_given_again_for_a_day(plane, clock):
    claim = claim_request(plane, "olga", "k", b"request")
    assert isinstance(claim, Claim)
    keep_answer(plane, claim, ANSWER)
    clock.advance(seconds=KEPT.total_seconds() - 1)
    assert claim_request(plane, "olga", "k", b"request") == ANSWER
    clock.advance(seconds=1)
    assert isinstance(claim_request(plane, "olga", "k", b"another request"), Claim)
    assert len(rows(plane)) == 1


def test_what_has_expired_is_swept_with_the_next_key(plane, clock):
    for number in range(3):
        keep_answer(plane, claim_request(plane, "olga", f"k{number}", b"request"), ANSWER)
    clock.advance(seconds=KEPT.total_seconds())
    claim_request(plane, "otto", "k", b"request")
    assert [row.actor for row in rows(plane)] == ["otto"]


def test_a_key_belongs_to_one_request_of_one_actor(plane):
    keep_answer(plane, claim_request(plane, "olga", "k", b"request"), ANSWER)
    with pytest.raises(IdempotencyKeyReusedError):
        claim_request(plane, "olga", "k", b"another request")
    assert isinstance(claim_request(plane, "otto", "k", b"another request"), Claim)
    assert isinstance(claim_request(plane, "olga", "k2", b"another request"), Claim)


def test_a_request_that_runs_is_not_run_again(plane):
    claim_request(plane, "olga", "k", b"request")
    with pytest.raises(RequestInProgressError):
        claim_request(plane, "olga", "k", b"request")


def test_a_request_that_died_before_any_change_is_run_again_and_its_ghost_changes_nothing(plane, clock):
    ghost = claim_request(plane, "olga", "k", b"request")
    clock.advance(seconds=CLAIM_LIFETIME.total_seconds())
    second = claim_request(plane, "olga", "k", b"request")
    with pytest.raises(RequestInProgressError):
        write(plane, ghost, "ghost")
    assert setting(plane) is None
    keep_answer(plane, ghost, replace(ANSWER, status=299))
    release_claim(plane, ghost, refused=True)
    write(plane, second, "second")
    keep_answer(plane, second, ANSWER)
    assert setting(plane) == "second"
    assert claim_request(plane, "olga", "k", b"request") == ANSWER


def test_a_request_that_died_after_its_change_is_not_run_again(plane, clock):
    claim = claim_request(plane, "olga", "k", b"request")
    write(plane, claim)
    release_claim(plane, claim, refused=False)
    clock.advance(seconds=CLAIM_LIFETIME.total_seconds())
    with pytest.raises(AnswerLostError):
        claim_request(plane, "olga", "k", b"request")


def test_a_request_that_changed_nothing_frees_its_key(plane):
    for refused in (True, False):
        claim = claim_request(plane, "olga", "k", f"request {refused}".encode())
        release_claim(plane, claim, refused=refused)
    assert rows(plane) == []


def test_of_many_at_the_same_moment_one_runs(plane):
    count = 6
    together, outcomes = threading.Barrier(count), []

    def ask():
        together.wait()
        try:
            outcomes.append(type(claim_request(plane, "olga", "k", b"request")).__name__)
        except RequestInProgressError:
            outcomes.append("in progress")

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["Claim"] + ["in progress"] * (count - 1)


def test_only_hashes_of_keys_and_requests_are_kept(plane):
    claim_request(plane, "olga", "a secret key", b"a secret request")
    assert "secret" not in json.dumps([row.model_dump(mode="json") for row in rows(plane)])


def test_secrets_are_taken_out_of_what_is_kept():
    assert json.loads(without('{"name": "a", "key": "secret"}', ("key",))) == {"name": "a", "key": None}
    assert without("no JSON", ()) == "no JSON"


@pytest.fixture
def counted():
    """How often each test handler has run."""
    return {"calls": 0, "entered": threading.Event(), "go_on": threading.Event()}


@pytest.fixture
def app(seeded, counted):
    ensure_token(seeded, "one", Role.OPERATOR, "one secret")
    ensure_token(seeded, "two", Role.OPERATOR, "two secret")
    app = create_api(Settings.from_environment({}), seeded)

    @app.post(f"{API}/test/change")
    async def change(request: Request, plane: Plane, _: Operator, fail: str = ""):
        body = await request.body()
        counted["calls"] += 1
        if fail == "refused":
            raise InvalidError
        if fail == "crash":
            raise RuntimeError("crash before")
        with plane.database.unit_of_work(plane.send) as work:
            work.session.merge(SettingRow(key="k", value=counted["calls"], updated_at=plane.now()))
        if fail == "late":
            raise RuntimeError("crash after")
        return {"call": counted["calls"], "length": len(body)}

    @app.post(f"{API}/test/slow", status_code=202)
    def slow(response: Response, _: Operator):
        counted["calls"] += 1
        counted["entered"].set()
        assert counted["go_on"].wait(30)
        response.headers["Location"] = f"{API}/operations/7"
        return {"call": counted["calls"]}

    @app.post(f"{API}/test/secret")
    def secret(request: Request, response: Response, _: Operator):
        show_once(request, response, "key")
        return {"name": "a", "key": "planted secret"}

    return app


def client(app, bearer="one secret", **more):
    return TestClient(app, headers={"Authorization": f"Bearer {bearer}"}, raise_server_exceptions=False, **more)


def post(caller, path, key="k", body=b"{}", **headers):
    return caller.post(f"{API}/test/{path}", content=body, headers={"Idempotency-Key": key, **headers})


def slug(answer):
    return answer.json()["type"].removeprefix("urn:pdd:problem:")


def test_a_repeated_post_is_answered_from_the_store(app, counted):
    first, again = post(client(app), "change"), post(client(app), "change")
    assert first.json() == again.json() == {"call": 1, "length": 2}
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert counted["calls"] == 1
    assert post(client(app), "change", key="other").json()["call"] == 2
    assert client(app).post(f"{API}/test/change").json()["call"] == 3


def test_another_body_query_or_path_is_another_request(app):
    post(client(app), "change")
    for path, body in (("change", b"[]"), ("change?fail=", b"{}"), ("secret", b"{}")):
        answer = post(client(app), path, body=body)
        assert (answer.status_code, slug(answer)) == (422, "idempotency-key-reused")


def test_keys_of_two_callers_have_nothing_to_do_with_each_other(app, counted):
    assert post(client(app), "change").json()["call"] == 1
    assert post(client(app, "two secret"), "change", body=b"[]").json()["call"] == 2


def test_a_repetition_during_the_first_is_told_to_come_back(app, counted):
    answers = {}
    thread = threading.Thread(target=lambda: answers.update(first=post(client(app), "slow")))
    thread.start()
    try:
        assert counted["entered"].wait(30)
        during = post(client(app), "slow")
    finally:
        counted["go_on"].set()
        thread.join()
    assert (during.status_code, slug(during), during.headers["retry-after"]) == (409, "request-in-progress", "1")
    after = post(client(app), "slow")
    assert (after.status_code, after.json(), after.headers["location"]) == (202, {"call": 1}, f"{API}/operations/7")
    assert answers["first"].json() == {"call": 1}


@pytest.mark.parametrize(("fail", "status"), [("refused", 422), ("crash", 500)])
def test_a_post_that_changed_nothing_may_be_tried_again(app, counted, fail, status):
    for number in (1, 2):
        assert post(client(app), f"change?fail={fail}").status_code == status
        assert counted["calls"] == number


def test_a_post_that_crashed_after_its_change_is_not_tried_again(app, counted, clock):
    assert post(client(app), "change?fail=late").status_code == 500
    assert slug(post(client(app), "change?fail=late")) == "request-in-progress"
    clock.advance(seconds=CLAIM_LIFETIME.total_seconds())
    assert slug(post(client(app), "change?fail=late")) == "answer-lost"
    assert counted["calls"] == 1


def test_a_secret_is_in_the_first_answer_only(app, seeded):
    first, again = post(client(app), "secret"), post(client(app), "secret")
    assert (first.json()["key"], again.json()) == ("planted secret", {"name": "a", "key": None})
    assert first.headers["cache-control"] == again.headers["cache-control"] == "no-store"
    assert "planted" not in "".join(row.body for row in rows(seeded))


@pytest.mark.parametrize("key", ["", "a" * 201, "tab\there"])
def test_a_key_that_is_none_is_refused(app, counted, key):
    answer = post(client(app), "change", key=key)
    assert (answer.status_code, slug(answer), counted["calls"]) == (422, "invalid", 0)


def test_a_body_that_could_fill_the_memory_is_refused(app, counted):
    answer = post(client(app), "change", body=b" " * (MAX_BODY_BYTES + 1))
    assert (answer.status_code, slug(answer), counted["calls"]) == (413, "body-too-large", 0)


def test_a_caller_nobody_knows_leaves_nothing_behind(app, seeded):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"{SESSION_COOKIE}=wrong"}):
        answer = TestClient(app).post(f"{API}/test/change", headers={"Idempotency-Key": "k", **headers})
        assert (answer.status_code, slug(answer)) == (401, "unauthenticated")
    assert rows(seeded) == []


def test_a_browser_has_keys_too_and_needs_its_token_first(app, seeded, counted):
    ensure_admin(seeded)
    signed_in = sign_in_with_key(seeded, issue_login_key(seeded))
    browser = TestClient(app, cookies={SESSION_COOKIE: signed_in.secret})
    assert slug(post(browser, "change")) == "csrf-failed"
    assert rows(seeded) == []
    for _ in range(2):
        answer = post(browser, "change", **{"X-CSRF-Token": signed_in.principal.csrf_token})
        assert answer.json()["call"] == 1


def test_other_methods_and_other_paths_are_left_alone(seeded):
    app = FastAPI()
    app.add_middleware(Idempotency, plane=seeded)
    app.put(f"{API}/thing")(lambda: {"a": 1})
    app.post("/form")(lambda: {"a": 1})
    caller = TestClient(app, headers={"Idempotency-Key": ""})
    assert caller.put(f"{API}/thing").json() == caller.post("/form").json() == {"a": 1}
    assert rows(seeded) == []


def test_revisions_outlive_the_change_of_their_table(new_database_url):
    database = open_database(new_database_url())
    upgrade_schema(database, "0008")
    revisions = """insert into policy_revision
        (number, document, reason, actor, created_at, base_number, idempotency_key) values
        (1, '{}', 'first', 'olga', '2030-01-01 00:00:00', null, 'k'),
        (2, '{"a": 1}', 'second', 'olga', '2030-01-02 00:00:00', 1, null)"""
    activations = """insert into policy_activation (id, revision, actor, reason, activated_at) values
        (7, 2, 'olga', 'why', '2030-01-02 00:00:00')"""
    with database.engine.begin() as connection:
        for statement in (revisions, activations):
            connection.exec_driver_sql(statement)
    upgrade_schema(database)
    with database.engine.begin() as connection:
        command.downgrade(alembic_config(connection), "0008")
    upgrade_schema(database)
    query = """select number, base_number, policy_revision.reason, id
        from policy_revision left join policy_activation on revision = number order by number"""
    with database.engine.connect() as connection:
        assert connection.execute(text(query)).all() == [(1, None, "first", None), (2, 1, "second", 7)]
    plane = ControlPlane(database, lambda _: None)
    assert isinstance(claim_request(plane, "olga", "k", b"request"), Claim)
    database.engine.dispose()
