"""Pages that are made from the code: written, or with --check only compared."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"


def publish(pages: Mapping[str, str], folder: Path = DOCS) -> None:
    """Write files of a folder; with --check only compare them, and end with status 1 if one would become different."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a page would become different")
    check = parser.parse_args().check
    stale = [
        name for name, text in pages.items() if not ((folder / name).exists() and (folder / name).read_text() == text)
    ]
    for name in stale:
        if check:
            print(f"{folder.name}/{name} is not what the code says: run python {sys.argv[0]}", file=sys.stderr)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(pages[name])
    sys.exit(1 if check and stale else 0)


def table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in lines)
