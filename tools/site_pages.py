"""Hooks of MkDocs: pages outside docs/, links to them, and a check that the site loads nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
OUTSIDE = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/RESULTS.md",
    "benchmarks/durable_scaling.svg",
    "benchmarks/spark_scaling.svg",
)
"""Files outside docs/ that the site has too, beside its front page."""

LINK = re.compile(r"(?<=\]\()(?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
KIND_OF_BLOCK = re.compile(r"^```(?P<language>\w+) +\w+$", re.MULTILINE)
"""A code block whose first line has a word for the tests behind the language: MkDocs would not know such a block."""

STATES = re.compile(r"^```mermaid\nstateDiagram-v2\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
TRANSITION = re.compile(r"^ +(?P<state>\w+) --> (?P<next>\w+): (?P<events>.+)$", re.MULTILINE)

LOADED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
CANONICAL = re.compile(r"rel=[\"']?(?:canonical|edit|license)\b")


def on_files(files: Files, config: Any) -> Files:
    """Add the files that lie outside docs/."""
    for path in OUTSIDE:
        files.append(File.generated(config, Path(path).name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the places of pages in the site, and change code blocks that MkDocs cannot show."""
    source = Path(page.file.abs_src_path)

    def placed(link: re.Match[str]) -> str:
        target = (source.parent / link["path"]).resolve()
        path = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
        anchor = link["anchor"] or ""
        up = "../" * page.file.src_uri.count("/")
        if path in OUTSIDE:
            return f"{up}{target.name}{anchor}"
        if source.name in {Path(outside).name for outside in OUTSIDE} and path.startswith("docs/"):
            return f"{path.removeprefix('docs/')}{anchor}"
        return link[0]

    return KIND_OF_BLOCK.sub(r"```\g<language>", STATES.sub(as_table, LINK.sub(placed, markdown)))


def as_table(diagram: re.Match[str]) -> str:
    """Return the transitions of a state diagram as a table: drawing the diagram needs a script from another host."""
    rows = [
        f"| {each['state']} | {each['events']} | {each['next']} |" for each in TRANSITION.finditer(diagram["lines"])
    ]
    return "\n".join(["| state | event | next state |", "| --- | --- | --- |", *rows])


def on_post_build(config: Any) -> None:
    """Refuse a site that a browser without a network could not show.

    Raises:
        PluginError: a page loads a script, a style sheet, a font or a picture from another host.
    """
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        for found in LOADED.finditer(page.read_text(encoding="utf-8")):
            if not CANONICAL.search(found[0]):
                raise PluginError(f"{page.name} loads {found[0]}; the site must work without a network.")
