"""`penstock pipeline status`, `stop` and `reset`: the state of a pipeline's runs and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, format_examples
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.pipeline.arguments import FileOrLake, find_pipeline_lakes, read_lake_status
from penstock.cli.pipeline.group import commands
from penstock.cli.pipeline.progress_display import format_size
from penstock.cli.pipeline.table_status import list_table_lines
from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.errors import Error, UsageError

if TYPE_CHECKING:
    from penstock.spark.pipeline.state.lake_status import LakeStatus, TableSize


@commands.command(
    epilog=format_examples("penstock pipeline status pipeline.toml", "penstock pipeline status ./lake --json")
)
def status(where: FileOrLake, *, as_json: AsJson = False) -> None:
    """Show the process that writes the tables with its pages, and the lag and size of the tables.

    Also names sources, indexes and sinks that have files and are no longer declared.

    Lag and rates of a run are at most some seconds old; after a run they are its
    last values. With --json, each line is one source.
    """
    for found in read_lake_status(where):
        print_text(format_json_line(found.to_dict()) if as_json else _format_status(found))


def _format_status(found: LakeStatus) -> str:
    from penstock.spark.pipeline.state.lake_status import format_time

    lines = [f"{found.source or 'lake'}  {found.lake}"]
    if not found.declared:
        lines.append(f"  {'removed':<14} no longer declared; its files stay until a reset with --source {found.source}")
    lines.append(f"  {'state':<14} {'paused; ' * found.paused}{_describe_state(found)}")
    if found.pid is not None:
        lag = "unknown" if found.lag is None else f"{found.lag:,} seqnos"
        rates = f"{found.rows_per_second:,.0f} rows/s, {format_size(found.bytes_per_second)}/s"
        lines.append(f"  {'lag':<14} {lag}   {rates}")
    lines += [f"  {name:<14} {url}" for name, url in found.pages.items()]
    if found.last_rollback is not None:
        vbuckets = found.last_rollback.vbuckets
        lines.append(f"  {'rolled back':<14} {format_time(found.last_rollback.at)}: vbuckets {format_ranges(vbuckets)}")
    if found.error is not None:
        lines.append(f"  {'error':<14} {found.error}")
    lines += [f"  {'values have':<14} {change}" for change in found.schema_changes]
    lines.append(
        f"  {'changelog':<14} {_format_table_size(found.changelog)}   version {found.version}   {found.format}"
    )
    return "\n".join([*lines, *list_table_lines(found)])


def _describe_state(found: LakeStatus) -> str:
    from penstock.spark.pipeline.state.lake_status import format_time

    if found.pid is None:
        return "running" if found.state == "running" else "never run"
    process = f"process {found.pid}"
    if found.state == "running":
        return f"running, {process} since {format_time(found.since)}"
    if found.state == "stopping":
        return f"{process} has ended, its Java process still runs"
    if found.state == "killed":
        return f"not running; {process} was killed, last report {format_time(found.until)}"
    return f"not running; {process} ended {format_time(found.until)}"


def _format_table_size(found: TableSize | None) -> str:
    if found is None:
        return "not there yet"
    rows = "" if found.rows is None else f"{found.rows:,} rows, "
    return f"{rows}{format_size(found.bytes)} in {found.files:,} file{'s' * (found.files != 1)}"


@commands.command(
    epilog=format_examples("penstock pipeline stop pipeline.toml", "penstock pipeline stop ./lake --timeout 300")
)
def stop(
    where: FileOrLake,
    *,
    timeout: Annotated[
        float, typer.Option(min=0, max=86400, metavar="SECONDS", help="Maximum time to wait for the process to end.")
    ] = 120,
    as_json: AsJson = False,
) -> None:
    """Stop the process that writes the tables, and wait until it has ended.

    The process first merges pending changes. The next run resumes where this one
    ended. It is no error if no process runs. The exit code is 1 if the process
    does not end in time.
    """
    from penstock.spark.pipeline.state.run_state import is_locked
    from penstock.spark.pipeline.state.stopping import stop_runs as ask

    lakes = find_pipeline_lakes(where)
    was_running = any(is_locked(lake) for lake in lakes.values())
    if not was_running and not as_json:
        print_text(f"No run writes {where}.")
        return

    def report_stop(pid: int) -> None:
        if not as_json:
            print_text(f"Stopping process {pid}.")

    if not ask([*lakes.values()], timeout, report_stop):
        raise Error(f"the run of {where} did not end within {timeout:g} s; it may end later")
    for found in read_lake_status(where):
        print_text(
            format_json_line({"was_running": was_running, **found.to_dict()}) if as_json else _format_status(found),
        )


@commands.command(
    epilog=format_examples(
        "penstock pipeline reset ./lake --table current --yes",
        "penstock pipeline reset pipeline.toml --source beer --yes",
    )
)
def reset(
    where: FileOrLake,
    *,
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table", metavar="NAME", help="Only this table, index or sink, for example current; can be repeated."
        ),
    ] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Only the tables of this source.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove the files; without --yes they are only listed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove tables and their positions, so that the next run creates them again.

    Without --table, all tables are removed, and the next run reads the bucket
    from its beginning. current and indexes are rebuilt from the changelog; a sink
    receives all changes again. --source also names a source that FILE no longer
    declares. Not possible while a run writes the tables.
    Without --yes, nothing is removed and the exit code is 2.
    """
    from penstock.spark.pipeline.state.stopping import plan_removal
    from penstock.spark.pipeline.state.stopping import remove_tables as remove

    lakes = find_pipeline_lakes(where)
    if source is not None and source not in lakes:
        names = ", ".join(str(name) for name in lakes if name is not None) or "no name, there is one source"
        raise UsageError(f"--source is {source!r}, expected {names}")
    chosen = [lake for name, lake in lakes.items() if source in (None, name) and lake.path.is_dir()]
    found = [plan_removal(lake, table or ()) for lake in chosen]
    for removal in found:
        if yes:
            remove(removal)
        for path in removal.paths:
            if as_json:
                print_text(format_json_line({"path": str(path), "removed": yes}))
            else:
                print_text(f"{'removed' if yes else 'would be removed:'} {path}")
    if not yes:
        raise UsageError("nothing was removed; add --yes to remove the files")
