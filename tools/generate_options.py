"""Write the tables of options on the pages about Spark from their declarations; with --check only compare them."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from pathlib import Path

from generated import publish

from penstock.client.connect.address import ConnectionOptions
from penstock.options import Option, options_of
from penstock.spark.sink.sink_options import SinkOptions
from penstock.spark.source.bucket_options import BucketOptions
from penstock.spark.source.source_options import SourceOptions

DOCS = Path(__file__).parent.parent / "docs"

TABLE = re.compile(r"(?P<mark><!-- Made by tools/generate_options.py from (?P<name>\w+)[^\n]*-->\n\n)(\|[^\n]*\n)*")
"""A mark and the table below it."""


def table(options: Collection[Option]) -> str:
    """Return a row for each option, with a column of examples if there are some."""
    columns = ["option", "what it is", "default", *(["example"] if any(option.example for option in options) else [])]
    rows = [[f"`{option.outside_name}`", option.doc, option.default_text, f"`{option.example}`"] for option in options]
    cells = [columns, ["---"] * len(columns), *(row[: len(columns)] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def those_of(owner: type, *, without: type) -> list[Option]:
    """Return the options of a class, but for those of another one."""
    return [option for name, option in options_of(owner).items() if name not in options_of(without)]


TABLES = {
    "SourceOptions": table(options_of(SourceOptions).values()),
    "SinkOptions": table(those_of(SinkOptions, without=BucketOptions)),
    "ConnectionOptions": table(those_of(ConnectionOptions, without=SourceOptions)),
}


def main() -> int:
    """Fill the tables of all pages. Returns the exit status."""
    status = 0
    for page in ("spark.md", "sink.md"):
        text = (DOCS / page).read_text()
        status |= publish(DOCS / page, TABLE.sub(lambda found: found["mark"] + TABLES[found["name"]], text))
    return status


if __name__ == "__main__":
    sys.exit(main())
