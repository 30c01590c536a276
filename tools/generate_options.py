"""Write the tables of options on the pages about Spark from their declarations; with --check only compare them."""

from __future__ import annotations

import re
from collections.abc import Collection

from generated import DOCS, publish, table

from penstock.client.connect.address import ConnectionOptions
from penstock.options import Option, list_options
from penstock.spark.runtime.lake_source import LakeReadOptions
from penstock.spark.sink.sink_options import SinkOptions
from penstock.spark.source.bucket_options import BucketOptions
from penstock.spark.source.source_options import SourceOptions

TABLE = re.compile(r"(?P<mark><!-- Made by tools/generate_options.py from (?P<name>\w+)[^\n]*-->\n\n)(\|[^\n]*\n)*")
"""A mark and the table below it."""


def make_table(options: Collection[Option]) -> str:
    """Return a row for each option, with a column of examples if there are some."""
    columns = ["option", "meaning", "default", *(["example"] if any(option.example for option in options) else [])]
    rows = [[f"`{option.external_name}`", option.doc, option.default_text, f"`{option.example}`"] for option in options]
    return table(tuple(columns), [tuple(row[: len(columns)]) for row in rows])


def list_own_options(owner: type, *, without: type) -> list[Option]:
    """Return the options of a class that another class does not have."""
    return [option for name, option in list_options(owner).items() if name not in list_options(without)]


TABLES = {
    "SourceOptions": make_table(list_options(SourceOptions).values()),
    "LakeReadOptions": make_table(list_options(LakeReadOptions).values()),
    "SinkOptions": make_table(list_own_options(SinkOptions, without=BucketOptions)),
    "ConnectionOptions": make_table(list_own_options(ConnectionOptions, without=SourceOptions)),
}


def fill_page(page: str) -> str:
    """Return a page with its tables filled."""
    return TABLE.sub(lambda found: found["mark"] + TABLES[found["name"]], (DOCS / page).read_text())


if __name__ == "__main__":
    publish({page: fill_page(page) for page in ("spark.md", "sink.md", "views.md")})
