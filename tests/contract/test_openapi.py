"""The REST API against its own OpenAPI document: what it promises, and what a fuzzer gets out of it."""

import itertools
import shutil
from datetime import UTC, datetime

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import negative_data_rejection, positive_data_acceptance

from control.api.app import create_api
from control.api.openapi_examples import BODY_EXAMPLES
from control.api.problems import problem_types
from control.domain.access import Scope
from control.domain.policy import DEFAULT_POLICY_DOCUMENT
from control.domain.topology import FleetSnapshot, Gateway, Link, Node, Role, Site
from control.errors import FACES
from control.services import access
from control.services.credentials import ensure_admin, ensure_token
from control.services.fleet import seed_fleet
from control.services.plane import ControlPlane
from control.services.policies import found_policy
from control.settings import Settings
from control.store.migrate import upgrade_schema
from control.store.session import open_database

API = "/api/v1"
FLEET = FleetSnapshot(
    sites=(Site("ams", "Amsterdam"), Site("fra", "Frankfurt")),
    nodes=(
        Node("ams-p-01", "ams", Role.PREFILL, "http://127.0.0.1:9001", "emulated", "smollm2-135m"),
        Node("fra-md-01", "fra", Role.MAIN, "http://127.0.0.1:9003", "emulated", "smollm2-135m"),
    ),
    links=(Link("ams-fra", "ams", "fra", 5_000_000.0, 0.03, 1_500_000.0, "127.0.0.1", 9100, "http://127.0.0.1:9101"),),
    gateways=(Gateway("ams-gw-01", "ams", "http://127.0.0.1:8000"),),
    model="smollm2-135m",
    kv_bytes_per_token=23_040,
    block_tokens=64,
)
# A document says what form a request has, not that a node of that name exists or a cursor is one of ours. And a query
# that names a parameter twice is taken, though the document could be read to forbid it.
NOT_CHECKED = [positive_data_acceptance, negative_data_rejection]
# A name with a line break in it finds no route at all.
TURNED_AWAY = {401, 404}
# A silence ends within 30 days, which no example can know.
NEAR_FUTURE = {"/silences"}
# Streams that do not end by themselves have tests of their own.
ENDLESS = {f"{API}/events"}


def seeded(url):
    database = open_database(url)
    plane = ControlPlane(database, lambda _: None)
    seed_fleet(plane, FLEET, "test")
    found_policy(plane, "test", DEFAULT_POLICY_DOCUMENT, "First start")
    ensure_admin(plane)
    return plane


@pytest.fixture(scope="module")
def migrated_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "control.sqlite3"
    database = open_database(f"sqlite:///{path}")
    upgrade_schema(database)
    database.engine.dispose()
    return path


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def plane(request, migrated_file, tmp_path):
    if request.param == "sqlite":
        url = f"sqlite:///{shutil.copy(migrated_file, tmp_path)}"
    else:
        url = request.getfixturevalue("postgresql").new_migrated_database()
    made = seeded(url)
    yield made
    made.database.engine.dispose()


@pytest.fixture
def app(plane):
    return create_api(Settings.from_environment({}), plane)


@pytest.fixture
def document(app):
    return app.openapi()


@pytest.fixture
def callers(plane):
    """Makes an administrator's token; a fresh one for each operation, as a fuzzer may find out how to revoke it."""
    numbers = itertools.count(1)

    def make():
        secret = f"secret {next(numbers)}"
        ensure_token(plane, "fuzzer", access.Role.ADMIN, secret)
        return {"Authorization": f"Bearer {secret}"}

    return make


def operations(document):
    for path, item in document["paths"].items():
        for method in item:
            yield method, path, item[method]


def fuzz(app, headers, mode, examples, expected=None):
    """Call every operation so many times; fails with what is no answer of the document. The calls by operation."""
    found = [one.ok() for one in schemathesis.openapi.from_asgi("/openapi.json", app).get_all_operations()]
    return {
        operation.label: fuzz_operation(operation, headers(), mode, examples, expected)
        for operation in found
        if operation.path not in ENDLESS
    }


def fuzz_operation(operation, headers, mode, examples, expected):
    calls = 0

    @seed(1)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case):
        nonlocal calls
        answer = case.call_and_validate(headers=headers, excluded_checks=NOT_CHECKED)
        assert expected is None or answer.status_code in expected, (operation.label, answer.status_code)
        calls += 1

    call()
    return calls


def test_every_answer_to_an_administrator_is_in_the_document(app, callers):
    calls = fuzz(app, callers, GenerationMode.POSITIVE, 2)
    assert min(calls.values()) >= 1
    assert len(calls) > 40


def test_nobody_gets_an_answer(app):
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        assert fuzz(app, lambda: {"Authorization": "Bearer guessed"}, mode, 1, TURNED_AWAY)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_many_requests_of_an_administrator_get_only_answers_of_the_document(app, callers, mode):
    fuzz(app, callers, mode, 15)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_many_requests_of_nobody_are_all_turned_away(app, mode):
    fuzz(app, dict, mode, 8, TURNED_AWAY)


def test_every_operation_says_which_scope_it_needs_and_how_it_may_be_refused(document):
    for method, path, operation in operations(document):
        assert path.startswith(API), path
        assert operation["x-pdd-scope"] in set(Scope), (method, path)
        assert operation["security"], (method, path)
        assert operation["description"], (method, path)
        assert operation["tags"], (method, path)
        assert "application/problem+json" in operation["responses"]["4XX"]["content"], (method, path)
        assert "422" not in operation["responses"] or "HTTPValidationError" not in str(operation), (method, path)
        keys = [parameter for parameter in operation.get("parameters", []) if parameter["name"] == "Idempotency-Key"]
        assert len(keys) == (method == "post"), (method, path)


def test_every_body_has_an_example_that_the_server_takes_as_one(app, document, callers):
    wanted = {
        (method, path.removeprefix(API))
        for method, path, operation in operations(document)
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    }
    assert wanted >= set(BODY_EXAMPLES)
    with TestClient(app) as client:
        for method, path in sorted(wanted):
            names = {"username": "admin", "number": "1", "transfer_id": "5f1c"}
            operation = document["paths"][API + path][method]
            body = operation["requestBody"]["content"]["application/json"]["example"]
            query = {
                one["name"]: "slow link"
                for one in operation.get("parameters", [])
                if one.get("in") == "query" and one["required"]
            }
            address = API + path.format_map({**names, "name": body.get("name", "ams")})
            answer = client.request(method, address, json=body, params=query, headers=callers())
            fields = answer.json().get("errors", []) if answer.status_code == 422 else []
            assert not fields or path in NEAR_FUTURE, (method, path, answer.text)
            assert answer.status_code < 500, (method, path, answer.text)


def test_every_type_of_a_problem_is_listed_once(app, callers):
    with TestClient(app, headers=callers()) as client:
        items = client.get(f"{API}/problems").json()["items"]
        types = [item["type"] for item in items]
        assert len(set(types)) == len(types)
        assert {f"urn:pdd:problem:{face.slug}" for face in FACES.values()} <= set(types)
        assert [name for name, _ in problem_types()] == types
        for method, path in (("get", "/nowhere"), ("delete", "/sites"), ("get", "/sites/none"), ("post", "/sites")):
            answer = client.request(method, API + path, content=b"{", headers={"Content-Type": "application/json"})
            assert answer.json()["type"] in types, answer.text
        assert client.get(f"{API}/sites", params={"cursor": "\0"}).json()["type"] in types


def test_the_api_alone_has_security_headers_too_and_turns_pages_of_other_sites_away(app, callers):
    with TestClient(app, headers=callers()) as client:
        for path in ("/sites", "/nowhere"):
            headers = client.get(API + path).headers
            assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
            assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
            assert "strict-transport-security" not in headers
        foreign = client.post(f"{API}/tokens", json={}, headers={"Origin": "https://evil.example"})
        assert (foreign.status_code, foreign.json()["type"]) == (403, "urn:pdd:problem:cross-site")
        assert "content-security-policy" in foreign.headers
    with TestClient(app, base_url="https://testserver") as client:
        assert "max-age" in client.get(f"{API}/sites").headers["strict-transport-security"]


def test_a_nul_in_a_text_is_refused_and_no_crash(app, callers):
    with TestClient(app, headers=callers(), raise_server_exceptions=False) as client:
        for path, body in (
            ("/policies/revisions/1/apply", {"reason": "a\0b"}),
            ("/users/admin/password", {"reason": "a\0b"}),
        ):
            answer = client.post(API + path, json=body)
            assert answer.status_code < 500, answer.text
        for path in ("/users/%00", "/sites/%00", "/audit?actor=%00", "/audit?target=%00%25", "/sessions?user=%00"):
            assert client.get(API + path).status_code < 500, path


def test_a_moment_at_the_end_of_the_calendar_is_refused_and_no_crash(app, callers):
    with TestClient(app, headers=callers(), raise_server_exceptions=False) as client:
        for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2030-01-01T00:00:00", "soon"):
            assert client.get(f"{API}/audit", params={"since": moment}).status_code == 422, moment
        now = datetime.now(UTC).isoformat()
        assert client.get(f"{API}/audit", params={"since": now}).json()["items"] == []
