"""`penstock pipeline retype`: build typed tables again with the schema that the file declares now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.base.app import AsJson, format_examples
from penstock.cli.base.show import format_json_line, print_text
from penstock.cli.base.work_display import Quiet, show_status
from penstock.cli.pipeline.arguments import PipelineFile
from penstock.cli.pipeline.group import commands

if TYPE_CHECKING:
    from penstock.spark.pipeline.maintenance.retyping import RetypedTable
    from penstock.spark.tables.misfits import RestCount, RestReport

_MOST_MISFITS = 20
"""Fields with values of other types that are printed; --json has all."""


@commands.command(
    epilog=format_examples(
        "penstock pipeline retype pipeline.toml",
        "penstock pipeline retype pipeline.toml --table orders --table customers",
        "penstock pipeline retype pipeline.toml --json",
    )
)
def retype(
    file: PipelineFile,
    *,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="NAME", help="Only this [[table]]; can be repeated.")
    ] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Only the tables of this source.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Build typed tables again whose declaration in FILE has changed.

    The rows are computed from the changelog; the bucket is not read. Readers see
    the old table until one commit replaces rows and columns. Fields that are
    inferred become those of all documents in the changelog. Tables that are as
    declared stay as they are. Not possible while a run writes the tables; stop
    it first. If the command was killed, the old table or the new one is there.

    penstock pipeline plan shows the differences without writing anything. With
    --json, each line is one table.
    """
    from penstock.spark.pipeline.definition.definition import read_definition
    from penstock.spark.pipeline.maintenance.retyping import retype_tables

    definition = read_definition(file)
    with show_status(f"Reading the tables of {definition.lake}", is_quiet=quiet or as_json) as show:
        found = retype_tables(definition, table or (), source=source, report=show)
    if not found and not as_json:
        print_text(f"{file} has no typed tables yet; penstock pipeline run builds them.")
    for each in found:
        print_text(format_json_line(asdict(each)) if as_json else "\n".join(_list_lines(each)))


def _list_lines(found: RetypedTable) -> Iterator[str]:
    head = found.name if found.source is None else f"{found.source} {found.name}"
    rows = f"{found.after.rows:,} row{'s' * (found.after.rows != 1)}"
    if not found.changes:
        yield f"{head}: as declared, {rows}"
        return
    lost = found.before.rows - found.after.rows
    yield f"{head}: built again, {rows}" + (f", before {found.before.rows:,}" if lost else "")
    yield from (f"  {change}" for change in found.changes)
    before, after = found.before.rest, found.after.rest
    if before.rows or after.rows:
        yield f"  _rest: {before.rows:,} rows before, {after.rows:,} after"
    yield from _list_misfits(before, after)


def _list_misfits(before: RestReport, after: RestReport) -> Iterator[str]:
    """Yield a line for each field whose column lacks values before or after."""
    old, new = _count_fields(before.misfits), _count_fields(after.misfits)
    for place in [*dict.fromkeys([*new, *old])][:_MOST_MISFITS]:
        counts = f"{old.get(place, 0):,} values before, {new.get(place, 0):,} after"
        yield f"  {place[0] or 'document'}: {place[1]} in {counts}"


def _count_fields(misfits: Iterable[RestCount]) -> dict[tuple[str, str], int]:
    return {(each.field, each.found): each.values for each in misfits}
