"""The secret as a program holds it."""

import json
import stat

import pytest

from control.site_secret import ROTATED_FILE, SiteSecret, WeakSecretError, parse_rotation

OLD, NEW, NEXT = "the configured secret", "n" * 43, "x" * 43


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def test_without_a_secret_nothing_is_accepted():
    assert not SiteSecret("").accepts("Bearer ")
    assert not SiteSecret("").accepts_rotation("Bearer ")
    assert not SiteSecret("").is_set


def test_both_secrets_are_accepted_for_a_while_and_then_only_the_new_one(clock):
    secret = SiteSecret(OLD, clock=clock)
    assert secret.rotate(NEW, 1060.0, 1)
    assert (secret.current, secret.rotation) == (NEW, 1)
    assert secret.accepts(f"Bearer {OLD}")
    assert secret.accepts(f"Bearer {NEW}")
    clock.now_s = 1060.0
    assert not secret.accepts(f"Bearer {OLD}")
    assert secret.accepts(f"Bearer {NEW}")


def test_who_has_only_the_old_secret_cannot_make_the_next_one(clock):
    secret = SiteSecret(OLD, clock=clock)
    secret.rotate(NEW, 1060.0, 1)
    assert not secret.accepts_rotation(f"Bearer {OLD}")
    assert secret.accepts_rotation(f"Bearer {NEW}")


def test_the_same_rotation_twice_is_one(clock):
    secret = SiteSecret(OLD, clock=clock)
    assert secret.rotate(NEW, 1060.0, 1)
    assert not secret.rotate(NEW, 1060.0, 1)
    assert secret.accepts(f"Bearer {OLD}")


def test_what_one_program_of_a_data_folder_is_told_all_know_also_after_a_restart(tmp_path, clock):
    path = tmp_path / ROTATED_FILE
    one, other = SiteSecret(OLD, path, clock), SiteSecret(OLD, path, clock)
    one.rotate(NEW, 1060.0, 1)
    assert other.current == NEW
    other.rotate(NEXT, 1060.0, 2)
    assert (one.current, one.rotation, one.known) == (NEXT, 2, (NEXT, NEW, OLD))
    assert SiteSecret(OLD, path, clock).current == NEXT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_newly_configured_secret_makes_rotations_of_the_old_one_void(tmp_path, clock):
    path = tmp_path / ROTATED_FILE
    SiteSecret(OLD, path, clock).rotate(NEW, 1060.0, 1)
    fresh = SiteSecret("configured anew", path, clock)
    assert (fresh.current, fresh.rotation) == ("configured anew", 0)
    assert not fresh.accepts(f"Bearer {NEW}")


@pytest.mark.parametrize("text", ["", "short", "a" * 257, "with spaces " * 4, "é" * 40, "a" * 40 + "\n"])
def test_a_weak_secret_is_refused_without_being_repeated(text):
    secret = SiteSecret(OLD)
    with pytest.raises(WeakSecretError) as caught:
        secret.rotate(text, 1.0, 1)
    assert "32 to 256" in str(caught.value)
    assert secret.current == OLD


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", json.dumps({"secret": NEW}).encode()])
def test_a_body_that_is_no_rotation_is_not_repeated(body):
    with pytest.raises(ValueError, match=r"^a rotation has secret, previous_until_s and rotation$"):
        parse_rotation(body)
