"""Arguments and options that the commands of `penstock pipeline` share, and the lakes to which they refer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.spark.dependents.registry import DependentKind
    from penstock.spark.lake.tables.directory import LakeDirectory
    from penstock.spark.pipeline.state.lake_status import LakeStatus

PipelineFile = Annotated[str, typer.Argument(metavar="FILE", help="The pipeline's TOML file.")]
KEYS_HELP = 'File with one key a line; a line that begins with " is a JSON string. - reads standard input.'
FileOrLake = Annotated[
    str, typer.Argument(metavar="FILE|LAKE", help="The pipeline's TOML file, or the directory of its tables.")
]
OneSource = Annotated[
    str | None,
    typer.Option(
        "--source", metavar="NAME", help="Source of the tables; required if the pipeline has several sources."
    ),
]

IndexSource = Annotated[
    str | None,
    typer.Option(
        "--source", metavar="NAME", help="Source of the index; required if several sources have one of this name."
    ),
]


def find_pipeline_lakes(where: str) -> dict[str | None, LakeDirectory]:
    """Return the lakes of a pipeline by source name, with those of sources that its file no longer declares.

    Args:
        where: a pipeline's TOML file, or the directory of its tables.

    Raises:
        UsageError: the file is invalid, or there is no lake.
    """
    from penstock.spark.lake.tables.directory import LakeDirectory
    from penstock.spark.pipeline.definition.definition import is_definition, read_definition
    from penstock.spark.pipeline.state.source_lakes import find_lakes, find_source_lakes

    if not is_definition(where):
        return find_lakes(where)
    definition = read_definition(where)
    lakes = find_source_lakes(definition)
    found = {each.source: LakeDirectory(each.path) for each in lakes.removed}
    found |= {each.source.name: LakeDirectory(each.path) for each in lakes.declared}
    if not any(lake.path.is_dir() for lake in found.values()):
        raise UsageError(f"{where} keeps its tables in {definition.lake}, which does not exist yet")
    return found


def read_lake_status(where: str) -> list[LakeStatus]:
    """Return the status of the lakes of a pipeline. Raises the errors of `find_pipeline_lakes`."""
    from penstock.spark.pipeline.definition.definition import is_definition, read_definition
    from penstock.spark.pipeline.state.lake_status import read_status
    from penstock.spark.pipeline.state.source_status import read_pipeline_status

    lakes = find_pipeline_lakes(where)
    if is_definition(where):
        return read_pipeline_status(read_definition(where))
    return [read_status(lake, source) for source, lake in lakes.items()]


def select_lake(where: str, source: str | None) -> LakeDirectory:
    """Return the lake of one source.

    Raises:
        UsageError: there are several sources and `source` is None, or no source has that name.
    """
    from penstock.spark.pipeline.definition.definition import is_definition, read_definition

    lakes = find_pipeline_lakes(where)
    if source is None and is_definition(where) and len(declared := read_definition(where).sources) == 1:
        return lakes[declared[0].name]
    return lakes[_choose_source(lakes, source)]


def _choose_source(lakes: dict[str | None, LakeDirectory], source: str | None) -> str | None:
    """Return the given source, or the only one.

    Raises:
        UsageError: there are several sources and `source` is None, or no source has that name.
    """
    chosen = next(iter(lakes)) if source is None and len(lakes) == 1 else source
    if chosen not in lakes:
        names = ", ".join(str(name) for name in lakes if name is not None) or "no name, there is one source"
        raise UsageError(f"--source is {'not given' if source is None else repr(source)}, expected {names}")
    return chosen


def select_index_lake(where: str, source: str | None, kind: type[DependentKind], name: str) -> LakeDirectory:
    """Return the lake of an index. The source need not be given if only one source has an index of that name.

    Raises UsageError as `select_lake`, and if the index on disk is not the index that the file declares.

    Args:
        where: a pipeline's TOML file, which declares the index, or the directory of its tables.
        source: the name of the source, None if it is not given.
        kind: the kind of the index.
        name: the name of the index.

    Returns:
        The lake.
    """
    from penstock.spark.dependents.registry import list_stored_dependents
    from penstock.spark.pipeline.definition.definition import is_definition, read_definition

    lakes = find_pipeline_lakes(where)
    declared: dict[str | None, DependentKind] = {}
    if is_definition(where):
        definition = read_definition(where)
        for each in definition.sources:
            for dependent in definition.list_dependents(each):
                if isinstance(dependent, kind) and dependent.name == name:
                    declared[each.name] = dependent
        having = [*declared]
    else:
        having = [each for each, lake in lakes.items() if (kind, name) in list_stored_dependents(lake)]
    chosen = _choose_source(lakes, having[0] if source is None and len(having) == 1 else source)
    if chosen in declared:
        declared[chosen].open(lakes[chosen]).position()  # raises the error of an index with another declaration
    return lakes[chosen]


def find_written_lakes(where: str) -> dict[str | None, LakeDirectory]:
    """Return the lakes that have tables; all lakes if none has tables."""
    found = find_pipeline_lakes(where)
    return {source: lake for source, lake in found.items() if lake.changelog_table.path.exists()} or found
