"""Boards and alert rules of contrib/: every expression uses metrics and labels that exist."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
CONTRIB = ROOT / "contrib"
BOARDS = sorted((CONTRIB / "grafana").glob("*.json"))
RULES = (CONTRIB / "prometheus" / "penstock-alerts.yml").read_text()
OF_TARGETS = {"instance", "job", "le"}
"""Labels that Prometheus adds, or that every histogram has."""

_ROW = re.compile(r"^\| `(penstock_\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)


class Known(NamedTuple):
    """A metric of docs/metrics.md, which is made from the code."""

    kind: str
    labels: frozenset[str]


def read_metrics():
    """Return the samples that the documented metrics have, by name."""
    found = {}
    for name, kind, labels in _ROW.findall((ROOT / "docs" / "metrics.md").read_text()):
        known = Known(kind, frozenset(re.findall(r"`(\w+)`", labels)))
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found.update({f"{name}{end}": known for end in ends})
    return found


METRICS = read_metrics()


def list_expressions():
    for path in BOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield pytest.param(target["expr"], target["legendFormat"], id=f"{path.stem} {panel['title']}")
    for name, expression, summary in re.findall(
        r'- alert: (\w+)\n +expr: (".*?")\n.*?summary: (".*?")\n', RULES, re.DOTALL
    ):
        yield pytest.param(json.loads(expression), json.loads(summary), id=name)


EXPRESSIONS = [*list_expressions()]


def test_all_expressions_are_found():
    assert len(BOARDS) == 3
    assert len(EXPRESSIONS) > 50
    assert RULES.count("- alert:") == sum("Penstock" in str(each.id) for each in EXPRESSIONS) == 15
    assert len(METRICS) > 100


@pytest.mark.parametrize(("expression", "text"), EXPRESSIONS)
def test_expression_uses_metrics_and_labels_that_exist(expression, text):
    metrics = re.findall(r"penstock_\w+", expression)
    assert metrics
    assert not set(metrics) - METRICS.keys()
    labels = OF_TARGETS.union(*(METRICS[name].labels for name in metrics))
    for name in metrics:
        is_rate = re.search(rf"(?:rate|increase)\({name}\b", expression) is not None
        is_counter = METRICS[name].kind in ("counter", "histogram")
        assert is_rate == is_counter or "unless" in expression, f"{name} is a {METRICS[name].kind}"
    grouped = {label for part in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for label in part.split(", ")}
    selected = set(re.findall(r"[{,] ?(\w+)(?:=~|!=|=)", expression))
    shown = set(re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text))
    assert not (grouped | selected | shown) - labels
    by = re.findall(r"sum by \(([^)]*)\)", expression)
    assert not by or shown <= set(by[0].split(", ")), "a label that the sum drops"


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_board_can_be_imported(path):
    board = json.loads(path.read_text())
    assert board["title"].startswith("Penstock: ")
    assert {each["name"] for each in board["templating"]["list"]} >= {"datasource", "instance"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
    assert len(places) == len(board["panels"])
    queries = [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    for query in queries:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
        assert found is not None
        assert found[2] in METRICS[found[1]].labels | {"instance"}


def test_rules_have_a_time_a_severity_and_a_sentence():
    rules = RULES.split("- alert:")[1:]
    for rule in rules:
        assert re.search(r"\n +for: \d+m\n +labels:\n +severity: (critical|warning)\n", rule), rule
        assert re.search(r'summary: ".*\."', rule), rule
