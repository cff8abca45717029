from datetime import timedelta

import pytest
from sqlmodel import select

from control.errors import CsrfError, ForbiddenError, NotFoundError, TooManyAttemptsError, UnauthenticatedError
from control.services import access
from control.services.access import (
    MAX_FAILURES_PER_ACCOUNT,
    SESSION_LIFETIME,
    Principal,
    Role,
    check_csrf,
    find_session,
    find_token,
    require_role,
    sign_in,
    sign_in_with_key,
    sign_out,
)
from control.services.credentials import LOGIN_KEY_LIFETIME, ensure_admin, ensure_token, issue_login_key
from control.store.tables import ApiTokenRow, LoginKeyRow, UserRow, WebSessionRow

HERE = "127.0.0.1"


@pytest.fixture
def password(plane):
    return ensure_admin(plane)


def by_session(plane, secret):
    with plane.database.reading() as session:
        return find_session(session, secret, plane.now())


def by_token(plane, secret):
    with plane.database.reading() as session:
        return find_token(session, secret, plane.now())


def disable_admin(plane):
    with plane.database.unit_of_work(plane.send) as work:
        work.session.exec(select(UserRow)).one().disabled_at = plane.now()


def test_roles_include_the_ones_before_them():
    for held, needed, allowed in [
        (Role.VIEWER, Role.VIEWER, True),
        (Role.VIEWER, Role.OPERATOR, False),
        (Role.OPERATOR, Role.ADMIN, False),
        (Role.OPERATOR, Role.VIEWER, True),
        (Role.ADMIN, Role.OPERATOR, True),
    ]:
        if allowed:
            require_role(Principal("x", held), needed)
        else:
            with pytest.raises(ForbiddenError):
                require_role(Principal("x", held), needed)


def test_the_administrator_is_made_once_and_its_password_kept_only_as_argon2(plane, password):
    assert len(password) >= 16
    assert ensure_admin(plane) is None
    with plane.database.reading() as session:
        stored = session.exec(select(UserRow)).one().password_hash
    assert stored.startswith("$argon2id$")
    assert password not in stored


def test_a_password_opens_a_session_until_it_is_closed(plane, password):
    signed_in = sign_in(plane, "admin", password, HERE)
    principal = by_session(plane, signed_in.secret)
    assert (principal.name, principal.role) == ("admin", Role.ADMIN)
    assert principal == signed_in.principal
    with plane.database.reading() as session:
        assert session.exec(select(WebSessionRow)).one().secret_hash != signed_in.secret
    sign_out(plane, signed_in.secret)
    with pytest.raises(UnauthenticatedError):
        by_session(plane, signed_in.secret)


def test_a_session_ends_with_its_time_or_its_account(plane, password, clock):
    first = sign_in(plane, "admin", password, HERE)
    clock.advance(seconds=SESSION_LIFETIME.total_seconds())
    with pytest.raises(UnauthenticatedError):
        by_session(plane, first.secret)
    second = sign_in(plane, "admin", password, HERE)
    disable_admin(plane)
    with pytest.raises(UnauthenticatedError):
        by_session(plane, second.secret)
    with pytest.raises(UnauthenticatedError):
        sign_in(plane, "admin", password, HERE)


@pytest.mark.parametrize("username", ["admin", "nobody", "", "x" * 5000])
def test_a_wrong_password_and_an_unknown_account_get_the_same_answer(plane, password, username):
    with pytest.raises(UnauthenticatedError, match=r"^Unknown account or wrong password\.$"):
        sign_in(plane, username, "wrong", HERE)


def test_failures_close_the_account_to_that_address_for_a_while(plane, password, clock):
    for _ in range(MAX_FAILURES_PER_ACCOUNT):
        with pytest.raises(UnauthenticatedError):
            sign_in(plane, "admin", "wrong", HERE)
    with pytest.raises(TooManyAttemptsError) as caught:
        sign_in(plane, "admin", password, HERE)
    assert 0 < caught.value.retry_after_s <= 300
    assert sign_in(plane, "admin", password, "10.0.0.9").principal.name == "admin"
    clock.advance(seconds=caught.value.retry_after_s)
    assert sign_in(plane, "admin", password, HERE).principal.name == "admin"


def test_an_address_cannot_try_one_account_after_another(plane, password, monkeypatch):
    monkeypatch.setattr(access, "MAX_FAILURES_PER_ADDRESS", 3)
    for number in range(3):
        with pytest.raises(UnauthenticatedError):
            sign_in(plane, f"user{number}", "wrong", HERE)
    with pytest.raises(TooManyAttemptsError):
        sign_in(plane, "admin", password, HERE)


def test_a_sign_in_key_works_once(plane, password):
    key = issue_login_key(plane)
    assert sign_in_with_key(plane, key).principal.role is Role.ADMIN
    with pytest.raises(UnauthenticatedError):
        sign_in_with_key(plane, key)
    with pytest.raises(UnauthenticatedError):
        sign_in_with_key(plane, "made up")


def test_a_sign_in_key_expires(plane, password, clock):
    key = issue_login_key(plane)
    clock.advance(seconds=LOGIN_KEY_LIFETIME.total_seconds())
    with pytest.raises(UnauthenticatedError):
        sign_in_with_key(plane, key)


def test_a_disabled_account_does_not_use_up_its_key(plane, password):
    key = issue_login_key(plane)
    disable_admin(plane)
    with pytest.raises(UnauthenticatedError):
        sign_in_with_key(plane, key)
    with plane.database.reading() as session:
        assert session.exec(select(LoginKeyRow)).one().used_at is None


def test_a_sign_in_key_needs_an_account(plane):
    with pytest.raises(NotFoundError):
        issue_login_key(plane)


def test_a_token_lets_its_holder_in_until_it_is_replaced_or_expires(plane, clock):
    ensure_token(plane, "local", Role.OPERATOR, "first secret", lifetime=timedelta(hours=1))
    assert by_token(plane, "first secret") == Principal("token:local", Role.OPERATOR)
    with pytest.raises(UnauthenticatedError):
        by_token(plane, "another")
    clock.advance(hours=1)
    with pytest.raises(UnauthenticatedError):
        by_token(plane, "first secret")
    ensure_token(plane, "local", Role.OPERATOR, "second secret")
    ensure_token(plane, "local", Role.OPERATOR, "second secret")
    assert by_token(plane, "second secret").role is Role.OPERATOR
    with plane.database.reading() as session:
        rows = session.exec(select(ApiTokenRow)).all()
    assert [row.revoked_at is None for row in rows] == [False, True]
    assert all("secret" not in row.secret_hash for row in rows)


def test_a_browsers_unsafe_request_needs_its_own_csrf_token():
    browser = Principal("admin", Role.ADMIN, "right")
    check_csrf(browser, "right")
    for token in (None, "", "wrong", "rïght"):
        with pytest.raises(CsrfError):
            check_csrf(browser, token)
    check_csrf(Principal("token:local", Role.OPERATOR), None)
