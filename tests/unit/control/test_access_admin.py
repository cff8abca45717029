"""Accounts, sessions and tokens: who may make, change and end which."""

import re
import threading
from datetime import timedelta

import pytest
from alembic import command
from sqlmodel import select

from control.domain.access import ROLE_SCOPES, Role, Scope, in_order, is_username, required_scope, role_for
from control.domain.versions import ANY_VERSION
from control.errors import (
    ConflictError,
    ControlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    StaleRevisionError,
    TooManyAttemptsError,
    UnauthenticatedError,
)
from control.services.access import (
    Principal,
    find_session,
    find_token,
    require_scope,
    sign_in,
    sign_in_with_key,
    touch_token,
)
from control.services.access_sessions import end_session, load_sessions
from control.services.access_tokens import create_token, load_token, load_tokens, revoke_token
from control.services.access_users import (
    change_own_password,
    change_user,
    create_user,
    load_user,
    load_users,
    reset_password,
    user_version,
)
from control.services.audit import load_events
from control.services.credentials import ensure_admin, ensure_token, issue_login_key
from control.store.migrate import alembic_config, upgrade_schema
from control.store.session import open_database
from control.store.tables import ApiTokenRow, LoginFailureRow, UserRow, WebSessionRow

HERE = "127.0.0.1"


@pytest.fixture
def passwords(plane):
    return {"admin": ensure_admin(plane)}


@pytest.fixture
def admin(plane, passwords):
    return sign_in(plane, "admin", passwords["admin"], HERE).principal


@pytest.fixture
def olga(plane, admin, passwords):
    _, passwords["olga"] = create_user(plane, admin, "olga", Role.OPERATOR)
    return sign_in(plane, "olga", passwords["olga"], HERE).principal


def change(plane, principal, username, **wanted):
    return change_user(plane, principal, username, ANY_VERSION, **wanted)


def by_token(plane, secret):
    with plane.database.reading() as session:
        return find_token(session, secret, plane.now())


def sessions(plane, principal, **more):
    with plane.database.reading() as session:
        return load_sessions(session, principal, plane.now(), 100, **more)


def actions(plane):
    with plane.database.reading() as session:
        return [(event.action, event.target) for event in load_events(session, 100)][::-1]


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/api/v1/users", Scope.READ),
        ("HEAD", "/api/v1/policies/active", Scope.READ),
        ("POST", "/api/v1/policies/revisions", Scope.POLICIES_WRITE),
        ("POST", "/live/knob", Scope.POLICIES_WRITE),
        ("POST", "/api/v1/operations", Scope.OPERATIONS_WRITE),
        ("POST", "/api/v1/rollouts/1/abort", Scope.POLICIES_WRITE),
        ("POST", "/api/v1/alerts/1/acknowledge", Scope.ALERTS_WRITE),
        ("PUT", "/api/v1/alert-rules/slow", Scope.ALERTS_WRITE),
        ("POST", "/api/v1/silences", Scope.ALERTS_WRITE),
        ("DELETE", "/api/v1/webhooks/1", Scope.ALERTS_WRITE),
        ("PUT", "/api/v1/slos/ttft", Scope.ALERTS_WRITE),
        ("POST", "/api/v1/annotations", Scope.ANNOTATIONS_WRITE),
        ("PATCH", "/api/v1/users/olga", Scope.ACCESS_ADMIN),
        ("PUT", "/api/v1/users/me/password", Scope.READ),
        ("POST", "/api/v1/users/me", Scope.ACCESS_ADMIN),
        ("DELETE", "/api/v1/tokens/1", Scope.READ),
        ("DELETE", "/api/v1/nodes/a", Scope.FLEET_WRITE),
        ("POST", "/anything/new", Scope.FLEET_WRITE),
    ],
)
def test_every_request_needs_one_scope(method, path, scope):
    assert required_scope(method, path) is scope


def test_roles_are_sets_of_scopes_that_grow():
    assert ROLE_SCOPES[Role.VIEWER] < ROLE_SCOPES[Role.OPERATOR] < ROLE_SCOPES[Role.ADMIN] == frozenset(Scope)
    assert role_for([Scope.READ]) is Role.VIEWER
    assert role_for([Scope.POLICIES_WRITE]) is Role.OPERATOR
    assert role_for([Scope.ACCESS_ADMIN, Scope.READ]) is Role.ADMIN
    assert in_order([Scope.ACCESS_ADMIN, Scope.READ, Scope.READ]) == [Scope.READ, Scope.ACCESS_ADMIN]


@pytest.mark.parametrize("name", ["", "me", "system", "Olga", "a b", "-a", "a" * 64, "token:x", "a/b", "a\n", "é"])
def test_names_that_would_mislead_are_no_usernames(plane, admin, name):
    assert not is_username(name)
    with pytest.raises(InvalidError):
        create_user(plane, admin, name, Role.VIEWER)


def test_a_new_account_signs_in_with_the_password_that_is_shown_once(plane, admin, olga, passwords):
    assert (olga.name, olga.role, olga.is_person) == ("olga", Role.OPERATOR, True)
    assert len(passwords["olga"]) >= 20
    with pytest.raises(ConflictError):
        create_user(plane, admin, "olga", Role.VIEWER)
    with plane.database.reading() as session:
        assert [row.username for row in load_users(session, 9)] == ["admin", "olga"]
        assert [row.username for row in load_users(session, 9, "admin")] == ["olga"]
        assert load_user(session, "olga").password_hash.startswith("$argon2id$")
        with pytest.raises(NotFoundError):
            load_user(session, "otto")
    assert ("access.create_user", "user/olga") in actions(plane)


def test_only_whoever_administers_access_touches_accounts(plane, olga):
    program = Principal("token:x", Role.ADMIN, scopes=frozenset({Scope.READ, Scope.FLEET_WRITE}))
    for principal in (olga, program):
        for attempt in (
            lambda who: create_user(plane, who, "otto", Role.VIEWER),
            lambda who: change(plane, who, "admin", disabled=True),
            lambda who: reset_password(plane, who, "admin"),
        ):
            with pytest.raises(ForbiddenError):
                attempt(principal)


def test_nobody_lets_an_account_in_that_may_do_more_than_they(plane, admin, olga):
    program = Principal("token:x", Role.ADMIN, scopes=frozenset({Scope.READ, Scope.ACCESS_ADMIN}))
    create_user(plane, program, "vera", Role.VIEWER)
    reset_password(plane, program, "vera")
    change(plane, program, "olga", disabled=True)
    for attempt in (
        lambda: create_user(plane, program, "otto", Role.ADMIN),
        lambda: create_user(plane, program, "otto", Role.OPERATOR),
        lambda: change(plane, program, "vera", role=Role.OPERATOR),
        lambda: change(plane, program, "vera", role=Role.ADMIN),
        lambda: change(plane, program, "olga", disabled=False),
        lambda: reset_password(plane, program, "olga"),
        lambda: reset_password(plane, program, "admin"),
    ):
        with pytest.raises(ForbiddenError, match="more than you may"):
            attempt()
    assert change(plane, program, "olga", role=Role.VIEWER, disabled=False).role == Role.VIEWER
    with plane.database.reading() as session:
        assert [(row.username, row.role) for row in load_users(session, 9)] == [
            ("admin", "admin"),
            ("olga", "viewer"),
            ("vera", "viewer"),
        ]


def test_whoever_is_shut_out_is_out_at_once_and_may_come_back(plane, admin, olga, passwords):
    secret = sign_in(plane, "olga", passwords["olga"], HERE).secret
    key = issue_login_key(plane, "olga")
    _, token = create_token(plane, olga, "ci", [Scope.READ], None)
    assert change(plane, admin, "olga", disabled=True, reason="left").disabled_at == plane.now()
    for attempt in (
        lambda: sign_in(plane, "olga", passwords["olga"], HERE),
        lambda: sign_in_with_key(plane, key),
        lambda: by_token(plane, token),
    ):
        with pytest.raises(UnauthenticatedError):
            attempt()
    with plane.database.reading() as session, pytest.raises(UnauthenticatedError):
        find_session(session, secret, plane.now())
    change(plane, admin, "olga", disabled=False)
    assert sign_in(plane, "olga", passwords["olga"], HERE).principal.name == "olga"
    assert by_token(plane, token).granted == {Scope.READ}
    with plane.database.reading() as session:
        event = load_events(session, 9)[2]
    assert (event.before, event.after, event.reason) == (
        {"role": "operator", "disabled": False},
        {"role": "operator", "disabled": True},
        "left",
    )


def test_a_change_that_changes_nothing_is_no_event(plane, admin, olga):
    before = actions(plane)
    change(plane, admin, "olga", role=Role.OPERATOR, disabled=False)
    assert actions(plane) == before


def test_a_change_against_an_old_state_is_refused(plane, admin, olga):
    with plane.database.reading() as session:
        seen = {user_version(load_user(session, "olga"))}
    change_user(plane, admin, "olga", seen, role=Role.VIEWER)
    with pytest.raises(StaleRevisionError):
        change_user(plane, admin, "olga", seen, role=Role.ADMIN)


def test_the_last_active_administrator_stays(plane, admin, olga):
    for wanted in ({"role": Role.OPERATOR}, {"disabled": True}, {"role": Role.VIEWER, "disabled": True}):
        with pytest.raises(ConflictError, match="last active administrator"):
            change(plane, admin, "admin", **wanted)
    change(plane, admin, "olga", role=Role.ADMIN)
    change(plane, admin, "olga", disabled=True)
    with pytest.raises(ConflictError):
        change(plane, admin, "admin", disabled=True)
    change(plane, admin, "olga", disabled=False)
    change(plane, admin, "admin", disabled=True)
    with plane.database.reading() as session:
        assert load_user(session, "admin").disabled_at is not None


def test_two_administrators_cannot_shut_each_other_out_at_the_same_moment(plane, admin, olga):
    change(plane, admin, "olga", role=Role.ADMIN)
    together, outcomes = threading.Barrier(2), {}

    def shut_out(username):
        together.wait()
        try:
            change(plane, admin, username, disabled=True)
            outcomes[username] = "done"
        except ControlError as error:
            outcomes[username] = type(error).__name__

    threads = [threading.Thread(target=shut_out, args=(name,)) for name in ("admin", "olga")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes.values()) == ["ConflictError", "done"]
    with plane.database.reading() as session:
        active = [row.username for row in session.exec(select(UserRow)) if row.disabled_at is None]
    assert len(active) == 1


def test_a_reset_password_replaces_the_old_one_and_ends_every_session(plane, admin, olga, passwords):
    fresh = reset_password(plane, admin, "olga", "forgotten")
    assert sessions(plane, olga) == []
    with pytest.raises(UnauthenticatedError):
        sign_in(plane, "olga", passwords["olga"], HERE)
    assert sign_in(plane, "olga", fresh, HERE).principal.name == "olga"
    with pytest.raises(NotFoundError):
        reset_password(plane, admin, "otto")


def test_somebody_replaces_their_own_password_and_stays_signed_in_here_only(plane, olga, passwords):
    sign_in(plane, "olga", passwords["olga"], HERE)
    for current, new, error in [
        ("wrong", "a new password", ForbiddenError),
        (passwords["olga"], "short", InvalidError),
        (passwords["olga"], passwords["olga"], InvalidError),
    ]:
        with pytest.raises(error):
            change_own_password(plane, olga, current, new)
    change_own_password(plane, olga, passwords["olga"], "a new password")
    assert [(one.id, one.current) for one in sessions(plane, olga)] == [(olga.session_id, True)]
    assert sign_in(plane, "olga", "a new password", HERE).principal.name == "olga"
    with pytest.raises(ForbiddenError):
        change_own_password(plane, Principal("token:x", Role.ADMIN, user_id=1), "a", "b" * 12)


def test_a_stolen_session_cannot_guess_the_password_for_long(plane, olga, passwords):
    for _ in range(5):
        with pytest.raises(ForbiddenError):
            change_own_password(plane, olga, "wrong", "a new password")
    with pytest.raises(TooManyAttemptsError):
        change_own_password(plane, olga, passwords["olga"], "a new password")


def test_everybody_sees_and_ends_their_own_sessions_and_administrators_all(plane, admin, olga, passwords, clock):
    other = sign_in(plane, "olga", passwords["olga"], HERE).principal
    assert {one.username for one in sessions(plane, admin)} == {"admin", "olga"}
    assert {one.id for one in sessions(plane, admin, username="olga")} == {olga.session_id, other.session_id}
    assert {one.username for one in sessions(plane, olga)} == {"olga"}
    first, second = sessions(plane, olga)
    assert sessions(plane, olga, after_id=first.id) == [second]
    for unknown in (admin.session_id, "0" * 16, other.session_id[:8], "%" * 16, ""):
        with pytest.raises(NotFoundError):
            end_session(plane, olga, unknown)
    end_session(plane, olga, other.session_id)
    end_session(plane, admin, olga.session_id, "left a browser open")
    assert sessions(plane, olga) == []
    clock.advance(days=8)
    assert sessions(plane, admin) == []
    with plane.database.reading() as session:
        assert [row.user_id for row in session.exec(select(WebSessionRow))] == [admin.user_id]


def test_a_token_has_the_scopes_it_was_given_and_no_more_than_its_maker(plane, olga):
    row, secret = create_token(plane, olga, "ci", [Scope.POLICIES_WRITE, Scope.READ, Scope.READ], None)
    principal = by_token(plane, secret)
    assert (principal.name, principal.role, principal.user_id) == ("token:ci", Role.OPERATOR, olga.user_id)
    assert principal.granted == {Scope.READ, Scope.POLICIES_WRITE}
    assert row.scopes == ["read", "policies:write"]
    require_scope(principal, Scope.POLICIES_WRITE)
    with pytest.raises(ForbiddenError):
        require_scope(principal, Scope.FLEET_WRITE)
    with pytest.raises(ForbiddenError, match="access:admin"):
        create_token(plane, olga, "more", [Scope.READ, Scope.ACCESS_ADMIN], None)
    with pytest.raises(ForbiddenError):
        create_token(plane, principal, "by-a-program", [Scope.READ], None)


@pytest.mark.parametrize(
    ("name", "scopes"), [("", [Scope.READ]), ("A", [Scope.READ]), ("a b", [Scope.READ]), ("a", [])]
)
def test_a_token_needs_a_name_and_a_scope(plane, olga, name, scopes):
    with pytest.raises(InvalidError):
        create_token(plane, olga, name, scopes, None)


def test_a_token_shrinks_with_its_owner(plane, admin, olga):
    change(plane, admin, "olga", role=Role.ADMIN)
    _, secret = create_token(plane, Principal("olga", Role.ADMIN, "c", user_id=olga.user_id, session_id="x"), "t",
                             list(Scope), None)  # fmt: skip
    assert by_token(plane, secret).role is Role.ADMIN
    change(plane, admin, "olga", role=Role.VIEWER)
    principal = by_token(plane, secret)
    assert (principal.role, principal.granted) == (Role.VIEWER, {Scope.READ})


def test_a_token_ends_by_time_or_revocation_and_frees_its_name(plane, admin, olga, clock):
    with pytest.raises(InvalidError):
        create_token(plane, olga, "ci", [Scope.READ], plane.now())
    row, secret = create_token(plane, olga, "ci", [Scope.READ], plane.now() + timedelta(hours=1))
    with pytest.raises(ConflictError):
        create_token(plane, admin, "ci", [Scope.READ], None)
    clock.advance(hours=1)
    with pytest.raises(UnauthenticatedError):
        by_token(plane, secret)
    second, secret = create_token(plane, olga, "ci", [Scope.READ], None)
    revoke_token(plane, olga, second.id)
    revoke_token(plane, olga, second.id)
    with pytest.raises(UnauthenticatedError):
        by_token(plane, secret)
    create_token(plane, admin, "ci", [Scope.READ], None)
    assert actions(plane).count(("access.revoke_token", "token/ci")) == 1
    with plane.database.reading() as session:
        assert [one.created_by for one in load_tokens(session, admin, plane.now(), 9)] == ["admin"]
        every = load_tokens(session, admin, plane.now(), 9, with_invalid=True)
        assert [one.id for one in every] == sorted((one.id for one in every), reverse=True)
        assert len(every) == 3
        assert [one.id for one in load_tokens(session, olga, plane.now(), 9, second.id, with_invalid=True)] == [row.id]


def test_tokens_of_others_are_not_there(plane, admin, olga):
    row, _ = create_token(plane, admin, "admins", [Scope.READ], None)
    ensure_token(plane, "installation", Role.OPERATOR, "secret")
    nobody = Principal("token:installation", Role.OPERATOR)
    with plane.database.reading() as session:
        for principal in (olga, nobody):
            assert load_tokens(session, principal, plane.now(), 9) == []
            with pytest.raises(NotFoundError):
                load_token(session, principal, row.id)
    with pytest.raises(NotFoundError):
        revoke_token(plane, olga, row.id)


def test_the_last_use_of_a_token_is_kept_to_the_minute(plane, olga, clock):
    row, secret = create_token(plane, olga, "ci", [Scope.READ], None)

    def last_use():
        with plane.database.reading() as session:
            return session.get(ApiTokenRow, row.id).last_used_at

    assert last_use() is None
    touch_token(plane, secret)
    first = clock.now
    clock.advance(seconds=59)
    touch_token(plane, secret)
    assert last_use() == first
    clock.advance(seconds=1)
    touch_token(plane, secret)
    assert last_use() == clock.now
    touch_token(plane, "unknown")


def test_many_guesses_at_the_same_moment_are_counted_one_by_one(plane, passwords):
    guesses = 8
    together, outcomes = threading.Barrier(guesses), []

    def guess():
        together.wait()
        try:
            sign_in(plane, "admin", "wrong", HERE)
        except ControlError as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=guess) for _ in range(guesses)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["TooManyAttemptsError"] * 3 + ["UnauthenticatedError"] * 5


def test_a_right_password_leaves_no_failure_behind(plane, passwords):
    for _ in range(7):
        sign_in(plane, "admin", passwords["admin"], HERE)
    with plane.database.reading() as session:
        assert session.exec(select(LoginFailureRow)).all() == []


def test_nothing_that_names_a_principal_shows_a_secret(plane, passwords):
    signed_in = sign_in(plane, "admin", passwords["admin"], HERE)
    shown = repr(signed_in)
    assert signed_in.secret not in shown
    assert signed_in.principal.csrf_token not in shown
    assert re.search("admin", shown)


def test_tokens_from_before_scopes_keep_what_their_role_allowed(new_database_url):
    database = open_database(new_database_url())
    upgrade_schema(database, "0005")
    tokens = """insert into api_token (name, secret_hash, role, created_by, created_at) values
        ('v', 'hash of v', 'viewer', 'system', '2030-01-01 00:00:00'),
        ('o', 'hash of o', 'operator', 'system', '2030-01-01 00:00:00'),
        ('a', 'hash of a', 'admin', 'system', '2030-01-01 00:00:00')"""
    with database.engine.begin() as connection:
        connection.exec_driver_sql(tokens)
    for _ in range(2):
        upgrade_schema(database)
        with database.reading() as session:
            rows = {row.name: row for row in session.exec(select(ApiTokenRow))}
        assert {name: frozenset(row.scopes) for name, row in rows.items()} == {
            "v": ROLE_SCOPES[Role.VIEWER],
            "o": ROLE_SCOPES[Role.OPERATOR],
            "a": ROLE_SCOPES[Role.ADMIN],
        }
        assert {row.user_id for row in rows.values()} == {None}
        with database.engine.begin() as connection:
            command.downgrade(alembic_config(connection), "0005")
    database.engine.dispose()
