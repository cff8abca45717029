import math

from hypothesis import assume, given
from hypothesis import strategies as st

from engine_agents.wan.shaping import (
    BURST_S,
    MIN_QUEUE_BYTES,
    QUEUE_S,
    FlowDemand,
    LinkShape,
    max_min_shares,
    plan_tick,
    queue_limit_bytes,
)

rates = st.floats(min_value=1, max_value=1e10)
limits = st.lists(st.integers(min_value=0, max_value=10**8), max_size=40)
weights = st.floats(min_value=1e-3, max_value=1e3)
weighted = st.lists(st.tuples(st.integers(min_value=0, max_value=10**8), weights), max_size=40)
demands = st.lists(
    st.builds(FlowDemand, st.integers(min_value=0, max_value=10**8), st.floats(min_value=0, max_value=1e7), weights),
    max_size=20,
)
shapes = st.builds(
    LinkShape,
    capacity_bytes_per_s=rates,
    rtt_s=st.just(0.0),
    rate_cap_bytes_per_s=st.none() | rates,
    flow_cap_bytes_per_s=st.none() | rates,
    paused=st.booleans(),
)
steps = st.floats(min_value=0, max_value=2)


def shares_of(total, flows):
    return max_min_shares(total, [limit for limit, _ in flows], [weight for _, weight in flows])


@given(total=st.integers(min_value=0, max_value=10**9), flows=weighted)
def test_shares_use_all_that_is_there_or_all_that_is_wanted(total, flows):
    assert sum(shares_of(total, flows)) == min(total, sum(limit for limit, _ in flows))


@given(total=st.integers(min_value=0, max_value=10**9), flows=weighted)
def test_no_share_exceeds_what_is_wanted(total, flows):
    assert all(0 <= share <= limit for share, (limit, _) in zip(shares_of(total, flows), flows, strict=True))


@given(total=st.integers(min_value=0, max_value=10**9), wanted=limits)
def test_who_gets_less_than_wanted_gets_no_less_than_anyone_else(total, wanted):
    shares = shares_of(total, [(limit, 1.0) for limit in wanted])
    largest = max(shares, default=0)
    odd_bytes = len(wanted)  # a byte cannot be cut
    assert all(share >= largest - odd_bytes for share, limit in zip(shares, wanted, strict=True) if share < limit)


@given(total=st.integers(min_value=0, max_value=10**9), flows=weighted)
def test_who_gets_less_than_wanted_gets_their_weight_of_what_others_get(total, flows):
    shares = shares_of(total, flows)
    for share, (limit, weight) in zip(shares, flows, strict=True):
        if share < limit:
            for other, (_, other_weight) in zip(shares, flows, strict=True):
                odd_bytes = (len(flows) + 1) * (1 + weight / other_weight)
                assert share >= other * weight / other_weight * (1 - 1e-9) - odd_bytes


def test_weights_divide_a_link_that_everyone_wants():
    assert max_min_shares(4000, [10**6, 10**6], [3.0, 1.0]) == [3000, 1000]


@given(shape=shapes, flows=demands, credit=st.floats(min_value=0, max_value=1e9), dt_s=steps)
def test_a_tick_never_spends_more_than_credit_and_rate_allow(shape, flows, credit, dt_s):
    plan = plan_tick(shape, credit, flows, dt_s)
    assert sum(plan.allowances) <= credit + shape.rate_bytes_per_s * dt_s + 1e-6 * credit
    assert sum(plan.allowances) <= max(shape.rate_bytes_per_s * BURST_S, 1.0)
    assert plan.link_credit >= 0


@given(shape=shapes, flows=demands, dt_s=steps)
def test_no_flow_exceeds_its_cap(shape, flows, dt_s):
    plan = plan_tick(shape, 0.0, flows, dt_s)
    cap = shape.flow_cap_bytes_per_s
    assume(cap is not None)
    for flow, share, left in zip(flows, plan.allowances, plan.flow_credits, strict=True):
        assert share <= min(flow.credit_bytes + cap * dt_s, max(cap * BURST_S, 1.0)) * (1 + 1e-9)
        assert left >= 0


@given(shape=shapes, flows=demands, dt_s=steps)
def test_a_tick_leaves_no_byte_of_rate_unused_while_a_flow_may_send(shape, flows, dt_s):
    plan = plan_tick(shape, 0.0, flows, dt_s)
    assume(plan.link_credit >= 1)
    for flow, share, left in zip(flows, plan.allowances, plan.flow_credits, strict=True):
        is_capped = shape.flow_cap_bytes_per_s is not None and left < 1
        assert share == flow.queued_bytes or is_capped or shape.paused


@given(rate=st.floats(min_value=1e4, max_value=1e9), ticks=st.lists(st.floats(0.001, 0.04), min_size=1, max_size=50))
def test_a_busy_link_sends_its_rate_over_any_run_of_ticks(rate, ticks):
    link = LinkShape(capacity_bytes_per_s=rate, rtt_s=0.0)
    credit, sent = 0.0, 0
    for dt_s in ticks:
        plan = plan_tick(link, credit, [FlowDemand(10**9, 0.0)] * 3, dt_s)
        credit = plan.link_credit
        sent += sum(plan.allowances)
    assert math.isclose(sent + credit, sum(ticks) * rate, rel_tol=1e-9)
    assert credit < 1


def test_two_flows_that_want_everything_get_the_same():
    link = LinkShape(capacity_bytes_per_s=1_000_000, rtt_s=0.0)
    plan = plan_tick(link, 0.0, [FlowDemand(10**6, 0.0), FlowDemand(10**6, 0.0)], 0.01)
    assert plan.allowances == (5000, 5000)


def test_what_a_capped_flow_leaves_goes_to_no_one_above_their_cap():
    link = LinkShape(capacity_bytes_per_s=1_000_000, rtt_s=0.0, flow_cap_bytes_per_s=300_000)
    plan = plan_tick(link, 0.0, [FlowDemand(10**6, 0.0), FlowDemand(10**6, 0.0)], 0.01)
    assert plan.allowances == (3000, 3000)


def test_a_small_demand_leaves_the_rest_to_the_others():
    link = LinkShape(capacity_bytes_per_s=1_000_000, rtt_s=0.0)
    plan = plan_tick(link, 0.0, [FlowDemand(10**6, 0.0), FlowDemand(100, 0.0)], 0.01)
    assert plan.allowances == (9900, 100)


def test_a_lowered_cap_forgets_credit_saved_at_the_higher_one():
    slow = LinkShape(capacity_bytes_per_s=1e9, rtt_s=0.0, flow_cap_bytes_per_s=1000)
    plan = plan_tick(slow, 1e7, [FlowDemand(10**6, 1e6)], 0.005)
    assert plan.allowances == (50,)


def test_a_paused_link_sends_nothing_and_saves_nothing():
    paused = LinkShape(capacity_bytes_per_s=1e9, rtt_s=0.0, paused=True)
    plan = plan_tick(paused, 1e6, [FlowDemand(10**6, 0.0)], 1.0)
    assert (plan.allowances, plan.link_credit) == ((0,), 0.0)


@given(shape=shapes, count=st.integers(min_value=1, max_value=1000))
def test_all_flows_together_hold_a_bounded_queue(shape, count):
    total = count * queue_limit_bytes(shape, count)
    assert total <= max(shape.rate_bytes_per_s * QUEUE_S, count * MIN_QUEUE_BYTES) * (1 + 1e-9)
