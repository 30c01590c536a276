"""The lakes of the sources: which place has the tables of which source.

The only source of a new pipeline has its lake at the pipeline's place. Each other source has a lake in a directory of
that place, with its name. From then on the places decide, not the number of sources: tables never move, because Iceberg
stores absolute paths and an object store cannot rename. A lake's last run names its source, so a renamed source keeps
its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.errors import UsageError
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import RESERVED_NAMES, PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.state.run_state import RUN_STATE, read_run_state
from penstock.spark.storage.object_path import LakePath

_LAKE_FILES = ("_checkpoint", "changelog", RUN_STATE)
"""Any of these names shows that a directory is a lake."""


class StoredLake(NamedTuple):
    """A lake that exists.

    Attributes:
        path: its place.
        source: the name of its source; None if a run without a file made it.
    """

    path: LakePath
    source: str | None


@dataclass(frozen=True, slots=True)
class SourceLake:
    """The place of a declared source's tables.

    Attributes:
        source: the source.
        path: the place.
        former_name: the name that the tables still have, if the source was renamed since the last run.
        refusal: the reason why a run cannot begin with this source.
    """

    source: SourceDefinition
    path: LakePath
    former_name: str | None = None
    refusal: UsageError | None = None


class SourceLakes(NamedTuple):
    """The lakes of a pipeline.

    Attributes:
        declared: the lake of each source of the file, existing or new.
        removed: the lakes of sources that the file no longer declares.
    """

    declared: tuple[SourceLake, ...]
    removed: tuple[StoredLake, ...]


def find_source_lakes(definition: PipelineDefinition) -> SourceLakes:
    """Return the lakes of a pipeline, by the tables that exist."""
    root = LakeDirectory(definition.lake).path
    return assign_lakes(root, definition.sources, list_stored_lakes(root))


def assign_lakes(root: LakePath, sources: Sequence[SourceDefinition], stored: Sequence[StoredLake]) -> SourceLakes:
    """Return the lake of each source. A pure function: plan and run decide by it.

    Args:
        root: the place of the pipeline's lakes.
        sources: the sources of the file.
        stored: the lakes that exist.

    Returns:
        The lakes.
    """
    known: dict[str | None, StoredLake] = {each.source: each for each in reversed(stored) if each.source is not None}
    places = [each.path for each in stored]
    if len(sources) == 1 and (sources[0].name is None or None in [each.source for each in stored]):
        # A source without a name, or tables without one: there is only one source that they can be of.
        known = dict.fromkeys([sources[0].name], stored[0]) | known if root in places else known
    matches = [known.get(source.name) or known.get(source.renamed_from) for source in sources]
    removed = tuple(each for each in stored if each not in matches)
    declared = [
        SourceLake(source, match.path, match.source if match.source != source.name else None)
        if match is not None
        else _place_new_source(root, source, stored, removed, is_only=len(sources) == 1)
        for source, match in zip(sources, matches, strict=True)
    ]
    if all(source.paused for source in sources):
        names = ", ".join(str(source.name) for source in sources)
        refusal = UsageError(f"all sources are paused: {names}; expected one without paused = true")
        declared = [replace(each, refusal=each.refusal or refusal) for each in declared]
    return SourceLakes(tuple(declared), removed)


def _place_new_source(
    root: LakePath,
    source: SourceDefinition,
    stored: Sequence[StoredLake],
    removed: Sequence[StoredLake],
    *,
    is_only: bool,
) -> SourceLake:
    """Return the lake of a source that has no tables."""
    if source.name is None:
        names = ", ".join(sorted(str(each.source) for each in removed))
        text = f"{root} has the tables of the sources {names}; expected their pipeline's file, or another directory"
        return SourceLake(source, root, refusal=UsageError(text) if stored else None)
    place = root if is_only and not stored else root / source.name
    owner = next((each for each in stored if each.path == place), None)
    if owner is not None and owner not in removed:
        text = f"{place} has the tables of the source {owner.source!r}; expected another name for {source.name!r}"
        return SourceLake(source, place, refusal=UsageError(text))
    if not removed or source.paused:
        return SourceLake(source, place)
    nameless = [each for each in removed if each.source is None]
    if nameless:
        text = (
            f"{nameless[0].path} has tables that a run without this file made; expected a first run of the file with"
            f" their source alone, before {source.name!r} is added"
        )
    else:
        names = ", ".join(repr(each.source) for each in removed)
        text = (
            f"the source {source.name!r} has no tables, and {root} has tables of {names}, which the file lacks:"
            f" expected renamed_from in [source.{source.name}] if it is the same source; penstock pipeline reset FILE"
            " --source NAME --yes removes tables of removed sources"
        )
    return SourceLake(source, place, refusal=UsageError(text))


def find_lakes(path: str) -> dict[str | None, LakeDirectory]:
    """Return the lakes in a directory, by the name of their source.

    Args:
        path: the directory.

    Returns:
        The lakes. A lake that stands alone at the directory itself has the name None.

    Raises:
        UsageError: there is no lake.
    """
    root = LakeDirectory(path).path
    stored = list_stored_lakes(root)
    if not stored:
        raise UsageError(f"there is no lake at {root}; expected the directory of a pipeline that has run")
    if [each.path for each in stored] == [root]:
        return {None: LakeDirectory(root)}
    return {each.source: LakeDirectory(each.path) for each in reversed(stored)}


def list_stored_lakes(root: LakePath) -> list[StoredLake]:
    """Return the lakes that exist at a place: that of the place itself first, then those of its directories."""
    if not root.is_dir():
        return []
    inside = sorted(each for each in root.iterdir() if each.name not in RESERVED_NAMES and each.name[:1] not in "_.")
    found = [StoredLake(root, _read_source_name(root))] if _is_lake(root) else []
    return found + [StoredLake(each, _read_source_name(each) or each.name) for each in inside if _is_lake(each)]


def _is_lake(path: LakePath) -> bool:
    return any((path / mark).exists() for mark in _LAKE_FILES)


def _read_source_name(path: LakePath) -> str | None:
    """Return the name of the source of a lake's last run, None if there is none."""
    try:
        state = read_run_state(LakeDirectory(path))
    except UsageError:
        return None  # a damaged file; the commands that need it report that
    name = state.progress.get("source") if state is not None else None
    return name if isinstance(name, str) else None
