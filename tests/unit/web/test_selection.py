import pytest

from webapp.selection import Selection, link_with


@pytest.mark.parametrize(
    ("parameters", "query"),
    [
        ({}, ""),
        ({"site": "ams"}, "?site=ams"),
        ({"site": "nowhere", "range": "1h"}, "?range=1h"),
        ({"range": "for ever"}, ""),
        ({"from": "100", "to": "400", "range": "1h"}, "?from=100&to=400"),
        ({"from": "400", "to": "100"}, ""),
        ({"from": "nan", "to": "1e400"}, ""),
        ({"from": "1", "to": "90000000"}, ""),
    ],
)
def test_an_address_selects_what_it_says_and_nothing_else(parameters, query):
    assert Selection.of(parameters, ("ams", "fra")).query == query


def test_a_range_ends_now_and_a_span_where_it_says():
    assert Selection.of({"range": "5m"}).bounds_s(1000) == (700, 1000)
    assert Selection.of({"from": "10", "to": "20"}).bounds_s(1000) == (10, 20)


def test_a_link_keeps_the_rest_of_the_address():
    parameters = {"site": "ams", "from": "1", "to": "2", "cursor": "9", "outcome": "failed"}
    assert link_with("/requests", parameters, range="1h") == "/requests?site=ams&outcome=failed&range=1h"
    assert link_with("/requests", parameters, site="") == "/requests?from=1&to=2&outcome=failed"
    assert link_with("/", {}, site="") == "/"
