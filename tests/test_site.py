"""The site of the documentation has every page, and its front page leads to each. `make docs` checks the links."""

import re
from pathlib import Path

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
