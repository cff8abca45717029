"""`pdd fleet` against the REST API over real HTTP."""

import json

import pytest
import yaml

from control.cli.errors import CommandError
from control.cli.fleet_file import read_fleet, write_fleet
from control.domain.addresses import LOOPBACK_NETWORKS
from control.domain.inventory import Wish
from control.domain.topology import Site
from control.domain.versions import ANY_VERSION
from control.services.access import Principal, Role
from control.services.inventory import Terms, replace_item
from tests.unit.control.served_plane import pdd_on


@pytest.fixture
def pdd(seeded, tmp_path):
    with pdd_on(seeded, tmp_path / "data") as run:
        yield run


@pytest.fixture
def open_sites(pdd, seeded):
    """The commands act for an operator, and only an administrator may set networks."""
    for name in ("ams", "fra"):
        wish = Wish(Site(name, name, LOOPBACK_NETWORKS))
        replace_item(seeded, Principal("ada", Role.ADMIN), wish, Terms("because", ANY_VERSION))
    return pdd


def test_an_exported_document_applies_to_itself_and_a_changed_one_as_planned(open_sites, tmp_path):
    pdd, file = open_sites, tmp_path / "fleet.yaml"
    pdd("fleet", "export", "-o", str(file))
    exported = file.read_text()
    assert pdd("fleet", "plan", "-f", str(file), "--exit-code") == "nothing changes\n"
    document = yaml.safe_load(exported)
    document["chips"] = [
        {
            "name": "H20-96GB",
            "peak_flops": 148e12,
            "memory_bytes": 96_000_000_000,
            "memory_bytes_per_s": 4e12,
            "interconnect_bytes_per_s": 9e11,
            "price_per_hour": 2.5,
        }
    ]
    document["nodes"][0] |= {"chip": "H20-96GB", "labels": {"rack": "r1"}}
    document["links"] = []
    file.write_text(yaml.safe_dump(document))
    planned = pdd("fleet", "apply", "-f", str(file), "--dry-run")
    assert planned.splitlines() == [
        "+ chip H20-96GB",
        "~ node ams-p-01",
        '    chip: "" -> H20-96GB',
        "    labels: - -> rack=r1",
        "- link ams-fra",
        "1 added, 1 changed, 1 removed",
    ]
    assert pdd("fleet", "export") == exported
    pdd("fleet", "plan", "-f", str(file), "--exit-code", fails=3)
    assert pdd("fleet", "apply", "-f", str(file), "--reason", "new chips") == planned
    assert yaml.safe_load(pdd("fleet", "export")) == document
    assert json.loads(pdd("fleet", "export", "--json")) == document
    file.write_text(exported)
    assert json.loads(pdd("fleet", "apply", "-f", str(file), "--json"))["added"] == 1
    assert pdd("fleet", "export") == exported


def test_a_document_that_is_not_valid_is_refused_with_the_path(open_sites, tmp_path):
    pdd, file = open_sites, tmp_path / "fleet.yaml"
    document = yaml.safe_load(pdd("fleet", "export"))
    document["nodes"][1]["colour"] = "red"
    document["links"][0]["rtt_s"] = -1
    file.write_text(yaml.safe_dump(document))
    said = pdd("fleet", "apply", "-f", str(file), fails=1)
    assert "nodes.1.colour: " in said
    assert "links.0.rtt_s: " in said
    assert "Cannot read" in pdd("fleet", "plan", "-f", str(tmp_path / "none"), fails=1)


def test_tables_go_out_and_in(open_sites, tmp_path):
    pdd, file = open_sites, tmp_path / "nodes.csv"
    pdd("fleet", "export", "--csv", "nodes", "-o", str(file))
    assert pdd("fleet", "import", "nodes", "-f", str(file)) == "nothing changes\n"
    file.write_text(file.read_text().replace(",prefill,", ",relay,"))
    assert "role: prefill -> relay" in pdd("fleet", "import", "nodes", "-f", str(file), "--dry-run")
    assert "1 changed" in pdd("fleet", "import", "nodes", "-f", str(file))
    assert "ams-p-01" in pdd("fleet", "list", "nodes", "--role", "relay")


def test_items_are_added_changed_and_removed_one_by_one(open_sites):
    pdd = open_sites
    node = ["site=ams", "role=prefill", "url=http://127.0.0.1:7", "engine=vllm", "model=smollm2-135m"]
    assert "+ node n1" in pdd("fleet", "add", "nodes", "n1", *node, "--dry-run")
    assert pdd("fleet", "add", "nodes", "n1", *node) == "added node n1\n"
    assert pdd("fleet", "set", "nodes", "n1", "slots=9", 'labels={"rack":"r1"}') == "changed node n1\n"
    assert json.loads(pdd("fleet", "show", "nodes", "n1"))["slots"] == 9
    assert [item["name"] for item in json.loads(pdd("fleet", "list", "nodes", "--label", "rack=r1", "--json"))] == [
        "n1"
    ]
    assert "in use: node ams-p-01" in pdd("fleet", "delete", "sites", "ams", fails=1)
    assert pdd("fleet", "set", "gateways", "ams-gw-01", "url=http://127.0.0.1:8001") == "changed gateway ams-gw-01\n"
    assert pdd("fleet", "delete", "nodes", "n1", "--dry-run").startswith("- node n1")
    assert pdd("fleet", "delete", "nodes", "n1", "--reason", "sold") == "removed node n1\n"
    assert "none of" in pdd("fleet", "list", "cats", fails=1)
    assert "none of" in pdd("fleet", "list", "links", "--site", "ams", fails=1)
    assert "FIELD=VALUE" in pdd("fleet", "add", "nodes", "n2", "site", fails=1)


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2\n", "nodes: [\n", "- 1\n", "", "a: !!python/object:x {}\n", "{[1]: 2}: 3"]
)
def test_yaml_with_surprises_is_refused(tmp_path, text):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    with pytest.raises(CommandError):
        read_fleet(path)


def test_dates_and_words_in_yaml_stay_text(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("labels: {since: 2026-01-02}\n")
    assert read_fleet(path) == {"labels": {"since": "2026-01-02"}}
    document = {"nodes": [{"label": text} for text in ("yes", "1e3", "2026-01-02", "null", "Zürich", "a: b", "1_000")]}
    path.write_text(write_fleet(document))
    assert read_fleet(path) == document
