"""What `pdd leases` says."""

from pathlib import Path

import pytest

from control.cli.errors import CommandError
from control.cli.leases import ask_gateway, render


def test_a_lease_nobody_reads_is_called_stranded():
    lease = {"node": "ams-p-01", "id": "lease-1", "tokens": 64, "size_bytes": 4096, "age_s": 7.25, "attached": False}
    told = render({"leases": [lease, {**lease, "id": "lease-2", "attached": True}], "silent_nodes": ["ams-p-02"]})
    silent, first, second = told.splitlines()
    assert silent == "ams-p-02 does not answer"
    assert first.split()[:2] == ["ams-p-01", "lease-1"]
    assert first.endswith("stranded")
    assert second.endswith("being read")


def test_says_what_was_released_and_where_nothing_is_held():
    assert render({"released": 2, "released_bytes": 8192, "silent_nodes": []}) == "2 released, 8192 bytes"
    assert render({"leases": [], "silent_nodes": []}) == "No prefill node holds a lease."


def test_without_a_fleet_it_says_how_to_start_one(tmp_path: Path):
    with pytest.raises(CommandError, match="make up"):
        ask_gateway(tmp_path, "", None)
