"""`penstock pipeline show`, `compact` and `vacuum`: the tables themselves."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.base.app import AsJson, examples
from penstock.cli.base.show import as_object, json_line
from penstock.cli.base.text_tables import read_rows, show_table, table_of
from penstock.cli.pipeline.arguments import OneSource, Where, lake_of, written_lakes_of
from penstock.cli.pipeline.group import commands
from penstock.cli.pipeline.progress_display import size

if TYPE_CHECKING:
    from penstock.spark.lake.maintenance.maintenance_report import MaintenanceReport


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
    source: OneSource = None,
    as_json: AsJson = False,
) -> None:
    """Show rows of a table: the first keys of current, or the newest rows of the changelog.

    What the current table has not merged yet is merged into what is shown.
    With --json a row is an object with all columns that are not null.
    cas and vbuuid are strings, bytes are text as in penstock tail --json.
    """
    lake = lake_of(where, source)
    if as_json:
        for row in read_rows(lake, table, limit):
            print(json_line(as_object(row)))
        return
    show_table(table_of(lake, table, limit))


@commands.command(epilog=examples("penstock pipeline compact ./lake", "penstock pipeline compact pipeline.toml --json"))
def compact(where: Where, *, as_json: AsJson = False) -> None:
    """Join small files of the tables, as many micro-batches leave them. A run may go on meanwhile.

    Rows stay as they are. The files that were joined stay on the disk until
    penstock pipeline vacuum. With --json a line is one source.
    """
    from penstock.spark.lake.maintenance.lake_compaction import compact as join
    from penstock.spark.pipeline.state.lake_status import applied_versions

    for source, lake in written_lakes_of(where).items():
        _tell(source, join(lake, applied_versions(lake)), "files", as_json=as_json)


@commands.command(
    epilog=examples("penstock pipeline vacuum ./lake", "penstock pipeline vacuum ./lake --keep-hours 24 --json")
)
def vacuum(
    where: Where,
    *,
    keep_hours: Annotated[
        int, typer.Option(min=0, metavar="HOURS", help="How long to keep a file that no table has any more.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Remove files from the disk that the tables no longer have.

    Whoever began to read before a file was replaced must be done within
    --keep-hours; 0 is for tables that nobody reads and no run keeps. With
    --json a line is one source.
    """
    from penstock.spark.lake.maintenance.lake_vacuum import vacuum as remove

    for source, lake in written_lakes_of(where).items():
        _tell(source, remove(lake, keep_hours), "files on disk", as_json=as_json)


def _tell(source: str | None, report: MaintenanceReport, what: str, *, as_json: bool) -> None:
    if as_json:
        print(json_line({"source": source, **asdict(report)}), flush=True)
        return
    for name, each in (("changelog", report.changelog), ("current", report.current)):
        head = name if source is None else f"{source} {name}"
        before, after = f"{each.files_before:,} ({size(each.bytes_before)})", f"{each.files_after:,}"
        print(f"{head:<12} {before} to {after} ({size(each.bytes_after)}) {what}", flush=True)
