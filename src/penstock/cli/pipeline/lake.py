"""`penstock pipeline show`: the rows of a lake's tables."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from penstock.cli.app import AsJson, examples
from penstock.cli.pipeline.group import Where, commands, lakes_of
from penstock.cli.show import as_object, json_line
from penstock.cli.tables import read_rows, table_of
from penstock.errors import UsageError


@commands.command(
    epilog=examples(
        "penstock pipeline show ./lake current --limit 5",
        "penstock pipeline show ./lake changelog --json",
        "penstock pipeline show pipeline.toml current --source beer",
    )
)
def show(
    where: Where,
    table: Annotated[
        Literal["changelog", "current"], typer.Argument(metavar="changelog|current", help="Which of its tables.")
    ],
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Rows to show.")] = 10,
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose tables, where there are several sources.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show rows of a table: the first keys of current, or the newest rows of the changelog.

    What the current table has not merged yet is merged into what is shown.
    With --json a row is an object with all columns that are not null.
    cas and vbuuid are strings, bytes are text as in penstock tail --json.
    """
    lakes = lakes_of(where)
    chosen = next(iter(lakes)) if source is None and len(lakes) == 1 else source
    if chosen not in lakes:
        names = ", ".join(str(name) for name in lakes if name is not None) or "no name, there is one source"
        raise UsageError(f"--source is {'not given' if source is None else repr(source)}, expected {names}")
    lake = lakes[chosen]
    if as_json:
        for row in read_rows(lake, table, limit):
            print(json_line(as_object(row)))
        return
    from rich.console import Console

    # Where nobody's window is the limit, values are shown at some length.
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table_of(lake, table, limit))
