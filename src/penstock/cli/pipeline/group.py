"""The group of commands, and what they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.app import Panel, app
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.spark.lake import Lake

__all__ = ["PipelineFile", "Where", "commands", "lakes_of", "written_lakes_of"]

commands = typer.Typer(
    help="Follow buckets into Spark tables, and look at them.", no_args_is_help=False, rich_markup_mode="rich"
)
app.add_typer(commands, name="pipeline", rich_help_panel=Panel.SPARK)

PipelineFile = Annotated[str, typer.Argument(metavar="FILE", help="The pipeline's TOML file.")]
Where = Annotated[str, typer.Argument(metavar="FILE|LAKE", help="The pipeline's TOML file, or the directory it keeps.")]


@commands.callback(invoke_without_command=True)
def pipeline(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def lakes_of(where: str) -> dict[str | None, Lake]:
    """Return the lakes of a pipeline's file or in a directory, by their source. Raises UsageError if there is none."""
    from penstock.spark.lake import Lake
    from penstock.spark.pipeline.control import lakes_at
    from penstock.spark.pipeline.definition import is_definition, read_definition

    if not is_definition(where):
        return lakes_at(where)
    definition = read_definition(where)
    found = {source.name: Lake(definition.lake_of(source)) for source in definition.sources}
    if not any(lake.path.is_dir() for lake in found.values()):
        raise UsageError(f"{where} keeps its tables in {definition.lake}, and there is nothing yet")
    return found


def written_lakes_of(where: str) -> dict[str | None, Lake]:
    """Return those of the lakes that have tables; all of them if none has."""
    found = lakes_of(where)
    return {source: lake for source, lake in found.items() if lake.changelog_table.path.exists()} or found
