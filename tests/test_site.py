"""The site of the documentation has every page, and its front page leads to each. `make docs` checks the links."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SITE = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
NAVIGATION = re.findall(r"^ +- [^:\n]+: (\S+\.md)$", SITE[SITE.index("\nnav:") :], re.MULTILINE)
OUTSIDE = {"CHANGELOG.md": "CHANGELOG.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "RESULTS.md": "benchmarks/RESULTS.md"}


def test_the_navigation_has_every_page_once():
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert sorted(NAVIGATION) == sorted(pages | OUTSIDE.keys())


def test_pages_outside_the_folder_are_those_that_the_build_adds():
    added = (ROOT / "tools" / "site_pages.py").read_text(encoding="utf-8")
    for path in OUTSIDE.values():
        assert (ROOT / path).is_file()
        assert f'"{path}"' in added


def test_the_front_page_leads_to_every_page():
    linked = set(re.findall(r"\]\(([^)#]+\.md)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert sorted(set(NAVIGATION) - linked) == ["index.md"]


QUESTION = re.compile(
    r"^\| (?P<question>[^|]+\?) \| (?P<label>[^|]+) \| \[[^]]+\]\((?P<page>[^)#]+)#(?P<anchor>[^)]+)\) \|$"
)
LINK = re.compile(r"\[(?P<label>[^]]+)\]\((?P<page>[^)#:]+\.md)[^)]*\)")


def read_page(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def list_links(page: str) -> list[tuple[str, str]]:
    """Return label and page of each link to another page, both pages relative to docs/."""
    folder = (DOCS / page).parent
    return [
        (link["label"], (folder / link["page"]).resolve().relative_to(DOCS).as_posix())
        for link in LINK.finditer(read_page(page))
        if (folder / link["page"]).resolve().is_relative_to(DOCS)
    ]


def list_anchors(page: str) -> set[str]:
    """Return the anchors of the headings as MkDocs makes them."""
    headings = re.findall(r"^#+ (.+)$", read_page(page), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


QUESTIONS = [match for line in read_page("questions.md").splitlines() if (match := QUESTION.match(line))]


def test_the_questions_are_ten_of_each_kind_of_reader():
    parts = read_page("questions.md").split("\n## ")[1:]
    assert [sum(bool(QUESTION.match(line)) for line in part.splitlines()) for part in parts] == [10, 10]


@pytest.mark.parametrize("row", QUESTIONS, ids=lambda row: row["question"])
def test_the_answer_to_a_question_is_two_links_from_the_front_page(row):
    """The first link is on the front page under its label. The second leads to a section of that page or of another."""
    first = {page for label, page in list_links("index.md") if label == row["label"]}
    assert len(first) == 1
    [landing] = first
    assert row["page"] == landing or row["page"] in {page for _, page in list_links(landing)}
    assert row["anchor"] in list_anchors(row["page"])


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_every_drawing_is_on_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    drawings = [path.name for path in (DOCS / "diagrams").glob("*.svg")]
    assert drawings
    assert [name for name in drawings if f"(diagrams/{name})" not in text] == []


def test_nothing_is_loaded_from_elsewhere():
    """The rest is checked in the built site, by tools/site_pages.py."""
    assert "font: false" in SITE
    assert "http://" not in SITE
    assert "https://" not in SITE
