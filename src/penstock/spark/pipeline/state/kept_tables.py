"""The tables and dependents that a pipeline keeps in a lake: those of its file, and those that follow by inference."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.spark.dependents.kinds.table_definition import TableDefinition
from penstock.spark.dependents.registry import DependentKind
from penstock.spark.lake.changelog.found_collections import FoundCollections, read_collections
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.source.source_options import INFERRED

SHOWN = 5
"""Collections without a table that a sentence names."""


def list_kept(definition: PipelineDefinition, source: SourceDefinition, lake: LakeDirectory) -> list[DependentKind]:
    """Return the dependents of a source: the inferred tables that its changelog has led to, and the declared ones.

    Args:
        definition: the pipeline.
        source: the source.
        lake: the lake of the source.
    """
    declared = definition.list_dependents(source)
    inferred = infer_tables(read_collections(lake), declared) if definition.infers_tables(source) else []
    return [*inferred, *declared]


def infer_tables(found: FoundCollections, declared: Iterable[DependentKind] = ()) -> list[TableDefinition]:
    """Return the table of each collection with JSON objects, in the order of their names.

    Args:
        found: the collections.
        declared: dependents whose names no table gets.
    """
    taken = {each.name.lower() for each in declared}
    tables: dict[str, TableDefinition] = {}
    for scope, collection in found.list_collections(with_objects=True):
        table = TableDefinition(collection=f"{scope}.{collection}", schema=INFERRED)
        # Catalogs and file systems ignore case: of two such collections the first has the table.
        if (name := table.name.lower()) not in taken:
            tables.setdefault(name, table)
    return [tables[name] for name in sorted(tables)]


def describe_left_out(found: FoundCollections, declared: Iterable[DependentKind] = ()) -> str | None:
    """Return why collections have no table, None if all have one. The arguments are those of `infer_tables`."""
    kept = {each.find_collection() for each in infer_tables(found, declared)}
    with_objects = found.list_collections(with_objects=True)
    reasons = {
        "has no JSON object": found.list_collections(with_objects=False),
        "has the name of another table, index or sink": [each for each in with_objects if each not in kept],
    }
    parts = [f"{_join_names(names)} {reason}" for reason, names in reasons.items() if names]
    return "; ".join(parts) if parts else None


def _join_names(collections: Iterable[tuple[str, str]]) -> str:
    names = sorted(".".join(each) for each in collections)
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more:,} more" if more > 0 else "")
