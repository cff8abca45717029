import ipaddress
import json

import pytest

from control.site_secret import SiteSecret
from engine_agents.wan.admin import change_link
from engine_agents.wan.config import first_allowed, load_config, parse_preamble, split_address
from engine_agents.wan.link import ShapedLink
from engine_agents.wan.shaping import LinkShape

LINK = {"name": "a-b", "source": "a", "target": "b", "capacity_bytes_per_s": 1000, "rtt_s": 0.03}


def written(tmp_path, document):
    path = tmp_path / "links.json"
    path.write_text(json.dumps(document))
    return path


def test_reads_a_link_and_allows_only_loopback_unless_told(tmp_path):
    config = load_config(written(tmp_path, {"links": [LINK]}))
    assert config.links[0].shape() == LinkShape(capacity_bytes_per_s=1000, rtt_s=0.03)
    assert config.networks() == (ipaddress.ip_network("127.0.0.0/8"),)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"links": [{**LINK, "capacity_bytes_per_s": 0}]},
        {"links": [{**LINK, "rate_cap_bytes_per_s": -1}]},
        {"links": [{**LINK, "rtt_s": 11}]},
        {"links": [{**LINK, "rate": 5}]},
        {"links": [LINK, LINK]},
        {"links": [LINK], "allowed_networks": ["everything"]},
    ],
)
def test_refuses_a_configuration_that_makes_no_sense(tmp_path, document):
    with pytest.raises(ValueError):
        load_config(written(tmp_path, document))


@pytest.mark.parametrize("line", [b"", b"GET / HTTP/1.1", b"{}", b'{"link":1,"target":"x"}', b"\xff\xfe"])
def test_refuses_a_first_line_that_is_no_preamble(line):
    with pytest.raises(ValueError):
        parse_preamble(line)


def test_a_pipeline_outside_the_closed_set_is_counted_as_other():
    assert parse_preamble(b'{"link":"l","target":"h:1","pipeline":"x"}').pipeline == "other"
    assert parse_preamble(b'{"link":"l","target":"h:1","pipeline":"relay"}').pipeline == "relay"


@pytest.mark.parametrize("address", ["host", ":1", "host:", "host:0", "host:70000", "host:1x"])
def test_refuses_what_is_no_address(address):
    with pytest.raises(ValueError):
        split_address(address)


def test_splits_names_and_both_kinds_of_address():
    assert split_address("127.0.0.1:9") == ("127.0.0.1", 9)
    assert split_address("[::1]:9") == ("::1", 9)


def test_only_addresses_inside_the_networks_are_allowed():
    loopback = [ipaddress.ip_network("127.0.0.0/8")]
    assert first_allowed(["10.0.0.1", "127.0.0.5"], loopback) == "127.0.0.5"
    assert first_allowed(["10.0.0.1", "::1"], loopback) is None


def test_an_empty_secret_opens_nothing():
    assert not SiteSecret("").accepts("Bearer ")
    assert not SiteSecret("s").accepts(None)
    assert not SiteSecret("s").accepts("Bearer x")
    assert SiteSecret("s").accepts("Bearer s")


async def test_a_refused_change_changes_nothing():
    link = ShapedLink("l", "a", "b", LinkShape(capacity_bytes_per_s=1000, rtt_s=0.03))
    before = link.shape
    for body in (b"[]", b'{"rtt_s":-1}', b'{"capacity_bytes_per_s":0}', b'{"rate_cap_bytes_per_s":0,"rtt_s":0.1}'):
        with pytest.raises(ValueError):
            change_link(link, body)
    assert link.shape == before
    change_link(link, b'{"rate_cap_bytes_per_s":10,"flow_cap_bytes_per_s":null}')
    assert (link.shape.rate_bytes_per_s, link.shape.flow_cap_bytes_per_s, link.shape.rtt_s) == (10, None, 0.03)
    link.close()
