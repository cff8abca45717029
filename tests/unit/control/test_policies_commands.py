"""`pdd policy` and `pdd annotation` against the REST API over real HTTP."""

import json

import pytest

from control.services.rollout import Report, record_report
from tests.unit.control.served_plane import pdd_on

RELAY = "routing.relay_when_transfer_exceeds_s"
SITE = f"overrides.sites.fra.{RELAY}"


@pytest.fixture
def pdd(seeded, tmp_path):
    with pdd_on(seeded, tmp_path / "data") as run:
        yield run


def test_a_policy_is_changed_compared_and_reverted(pdd):
    change = f"{RELAY}: 0.3 -> 2.0\n"
    assert pdd("policy", "set", f"{RELAY}=2.0", "--dry-run") == change
    assert pdd("policy", "set", f"{RELAY}=2.0", "--reason", "slow line") == "revision 2 applied\n"
    assert pdd("policy", "diff", "1", "2") == change
    assert json.loads(pdd("policy", "diff", "1", "2", "--json"))["after"] == 2
    assert pdd("policy", "diff", "2", "2") == "nothing differs\n"
    assert pdd("policy", "revert", "1", "--dry-run") == f"{RELAY}: 2.0 -> 0.3\n"
    assert pdd("policy", "revert", "1", "--reason", "worse").startswith("revision 3: worse\n")
    assert [line.split("  ")[0] for line in pdd("policy", "log").splitlines()] == ["r3", "r2", "r1"]
    assert "Nothing would change" in pdd("policy", "revert", "1", fails=1)
    assert f"  {RELAY}: " in pdd("policy", "set", f"{RELAY}=-1", fails=1)


def test_overrides_are_set_shown_and_taken_out(pdd):
    pdd("policy", "set", f"{SITE}=2.0")
    shown = pdd("policy", "show", "--site", "fra").splitlines()
    assert f"{RELAY} = 2.0  (site fra)" in shown
    assert "outlier.enabled = true  (general)" in shown
    assert json.loads(pdd("policy", "show", "--site", "ams", "--json"))["document"]["routing"][RELAY[8:]] == 0.3
    assert pdd("policy", "unset", "overrides.sites.fra", "--dry-run") == f"{SITE}: 2.0 -> null\n"
    assert pdd("policy", "unset", "overrides.sites.fra") == "revision 3 applied\n"
    assert f"{RELAY} = 0.3  (general)" in pdd("policy", "show", "--site", "fra").splitlines()


def test_it_shows_how_long_a_gateway_took_to_converge(pdd, seeded, clock):
    pdd("policy", "set", f"{RELAY}=2.0")
    assert "  gateway ams-gw-01 runs None (unknown)" in pdd("policy", "show").splitlines()
    clock.advance(seconds=1.5)
    record_report(seeded, Report("o", "ams-gw-01", "ams", 2, "applied", "", clock.now))
    assert "  gateway ams-gw-01 runs 2 (applied, converged in 1.5 s)" in pdd("policy", "show").splitlines()
    assert json.loads(pdd("policy", "apply", "2", "--json"))["revision"] == 2


def test_remarks_are_made_listed_and_taken_back(pdd):
    assert (
        pdd("annotation", "add", "fibre cut", "--at", "2029-12-31T00:00:00Z")
        == "annotation 1 at 2029-12-31T00:00:00Z\n"
    )
    assert json.loads(pdd("annotation", "add", "mended", "--json"))["text"] == "mended"
    assert pdd("annotation", "list").splitlines()[1] == "1  2029-12-31T00:00:00Z  token:operator  fibre cut"
    assert pdd("annotation", "delete", "1") == "removed annotation 1\n"
    assert [one["id"] for one in json.loads(pdd("annotation", "list", "--json"))] == [2]
    assert "There is no annotation 1" in pdd("annotation", "delete", "1", fails=1)
