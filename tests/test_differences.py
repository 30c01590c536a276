"""docs/differences.md: it has every difference from the recorded server, and the tests that it names exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.node.modern_tables import MODERN_DIFFERENCES
from tests.node.replay_tables import DIFFERENCES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| difference |", "| --- |"))
]
RECORDED = [row for row in ROWS if len(row) == 4]
OTHERS = [row for row in ROWS if len(row) == 5]
NAMED = [name for row in OTHERS for name in re.findall(r"`(tests/[^`]+)`", row[-1])]


def test_every_recorded_difference_has_a_row():
    modern = [name for name in MODERN_DIFFERENCES if name not in DIFFERENCES]
    assert [name for name, *_ in RECORDED] == [*DIFFERENCES, *modern]


def test_every_row_has_both_behaviours_and_a_reason():
    assert len(RECORDED) + len(OTHERS) == len(ROWS)
    assert all(all(row) for row in ROWS)
    assert len({row[0] for row in ROWS}) == len(ROWS)
    assert all("`tests/" in row[-1] for row in OTHERS)


@pytest.mark.parametrize("name", NAMED)
def test_the_tests_that_it_names_exist(name):
    file, _, function = name.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
