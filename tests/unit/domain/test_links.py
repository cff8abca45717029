"""Link sections of the policy, and what a relay is told of them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.domain.links import link_under, order_link
from control.domain.policy import (
    DEFAULT_LINK_POLICY,
    DEFAULT_POLICY_DOCUMENT,
    PolicyError,
    apply_changes,
    parse_policy,
    unknown_fields,
)
from control.domain.topology import Link

CAPS = st.none() | st.floats(1, 1e12)
AMS_FRA = Link("ams-fra", "ams", "fra", 5e6, 0.03)


def test_a_link_that_no_policy_names_has_the_defaults():
    policy = parse_policy(DEFAULT_POLICY_DOCUMENT)
    assert policy.links == {}
    assert policy.link("anything") == DEFAULT_LINK_POLICY
    assert (DEFAULT_LINK_POLICY.streams_per_transfer, DEFAULT_LINK_POLICY.max_transfers) == (4, 64)
    assert (DEFAULT_LINK_POLICY.rate_cap_bytes_per_s, DEFAULT_LINK_POLICY.flow_cap_bytes_per_s) == (None, None)


def test_a_change_names_its_link_and_leaves_the_others_alone():
    document = apply_changes(DEFAULT_POLICY_DOCUMENT, {"link.ams-fra.streams_per_transfer": 8})
    document = apply_changes(document, {"link.ams-lon.max_transfers": 2})
    policy = parse_policy(document)
    assert unknown_fields(document) == []
    assert policy.link("ams-fra").streams_per_transfer == 8
    assert policy.link("ams-fra").max_transfers == 64
    assert (policy.link("ams-lon").streams_per_transfer, policy.link("ams-lon").max_transfers) == (4, 2)


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"ams-fra": {"rate_cap_bytes_per_s": 0}}, "link.ams-fra.rate_cap_bytes_per_s"),
        ({"ams-fra": {"streams_per_transfer": 0}}, "link.ams-fra.streams_per_transfer"),
        ({"ams-fra": {"streams_per_transfer": 1.5}}, "link.ams-fra.streams_per_transfer"),
        ({"ams-fra": {"max_transfers": None}}, "link.ams-fra.max_transfers"),
        ({"ams-fra": 5}, "link.ams-fra"),
    ],
)
def test_a_link_section_that_cannot_be_obeyed_is_refused_by_its_path(section, path):
    with pytest.raises(PolicyError) as caught:
        parse_policy({"link": section})
    assert [problem.path for problem in caught.value.problems] == [path]


@given(own=CAPS, allowed=CAPS)
def test_a_policy_never_raises_the_flow_cap_that_a_link_has(own, allowed):
    link = Link("ams-fra", "ams", "fra", 5e6, 0.03, flow_cap_bytes_per_s=own)
    order = order_link(link, parse_policy({"link": {"ams-fra": {"flow_cap_bytes_per_s": allowed}}}))
    caps = [cap for cap in (own, allowed) if cap is not None]
    assert order.flow_cap_bytes_per_s == (min(caps) if caps else None)


@given(capacity=st.floats(1, 1e12), allowed=CAPS, streams=st.integers(1, 64))
def test_transfers_find_the_lower_of_capacity_and_cap_and_the_policys_streams(capacity, allowed, streams):
    section = {"ams-fra": {"rate_cap_bytes_per_s": allowed, "streams_per_transfer": streams}}
    link = link_under(Link("ams-fra", "ams", "fra", capacity, 0.03), parse_policy({"link": section}))
    assert link.capacity_bytes_per_s == (capacity if allowed is None else min(capacity, allowed))
    assert link.streams_per_transfer == streams


def test_an_order_carries_what_the_link_is_the_policys_limits_and_every_class_rank():
    document = {
        "link": {"ams-fra": {"rate_cap_bytes_per_s": 1e6, "max_transfers": 3}},
        "classes": {"gold": {"link_priority": 5, "link_weight": 2.5}},
    }
    order = order_link(AMS_FRA, parse_policy(document)).to_document()
    assert order == {
        "capacity_bytes_per_s": 5e6,
        "rtt_s": 0.03,
        "rate_cap_bytes_per_s": 1e6,
        "flow_cap_bytes_per_s": None,
        "max_transfers": 3,
        "classes": {"default": {"priority": 0, "weight": 1.0}, "gold": {"priority": 5, "weight": 2.5}},
    }
    assert msgspec.json.decode(msgspec.json.encode(order)) == order
