"""`penstock pipeline status`, `stop` and `reset`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, examples
from penstock.cli.base.show import json_line
from penstock.cli.pipeline.arguments import Where, lakes_of
from penstock.cli.pipeline.group import commands
from penstock.cli.pipeline.progress_display import size
from penstock.client.topology.missing import ranges_of
from penstock.errors import Error, UsageError

if TYPE_CHECKING:
    from penstock.spark.pipeline.state.lake_status import LakeStatus, TableSize


@commands.command(epilog=examples("penstock pipeline status pipeline.toml", "penstock pipeline status ./lake --json"))
def status(where: Where, *, as_json: AsJson = False) -> None:
    """Show who keeps the tables, how far they are behind, and how large they are.

    What a run says of lag and rates is at most some seconds old; of a run that
    has ended it is what it said last. With --json a line is one source.
    """
    from penstock.spark.pipeline.state.lake_status import status_of

    for source, lake in lakes_of(where).items():
        found = status_of(lake, source)
        print(json_line(found.to_json()) if as_json else _text(found), flush=True)


def _text(found: LakeStatus) -> str:
    from penstock.spark.pipeline.state.lake_status import iso

    lines = [f"{found.source or 'lake'}  {found.lake}", f"  {'state':<14} {_state(found)}"]
    if found.pid is not None:
        lag = "unknown" if found.lag is None else f"{found.lag:,} seqnos"
        rates = f"{found.rows_per_second:,.0f} rows/s, {size(found.bytes_per_second)}/s"
        lines.append(f"  {'lag':<14} {lag}   {rates}")
    if found.last_rollback is not None:
        vbuckets = found.last_rollback.vbuckets
        lines.append(f"  {'rolled back':<14} {iso(found.last_rollback.at)}: vbuckets {ranges_of(vbuckets)}")
    if found.error is not None:
        lines.append(f"  {'error':<14} {found.error}")
    lines += [f"  {'values have':<14} {change}" for change in found.schema_changes]
    lines.append(f"  {'changelog':<14} {_size(found.changelog)}   version {found.version}")
    for each in found.kept:
        is_there = each.version >= 0
        behind = f"{each.pending:,} rows pending" if each.pending else "up to date" if is_there else "not there yet"
        reached = f"{behind}, version {each.version}" if is_there else behind
        place = f"{_size(each.size)}   " if each.size is not None else ""
        error = f"   {each.error}" if each.error is not None else ""
        kind = "" if each.kind == each.name else f"{each.kind}   "
        lines.append(f"  {each.name:<14} {kind}{place}{reached}{error}")
    return "\n".join(lines)


def _state(found: LakeStatus) -> str:
    from penstock.spark.pipeline.state.lake_status import iso

    if found.pid is None:
        return "running" if found.state == "running" else "never run"
    process = f"process {found.pid}"
    if found.state == "running":
        return f"running, {process} since {iso(found.since)}"
    if found.state == "stopping":
        return f"{process} has ended, its Java has not yet"
    if found.state == "killed":
        return f"not running; {process} did not end by itself, last heard of {iso(found.until)}"
    return f"not running; {process} ended {iso(found.until)}"


def _size(found: TableSize | None) -> str:
    if found is None:
        return "not there yet"
    rows = "" if found.rows is None else f"{found.rows:,} rows, "
    return f"{rows}{size(found.bytes)} in {found.files:,} file{'s' * (found.files != 1)}"


@commands.command(
    epilog=examples("penstock pipeline stop pipeline.toml", "penstock pipeline stop ./lake --timeout 300")
)
def stop(
    where: Where,
    *,
    timeout: Annotated[
        float, typer.Option(min=0, max=86400, metavar="SECONDS", help="How long to wait for the end.")
    ] = 120,
    as_json: AsJson = False,
) -> None:
    """Ask the process that keeps the tables to merge what is pending and end, and wait until it has.

    Nothing is lost: the next run goes on there. Where none runs, that is said
    and no error. Exit code 1 if the process has not ended in time.
    """
    from penstock.spark.pipeline.state.lake_status import status_of
    from penstock.spark.pipeline.state.run_state import is_locked
    from penstock.spark.pipeline.state.stopping import stop as ask

    lakes = lakes_of(where)
    was_running = any(is_locked(lake) for lake in lakes.values())
    if not was_running and not as_json:
        print(f"no run keeps {where}")
        return

    def tell(pid: int) -> None:
        if not as_json:
            print(f"Stopping process {pid}.", flush=True)

    if not ask([*lakes.values()], timeout, tell):
        raise Error(f"the run that keeps {where} has not ended within {timeout:g} s; it still may")
    for source, lake in lakes.items():
        found = status_of(lake, source)
        print(json_line({"was_running": was_running, **found.to_json()}) if as_json else _text(found), flush=True)


@commands.command(
    epilog=examples(
        "penstock pipeline reset ./lake --table current --yes",
        "penstock pipeline reset pipeline.toml --source beer --yes",
    )
)
def reset(
    where: Where,
    *,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="NAME", help="Only this: current, an index or a sink; several times for more."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this source's, where there are several.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, it is only said what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove tables and the memory of how far they are, so that the next run makes them anew.

    Without --table it is everything: the next run reads the bucket from its
    beginning. current and indexes are made anew from the changelog; a sink is
    told everything once more. Refused while a run keeps the tables. Without
    --yes nothing is removed, and the exit code is 2.
    """
    from penstock.spark.pipeline.state.stopping import removals
    from penstock.spark.pipeline.state.stopping import reset as remove

    lakes = lakes_of(where)
    if source is not None and source not in lakes:
        names = ", ".join(str(name) for name in lakes if name is not None) or "no name, there is one source"
        raise UsageError(f"--source is {source!r}, expected {names}")
    chosen = [lake for name, lake in lakes.items() if source in (None, name) and lake.path.is_dir()]
    found = [removals(lake, table or ()) for lake in chosen]
    for removal in found:
        if yes:
            remove(removal)
        for path in removal.paths:
            if as_json:
                print(json_line({"path": str(path), "removed": yes}))
            else:
                print(f"{'removed' if yes else 'would be removed:'} {path}")
    if not yes:
        raise UsageError("nothing was removed; --yes removes it")
