"""Sums in SQL: they add up in every length of span, and leave when their time is over."""

from control.domain.histogram import Histogram
from control.domain.rollups import (
    COARSE,
    FINE,
    MIDDLE,
    RESOLUTIONS,
    LinkClassKey,
    LinkClassSums,
    NodeKey,
    NodeSums,
    RequestSums,
    Rollups,
)
from control.services.rollups import load_links, load_requests, load_sites, resolution_for
from control.store.rollups import (
    delete_old_rollups,
    load_link_class_rollups,
    load_node_rollups,
    load_request_rollups,
)
from tests.unit.control.rollup_writers import write, write_link, write_requests, write_site

HOUR_S = 3600
DAY_S = 86_400


def whole(key):
    return key


def total(plane, resolution):
    with plane.database.reading() as session:
        return RequestSums.merged(load_request_rollups(session, resolution, 0, 2**40).values())


def test_adding_again_to_the_same_span_adds_up_counts_and_histograms(plane):
    for ttft_s in (0.5, 1.0, 5.0):
        write_requests(plane, 2, ttft_s=ttft_s)
    for resolution in RESOLUTIONS:
        sums = total(plane, resolution)
        assert (sums.requests, sums.output_tokens, sums.good) == (6, 600, 6)
        assert sums.ttft == Histogram.of([0.5, 0.5, 1.0, 1.0, 5.0, 5.0])


def test_figures_that_are_not_asked_for_are_not_read(plane):
    write_requests(plane, 3)
    with plane.database.reading() as session:
        [sums] = load_requests(session, plane.now().timestamp(), 300, whole, "requests", "ttft").values()
    assert (sums.requests, sums.ttft.count, sums.output_tokens, sums.tpot.count) == (3, 3, 0, 0)


def test_each_length_of_span_is_kept_for_its_own_time(plane, clock):
    write_requests(plane)
    kept = []
    for hours in (5, 2, 8 * 24 - 10, 4, 395 * 24, 24 * 10):
        clock.advance(hours=hours)
        with plane.database.unit_of_work(plane.send) as work:
            delete_old_rollups(work.session, plane.now().timestamp())
        kept.append(tuple(total(plane, resolution).requests for resolution in RESOLUTIONS))
    assert kept == [(1, 1, 1), (0, 1, 1), (0, 1, 1), (0, 0, 1), (0, 0, 0), (0, 0, 0)]


def test_a_window_holds_what_it_should_and_at_most_one_span_more(plane):
    for age_s in (100, 400, 5000, 3 * DAY_S):
        write_requests(plane, age_s=age_s)
    now_s = plane.now().timestamp()
    with plane.database.reading() as session:
        found = [
            RequestSums.merged(load_requests(session, now_s, window_s, whole).values()).requests
            for window_s in (300, 900, 2 * HOUR_S, 4 * DAY_S)
        ]
        before = RequestSums.merged(load_requests(session, now_s, 2 * HOUR_S, whole, before_s=600).values()).requests
    assert found == [1, 2, 3, 4]
    assert before == 1
    assert [resolution_for(window_s) for window_s in (300, 3600, 30 * DAY_S)] == [FINE, MIDDLE, COARSE]


def test_a_window_that_ended_before_holds_nothing_younger(plane, clock):
    for _ in range(40):
        clock.advance(seconds=17)
        write_requests(plane, age_s=0)
        now_s = plane.now().timestamp()
        with plane.database.reading() as session:
            before = load_requests(session, now_s, 6 * HOUR_S, lambda key: key.at_s, "requests", before_s=300)
        assert all(at_s + 300 <= now_s - 300 for at_s in before)


def test_classes_of_a_link_and_main_nodes_are_summed_in_every_length_of_span(plane, clock):
    at_s = int(plane.now().timestamp()) // 10 * 10
    for _ in range(2):
        write(
            plane,
            Rollups(
                link_classes={LinkClassKey(at_s, "ams-fra", "gold"): LinkClassSums(100)},
                nodes={NodeKey(at_s, "fra-md-01"): NodeSums(1, 40, 80.0)},
            ),
        )
    until_s = at_s + 10
    with plane.database.reading() as session:
        for resolution in RESOLUTIONS:
            (gold,) = load_link_class_rollups(session, resolution, 0, until_s).values()
            (node,) = load_node_rollups(session, resolution, 0, until_s).values()
            assert (gold, node) == (LinkClassSums(200), NodeSums(2, 80, 160.0))
    clock.advance(days=500)
    with plane.database.unit_of_work(plane.send) as work:
        assert delete_old_rollups(work.session, plane.now().timestamp()) == 2 * len(RESOLUTIONS)


def test_links_and_sites_are_summed_by_name(plane):
    write_link(plane, samples=2, total_bytes=100, seconds=2.0)
    write_link(plane, age_s=50, samples=1, total_bytes=50, flaps=1)
    write_link(plane, "fra-ams", samples=1)
    write_site(plane, gateway_batches=4, stranded_bytes=2**40)
    now_s = plane.now().timestamp()
    with plane.database.reading() as session:
        links, sites = load_links(session, now_s, 300), load_sites(session, now_s, 300)
    assert (links["ams-fra"].total_bytes, links["ams-fra"].flaps, links["fra-ams"].samples) == (150, 1, 1)
    assert sites["ams"].stranded_bytes == 2**40
