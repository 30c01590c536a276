"""The language checker finds each kind of violation, and leaves plain English alone."""

import ast
import tomllib

import pytest
from check_language import ROOT, RULES, Exceptions, Finding, LanguageRules, check_sections, find_names, split_paragraphs

DECLARED = tomllib.loads(RULES.read_text())
LANGUAGE = LanguageRules(DECLARED)


def check(text: str) -> list[str]:
    passages = split_paragraphs(enumerate(text.splitlines(), 1))
    return [message for passage in passages for message in LANGUAGE.check_passage(passage)]


@pytest.mark.parametrize(
    "text",
    [
        "Who logs in; PENSTOCK_PASSWORD has the password.",
        "Rollbacks are printed before what came after them.",
        "The consumer begins anew.",
        "The vbucket's state is told to the client.",
        "The stream is gone.",
        "This is not in this version.",
        " ".join(["word"] * 26) + ".",
        "- " + " ".join(["word"] * 26) + ".",
    ],
)
def test_violations_are_found(text):
    assert len(check(text)) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "User name. The password is read from `--password-file` or PENSTOCK_PASSWORD.",
        "The users who log in have roles.",
        "What happens when a vbucket moves?",
        " ".join(["word"] * 25) + ". Next.",
        "The list:\n\n- " + " ".join(["word"] * 13) + "\n- " + " ".join(["word"] * 13),
        "```\nwho said what\n```",
        "The name `who` stands in code.",
        "Args:\n    name: " + " ".join(["word"] * 20) + "\n    other: " + " ".join(["word"] * 20),
    ],
)
def test_plain_english_is_left_alone(text):
    assert check(text) == []


def test_names_are_divided_at_underscores_and_capitals():
    assert len(list(LANGUAGE.check_name("test_who_isTold"))) == 2
    assert list(LANGUAGE.check_name("whole_folder")) == []


def test_declared_names_are_found():
    tree = ast.parse("class A:\n    b: int = 1\n    def c(self, d):\n        self.e = f = 2\n")
    assert {name for _, name in find_names(ast.walk(tree))} == set("Abcdef") | {"self"}


def test_attributes_that_a_class_does_not_have_are_found():
    text = 'class A:\n    """A.\n\n    Attributes:\n        b: one.\n        c: two.\n    """\n    b: int\n'
    assert [message for _, message in check_sections(ast.walk(ast.parse(text)))] == [
        "A documents the attribute c, which it does not have"
    ]


def test_exceptions_cover_their_places_only():
    exceptions = Exceptions([{"path": "docs", "text": "CODE", "reason": "a reason"}])
    assert exceptions.list_unused() != []
    assert exceptions.cover(Finding(ROOT / "docs" / "a.md", 1, "in CODE"))
    assert not exceptions.cover(Finding(ROOT / "src" / "a.py", 1, "in CODE"))
    assert exceptions.list_unused() == []


def test_every_exception_has_a_reason():
    assert all(set(entry) == {"path", "text", "reason"} for entry in DECLARED.get("exceptions", []))
