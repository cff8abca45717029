"""One catalogue of metrics: its page, the code that asks for them, and the Grafana board all agree with it."""

import json
import re

import pytest

from control.metric_catalogue import DOCUMENT, METRICS, Kind, catalogue_document
from deploy.grafana.make_board import BOARD, board

KEYWORDS = {"sum", "rate", "by", "histogram_quantile", "count", "label_values", "le"}
# What Prometheus adds to every series, and what buckets have.
GIVEN_LABELS = {"instance", "job"}
QUERIES = [
    (panel["title"], target["expr"]) for panel in json.loads(BOARD.read_text())["panels"] for target in panel["targets"]
]


def labels_by_sample():
    """Labels of each sample that some process emits; a name of several processes has the labels of any."""
    known = {}
    for one in METRICS:
        for sample in one.samples:
            labels = set(one.labels) | ({"le"} if sample.endswith("_bucket") else set())
            known.setdefault(sample, []).append(labels)
    return known


def test_names_and_labels_are_as_prometheus_wants_them():
    for one in METRICS:
        assert re.fullmatch(r"(pdd_|vllm:)[a-z0-9_]+[a-z]", one.name), one
        assert (one.kind is Kind.COUNTER) == one.name.endswith("_total"), one
        assert all(re.fullmatch(r"[a-z_]+", label) for label in one.labels), one
        assert one.text.endswith("."), one
    assert len({(one.process, one.name) for one in METRICS}) == len(METRICS)


def test_one_name_has_one_type_everywhere():
    kinds = {}
    for one in METRICS:
        kinds.setdefault(one.name, set()).add(one.kind)
    assert all(len(found) == 1 for found in kinds.values())


def test_the_page_is_the_one_that_the_catalogue_makes():
    assert DOCUMENT.read_text(encoding="utf-8") == catalogue_document(), "run python -m control.metric_catalogue"


def test_the_board_is_the_one_that_its_script_makes():
    assert json.loads(BOARD.read_text()) == board(), "run python -m deploy.grafana.make_board"


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_every_query_of_the_board_asks_for_what_is_emitted(title, query):
    known = labels_by_sample()
    bare = re.sub(r'"[^"]*"', '""', query)
    selected = re.findall(r"([a-z0-9_:]+)(?:\{([^}]*)\})?(?=[\[)\s]|$)", re.sub(r"\bby \([^)]*\)", "", bare))
    names = [(name, where) for name, where in selected if name not in KEYWORDS and ("_" in name or ":" in name)]
    assert names, query
    grouped = {label.strip() for labels in re.findall(r"\bby \(([^)]*)\)", bare) for label in labels.split(",")}
    for name, where in names:
        assert name in known, (title, name)
        wanted = set(re.findall(r"([a-z_]+)(?:=~|!=|=)", where)) | (grouped - GIVEN_LABELS)
        assert any(wanted <= labels for labels in known[name]), (title, name, wanted)


def test_the_variables_of_the_board_ask_for_what_is_emitted():
    known = labels_by_sample()
    [asked] = [one["query"]["query"] for one in board()["templating"]["list"] if one["type"] == "query"]
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", asked).groups()
    assert any(label in labels for labels in known[name])


def test_no_two_panels_cover_each_other():
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board()["panels"]]
    assert len(set(places)) == len(places)
