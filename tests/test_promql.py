"""Boards and alert rules of contrib/ as Prometheus reads them: a parser of PromQL takes each expression apart."""

import re

import promql_parser
import pytest
from promql_parser import (
    AggregateExpr,
    Call,
    Expr,
    MatrixSelector,
    VectorSelector,
)

from tests.test_contrib import EXPRESSIONS, METRICS, OF_TARGETS

RATES = {"rate", "increase"}


def parse(expression: str) -> Expr:
    """Return the tree of an expression, with the interval that Grafana would insert."""
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def list_nodes(tree: Expr) -> list[Expr]:
    found: list[Expr] = []
    promql_parser.walk(tree, found.append)
    return found


@pytest.mark.parametrize(("expression", "text"), EXPRESSIONS)
def test_expression_is_one_of_prometheus(expression, text):
    nodes = list_nodes(parse(expression))
    selectors = [node for node in nodes if isinstance(node, VectorSelector)]
    selectors += [node.vector_selector for node in nodes if isinstance(node, MatrixSelector)]
    assert {each.name for each in selectors} == {*re.findall(r"penstock_\w+", expression)} <= METRICS.keys()
    for each in selectors:
        assert {matcher.name for matcher in each.matchers.matchers} <= METRICS[each.name].labels | OF_TARGETS
    for call in (node for node in nodes if isinstance(node, Call)):
        if call.func.name in RATES:
            (selector,) = call.args
            assert isinstance(selector, MatrixSelector)
            assert METRICS[selector.vector_selector.name].kind in ("counter", "histogram")
    labels = OF_TARGETS.union(*(METRICS[each.name].labels for each in selectors))
    for aggregate in (node for node in nodes if isinstance(node, AggregateExpr)):
        assert aggregate.modifier is not None
        assert {*aggregate.modifier.labels} <= labels


@pytest.mark.parametrize("expression", ["sum by (a) (rate(x[5m])", "rate(x)", "x[5m] > 0", "unknown(x)", "x >> 0"])
def test_parser_refuses_invalid_expressions(expression):
    with pytest.raises(ValueError, match=r"\w"):
        parse(expression)
