"""`penstock pipeline find` and `search`: documents by what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.app import AsJson, examples
from penstock.cli.pipeline.group import OneSource, Where, commands, lake_of
from penstock.cli.show import as_object, json_line
from penstock.cli.tables import show_table, table_with

if TYPE_CHECKING:
    import pyarrow as pa

IndexName = Annotated[str, typer.Argument(metavar="INDEX", help="Its name in the pipeline's file.")]
Limit = Annotated[int, typer.Option(min=0, metavar="N", help="How many to show.")]


@commands.command(
    epilog=examples(
        "penstock pipeline find ./lake by_abv 5.1",
        "penstock pipeline find pipeline.toml by_abv 5 --to 7 --limit 100 --json",
        "penstock pipeline find ./lake by_change 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z",
        "penstock pipeline find ./lake by_temperature --to 0 -- -5",
    )
)
def find(
    where: Where,
    index: IndexName,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="What is looked for, or the least of it.")],
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="HIGH", help="The greatest; without, it is VALUE alone.")
    ] = None,
    limit: Limit = 10,
    source: OneSource = None,
    as_json: AsJson = False,
) -> None:
    """Find documents by a secondary index, those with the least values first.

    What the index has not taken in yet is found all the same; a run may go on
    meanwhile. Numbers and booleans are written as in JSON, times in ISO 8601;
    what begins with - comes last, behind --. With --json a line is one entry.
    """
    from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex

    asked = SecondaryIndex.stored(lake_of(where, source), index)
    low = asked.kind.of_text(value)
    found = asked.range(low, low if to is None else asked.kind.of_text(to), limit=limit)
    _tell(index, ("value", "key", "vbucket", "seqno"), found, limit, as_json=as_json)


@commands.command(
    epilog=examples(
        "penstock pipeline search ./lake words 'citrus hop*'",
        "penstock pipeline search pipeline.toml words '\"dry finish\" NOT stout' --limit 3 --json",
    )
)
def search(
    where: Where,
    index: IndexName,
    query: Annotated[str, typer.Argument(metavar="QUERY", help='Words, "a phrase", AND, OR, NOT, NEAR(a b), prefix*.')],
    *,
    limit: Limit = 10,
    source: OneSource = None,
    as_json: AsJson = False,
) -> None:
    """Find documents by a full-text index, best first.

    As of the last batch that the index has taken in; a run may go on
    meanwhile. Found words are in brackets. With --json a line is one document.
    """
    from penstock.spark.dependents.kinds.fulltext import FullText

    found = FullText.stored(lake_of(where, source), index).search(query, limit)
    _tell(index, ("score", "key", "snippet"), found, limit, as_json=as_json)


def _tell(index: str, columns: Sequence[str], found: pa.Table, limit: int, *, as_json: bool) -> None:
    from penstock.wire.collection_names import DEFAULT_NAME

    rows = [_printable(row) for row in found.to_pylist()]
    if as_json:
        for row in rows:
            print(json_line(as_object(row)))
        return
    shown = [row | {"score": f"{row['score']:.2f}"} if "score" in row else row for row in rows]
    paths = [".".join(row[name] or DEFAULT_NAME for name in ("scope", "collection")) for row in rows]
    if any(path != f"{DEFAULT_NAME}.{DEFAULT_NAME}" for path in paths):
        columns = (*columns, "collection")
        shown = [row | {"collection": path} for row, path in zip(shown, paths, strict=True)]
    more = "; there may be more, see --limit" if len(rows) == limit else ""
    show_table(table_with(index, columns, shown, f"{len(rows):,} found{more}"))


def _printable(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a time as text."""
    value = row.get("value")
    return row | {"value": value.isoformat()} if isinstance(value, datetime) else row
