"""`pdd secret` against a control plane that answers over HTTP."""

import json
from dataclasses import replace

import pytest

from control.cli.access_client import TOKEN_VARIABLE
from control.services.access import Role
from control.services.credentials import ensure_token
from control.services.site_secret import record_secret_report
from tests.unit.control.served_plane import pdd_on


@pytest.fixture
def pdd(seeded, orders, tmp_path, monkeypatch):
    """Sites answer at once, with what `failures` names."""
    failures = {}

    def answer(order):
        orders.append(order)
        site, targets = order.arguments["site"], order.arguments["targets"]
        failed = {name: error for name, error in failures.items() if name in targets}
        told = ["agent", *(name for name in targets if name not in failed)]
        record_secret_report(seeded, {"site": site, "rotation": 1, "told": told, "failed": failed})

    ensure_token(seeded, "ada", Role.ADMIN, "an administrator's token")
    monkeypatch.setenv(TOKEN_VARIABLE, "an administrator's token")
    with pdd_on(replace(seeded, send=answer), tmp_path / "data") as run:
        run.failures = failures
        yield run


def test_a_rotation_is_started_and_waited_for_without_showing_the_secret(pdd, orders):
    assert "not been rotated" in pdd("secret", "show", fails=1)
    said = pdd("secret", "rotate", "--wait", "--reason", "somebody left")
    assert "rotation 1 is complete" in said
    secret = orders[0].arguments["secret"]
    shown = json.loads(pdd("secret", "show", "--json"))
    assert (shown["state"], shown["reason"], shown["waiting_for"]) == ("complete", "somebody left", [])
    assert secret not in said + json.dumps(shown)


def test_the_secret_is_shown_where_that_is_asked_for(pdd, orders):
    said = pdd("secret", "rotate", "--show")
    assert f"PDD_SITE_SECRET={orders[0].arguments['secret']}" in said


def test_who_lacks_the_new_secret_is_named_with_the_reason(pdd, clock):
    pdd.failures["fra-md-01"] = "no answer"
    pdd("secret", "rotate", "--grace", "60")
    assert "fra/fra-md-01: no answer" in pdd("secret", "show")
    assert "still waits for fra/fra-md-01" in pdd("secret", "rotate", fails=1)
    clock.advance(seconds=60)
    assert "incomplete" in pdd("secret", "show")
