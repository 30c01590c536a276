"""Arguments and options that the commands of `penstock pipeline` share, and the lakes that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.spark.lake.tables.directory import LakeDirectory

__all__ = ["OneSource", "PipelineFile", "Where", "lake_of", "lakes_of", "written_lakes_of"]

PipelineFile = Annotated[str, typer.Argument(metavar="FILE", help="The pipeline's TOML file.")]
Where = Annotated[str, typer.Argument(metavar="FILE|LAKE", help="The pipeline's TOML file, or the directory it keeps.")]
OneSource = Annotated[
    str | None, typer.Option("--source", metavar="NAME", help="Whose tables, where there are several sources.")
]


def lakes_of(where: str) -> dict[str | None, LakeDirectory]:
    """Return the lakes of a pipeline's file or in a directory, by their source. Raises UsageError if there is none."""
    from penstock.spark.lake.tables.directory import LakeDirectory
    from penstock.spark.pipeline.definition.definition import is_definition, read_definition
    from penstock.spark.pipeline.state.run_state import lakes_at

    if not is_definition(where):
        return lakes_at(where)
    definition = read_definition(where)
    found = {source.name: LakeDirectory(definition.lake_of(source)) for source in definition.sources}
    if not any(lake.path.is_dir() for lake in found.values()):
        raise UsageError(f"{where} keeps its tables in {definition.lake}, and there is nothing yet")
    return found


def lake_of(where: str, source: str | None) -> LakeDirectory:
    """Return the lake of one source. Raises UsageError where it is not said which, or there is no such one."""
    lakes = lakes_of(where)
    chosen = next(iter(lakes)) if source is None and len(lakes) == 1 else source
    if chosen not in lakes:
        names = ", ".join(str(name) for name in lakes if name is not None) or "no name, there is one source"
        raise UsageError(f"--source is {'not given' if source is None else repr(source)}, expected {names}")
    return lakes[chosen]


def written_lakes_of(where: str) -> dict[str | None, LakeDirectory]:
    """Return those of the lakes that have tables; all of them if none has."""
    found = lakes_of(where)
    return {source: lake for source, lake in found.items() if lake.changelog_table.path.exists()} or found
