import json

import pytest

from control.domain.topology import FleetSnapshot, Link, Node, Role, Site
from engine_agents.observer.config import ObserverConfig, WatchedLink, WatchedNode, load_config, load_site_of_fleet

FLEET = FleetSnapshot(
    sites=(Site("ams"), Site("fra")),
    nodes=(
        Node("p", "ams", Role.PREFILL, "http://127.0.0.1:1", "emulated", "m"),
        Node("md", "fra", Role.MAIN, "http://127.0.0.1:2", "emulated", "m", slots=8),
    ),
    links=(
        Link("ams-fra", "ams", "fra", 5e6, 0.03, admin_url="http://127.0.0.1:3"),
        Link("unshaped", "ams", "fra", 5e6, 0.03),
    ),
    model="m",
    kv_bytes_per_token=1,
)


def written(tmp_path, document):
    path = tmp_path / "document.json"
    path.write_text(json.dumps(document))
    return path


def test_a_site_watches_its_nodes_and_the_shaped_links_that_leave_it(tmp_path):
    path = written(tmp_path, FLEET.to_document())
    assert load_site_of_fleet(path, "ams") == ObserverConfig(
        (WatchedNode("p", "prefill", "http://127.0.0.1:1", 4),),
        (WatchedLink("ams-fra", "ams", "fra", 5e6, "http://127.0.0.1:3", 0.03),),
    )
    assert load_site_of_fleet(path, "fra") == ObserverConfig((WatchedNode("md", "main", "http://127.0.0.1:2", 8),))


@pytest.mark.parametrize("document", [{}, [], {"sites": [], "nodes": [{"name": "p"}]}])
def test_what_is_no_fleet_document_is_refused(tmp_path, document):
    with pytest.raises(ValueError, match="no fleet document"):
        load_site_of_fleet(written(tmp_path, document), "ams")


@pytest.mark.parametrize("document", [[], {"nodes": [{"name": "n"}]}, {"links": [{"name": "l"}]}])
def test_an_incomplete_list_of_what_to_watch_is_refused(tmp_path, document):
    with pytest.raises(ValueError):
        load_config(written(tmp_path, document))
