"""docs/open-questions.md: every question has an answer, and the tests that it names exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "open-questions.md").read_text(encoding="utf-8")
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| the draft says", "| ---"))
]
QUESTIONS = 22


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_question_has_a_row():
    assert len({question for question, _, _ in ROWS}) == len(ROWS) == QUESTIONS


@pytest.mark.parametrize(("question", "decision", "shown"), ROWS, ids=[question[:40] for question, _, _ in ROWS])
def test_every_question_has_an_answer_and_a_test_that_exists(question, decision, shown):
    assert len(decision) > 80
    references = re.findall(r"`([^`]+)::(test_\w+)`", shown)
    assert references
    assert shown == ", ".join(f"`{file}::{name}`" for file, name in references)
    for file, name in references:
        assert name in names_in(file), f"{file} has no {name}"
