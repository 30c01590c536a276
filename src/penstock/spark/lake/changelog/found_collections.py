"""Collections of a changelog, and whether they have JSON objects: these get typed tables without a declaration.

The result lies in the lake, with the changelog's version that it reaches. So each look reads only the files that the
changelog has gained since the last one. A look that was interrupted is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import UsageError
from penstock.spark.lake.changelog.changelog_delta import find_delta
from penstock.spark.lake.changelog.merge_rules import fill_collection_ids
from penstock.spark.lake.tables.data_files import match_types
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.storage.object_files import open_parquet
from penstock.spark.storage.stored_documents import replace_document
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event
from penstock.wire.values.json_value import read_members

COLLECTIONS = "_collections.json"
"""The file in the lake with the result."""
NAMES = ("scope", "collection")
COLUMNS = ["event", "collection_id", *NAMES]

Collection = tuple[str, str]


@dataclass(frozen=True, slots=True)
class FoundCollections:
    """The collections with documents in a changelog up to a version. System scopes are left out.

    Attributes:
        position: id and version of the changelog.
        has_objects: scope and name of each collection, in the order of discovery, with whether a document was a JSON
            object.
    """

    position: tuple[str, int] | None = None
    has_objects: Mapping[Collection, bool] = field(default_factory=dict)

    def list_collections(self, *, with_objects: bool) -> list[Collection]:
        """Return the collections with or without JSON objects."""
        return [name for name, has_objects in self.has_objects.items() if has_objects is with_objects]

    def to_json(self) -> str:
        """Return the result as JSON."""
        named = {".".join(name): has_objects for name, has_objects in self.has_objects.items()}
        return json.dumps({"position": self.position, "has_objects": named})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the result that `to_json` has written."""
        found = json.loads(text)
        named = {tuple(name.split(".")): bool(has_objects) for name, has_objects in found["has_objects"].items()}
        return cls(tuple(found["position"]), named)


def read_collections(lake: LakeDirectory) -> FoundCollections:
    """Return the collections that the last look has found.

    Args:
        lake: the lake of the changelog.

    Raises:
        UsageError: the file is damaged.
    """
    path = lake.path / COLLECTIONS
    try:
        return FoundCollections.from_json(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return FoundCollections()
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"{path} is damaged; remove it, and the next run writes it again") from None


def find_collections(lake: LakeDirectory) -> FoundCollections:
    """Look at the changes that the changelog has gained since the last look, and store the result in the lake.

    Also raises the errors of `read_collections` and `find_delta`.

    Args:
        lake: the lake of the changelog.

    Returns:
        The collections; none without a changelog.
    """
    known = read_collections(lake)
    delta = find_delta(lake, known.position)
    if delta is None or known.position == (delta.changelog_id, delta.version):
        return known
    # Another changelog has other collections.
    is_same = known.position is not None and known.position[0] == delta.changelog_id
    has_objects = dict(known.has_objects) if is_same else {}
    for path in lake.changelog_table.list_paths(delta.files):
        _add_collections(path, has_objects)
    found = FoundCollections((delta.changelog_id, delta.version), has_objects)
    replace_document(lake.path / COLLECTIONS, found.to_json())
    return found


def name_collections(changes: pa.Table) -> list[pa.ChunkedArray]:
    """Return the scopes and the collections of changes. A dialect without collections has the default collection."""
    is_default = pc.equal(changes["collection_id"], 0)
    return [pc.if_else(is_default, pc.fill_null(changes[name], DEFAULT_NAME), changes[name]) for name in NAMES]


def _add_collections(path: str, has_objects: dict[Collection, bool]) -> None:
    """Add the collections of a file of the changelog."""
    with open_parquet(path) as file:
        for number in range(file.num_row_groups):
            only = _find_only_collection(file.metadata.row_group(number))
            if only is not None and has_objects.get(only):
                continue
            rows = _read_group(file, number, COLUMNS)
            names = dict.fromkeys(_list_names(rows))
            for name in names:
                has_objects.setdefault(name, False)
            unknown = [name for name in names if not has_objects[name]]
            if not unknown:
                continue
            values = _read_group(file, number, ["value"])["value"]
            scopes, collections = name_collections(rows)
            is_mutation = pc.equal(rows["event"], Event.MUTATION)
            for scope, collection in unknown:
                is_member = pc.and_(pc.equal(scopes, scope), pc.equal(collections, collection))
                has_objects[scope, collection] = _has_object(values.filter(pc.and_(is_mutation, is_member)))


def _read_group(file: pq.ParquetFile, number: int, columns: list[str]) -> pa.Table:
    rows = match_types(file.read_row_group(number, columns=columns), CHANGE_SCHEMA)
    return fill_collection_ids(rows) if "collection_id" in columns else rows


def _list_names(rows: pa.Table) -> Iterator[Collection]:
    """Yield the collections with documents, once each. An unknown name, and a system scope, is left out."""
    names = pa.table(dict(zip(NAMES, name_collections(rows), strict=True)))
    names = names.filter(pc.equal(rows["event"], Event.MUTATION))
    for line in names.group_by([*NAMES]).aggregate([]).sort_by([(name, "ascending") for name in NAMES]).to_pylist():
        scope, collection = line["scope"], line["collection"]
        if scope and collection and (scope == DEFAULT_NAME or not scope.startswith("_")):
            yield scope, collection


def _has_object(values: pa.ChunkedArray) -> bool:
    return any(read_members(value) is not None for chunk in values.chunks for value in _list_values(chunk))


def _list_values(values: pa.Array) -> Iterable[bytes]:
    return (value for value in values.to_pylist() if value is not None)


def _find_only_collection(group: pq.RowGroupMetaData) -> Collection | None:
    """Return the collection of all rows of a row group, by its statistics; None if they have several, or no names."""
    found: dict[str, str] = {}
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema not in NAMES:
            continue
        known = column.statistics
        if known is None or not known.has_min_max or known.null_count or known.min != known.max:
            return None
        found[column.path_in_schema] = known.min
    return (found["scope"], found["collection"]) if len(found) == len(NAMES) else None
