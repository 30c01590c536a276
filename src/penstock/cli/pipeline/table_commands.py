"""`penstock pipeline show`, `compact` and `vacuum`: read and maintain tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, format_examples
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.base.text_tables import make_lake_table, make_row_object, print_table, read_rows
from penstock.cli.base.work_display import Quiet, show_status
from penstock.cli.pipeline.arguments import FileOrLake, OneSource, find_written_lakes, select_lake
from penstock.cli.pipeline.group import commands
from penstock.cli.pipeline.progress_display import format_size
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.spark.lake.maintenance.maintenance_report import MaintenanceReport


def _complete_table(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of tables that begin so; typed ones only of a lake that is a directory."""
    place = Path(str(context.params.get("where"))) / "tables"
    names = sorted(each.name for each in place.iterdir()) if place.is_dir() else []
    return [name for name in ("changelog", "current", *names) if name.startswith(incomplete)]


@commands.command(
    epilog=format_examples(
        "penstock pipeline show ./lake beers --limit 5",
        "penstock pipeline show ./lake changelog --json",
        "penstock pipeline show pipeline.toml current --source beer",
    )
)
def show(
    where: FileOrLake,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="The table to show: changelog, current, or the name of a typed table.",
            autocompletion=_complete_table,
        ),
    ],
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Maximum number of rows.")] = 10,
    source: OneSource = None,
    as_json: AsJson = False,
) -> None:
    """Show rows of a table: the first keys, or the newest rows of the changelog.

    A typed table is shown as of its last merge. In current, changes that are not
    merged yet are included. With --json, each row is an object with all columns
    that are not null. cas and vbuuid are strings; bytes are text as in penstock
    tail --json, and base64 in a typed table.
    """
    lake = select_lake(where, source)
    if as_json:
        for row in read_rows(lake, table, limit):
            print_text(format_json_line(make_row_object(table, row)))
        return
    print_table(make_lake_table(lake, table, limit))


@commands.command(
    epilog=format_examples("penstock pipeline compact ./lake", "penstock pipeline compact pipeline.toml --json")
)
def compact(where: FileOrLake, *, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Merge the small files that micro-batches leave into larger ones.

    Rows do not change, and a run may continue meanwhile. The replaced files stay
    on disk until penstock pipeline vacuum. With --json, each line is one source.
    """
    from penstock.spark.lake.maintenance.lake_compaction import compact as join
    from penstock.spark.pipeline.state.lake_status import list_applied_versions

    for source, lake in find_written_lakes(where).items():
        with show_status(f"Compacting {lake.path}", is_quiet=quiet or as_json):
            report = join(lake, list_applied_versions(lake))
        _print_report(source, report, "files", as_json=as_json)


@commands.command(
    epilog=format_examples("penstock pipeline vacuum ./lake", "penstock pipeline vacuum ./lake --keep-hours 24 --json")
)
def vacuum(
    where: FileOrLake,
    *,
    keep_hours: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="HOURS",
            help="Keep files that tables dropped less than this time ago. Default: time_travel of typed tables, or 1.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the files and bytes that a vacuum would free.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Delete files that tables and indexes no longer use.

    A query that started before a file was replaced must end within --keep-hours.
    Use 0 only if no query reads and no run writes the tables. With --json, each
    line is one source.
    """
    from penstock.spark.pipeline.maintenance.vacuuming import vacuum as remove

    for source, lake in find_written_lakes(where).items():
        with show_status(f"Deleting unused files of {lake.path}", is_quiet=quiet or as_json):
            report = remove(lake, keep_hours, dry_run=dry_run)
        _print_report(source, report, "files on disk", as_json=as_json, freed="would be freed" if dry_run else "freed")


@commands.command(
    epilog=format_examples(
        'penstock pipeline retain ./lake --retention "30 days" --dry-run',
        'penstock pipeline retain ./lake --retention "100 GB"',
        "penstock pipeline retain pipeline.toml --json",
    )
)
def retain(
    where: FileOrLake,
    *,
    retention: Annotated[
        str | None,
        typer.Option(metavar="LIMIT", help="Age such as 30 days, or size such as 100 GB. Default: the limit in FILE."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the rows.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Drop old versions from the changelog.

    Only versions that a newer version has replaced are dropped: the newest version
    of each document stays. Versions also stay if a dependent has not read them, or
    if a rollback may bring them back. Past states that need dropped versions are
    refused. A run may continue meanwhile, and drops versions by itself if FILE has
    a limit. With --json, each line is one source.
    """
    from penstock.spark.lake.maintenance.lake_retention import parse_retention, retain_changelog
    from penstock.spark.pipeline.definition.definition import is_definition, read_definition
    from penstock.spark.pipeline.state.lake_status import list_applied_versions

    text = retention
    if text is None and is_definition(where):
        text = read_definition(where).tables.retention
    if text is None:
        raise UsageError("expected --retention, or retention in [tables] of FILE, such as 30 days or 100 GB")
    limit = parse_retention(text)
    for source, lake in find_written_lakes(where).items():
        with show_status(f"Dropping old versions of {lake.path}", is_quiet=quiet or as_json):
            report = retain_changelog(lake, limit, list_applied_versions(lake), dry_run=dry_run)
        if as_json:
            oldest = None if report.oldest is None else report.oldest.isoformat()
            print_text(format_json_line({"source": source, **asdict(report), "oldest": oldest}))
            continue
        dropped = report.rows_before - report.rows_after
        verb = "would be dropped" if dry_run else "dropped"
        sizes = f"{format_size(report.bytes_before)} to {format_size(report.bytes_after)}"
        line = f"{dropped:,} of {report.rows_before:,} rows {verb}" + ("" if dry_run else f"; {sizes}")
        if report.oldest is not None:
            line += f"; the oldest state left is that of {report.oldest:%Y-%m-%dT%H:%M:%SZ}"
        print_text(line if source is None else f"{source}: {line}")


def _print_report(
    source: str | None, report: MaintenanceReport, noun: str, *, as_json: bool, freed: str | None = None
) -> None:
    if as_json:
        print_text(format_json_line({"source": source, **asdict(report)}))
        return
    parts = {"changelog": report.changelog, "current": report.current, **report.tables, **report.indexes}
    for name, each in parts.items():
        head = name if source is None else f"{source} {name}"
        before, after = f"{each.files_before:,} ({format_size(each.bytes_before)})", f"{each.files_after:,}"
        line = f"{head:<12} {before} to {after} ({format_size(each.bytes_after)}) {noun}"
        if freed is not None:
            files, size = each.files_before - each.files_after, format_size(each.bytes_before - each.bytes_after)
            line += f"; {files:,} file{'s' * (files != 1)} ({size}) {freed}"
        print_text(line)
