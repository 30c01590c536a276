"""A sample of the newest documents of a changelog, which all inferred tables of a source share.

It has documents of each collection. So a merge into many tables reads the rows of the sample once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.lake.changelog.changelog_delta import find_delta
from penstock.spark.lake.changelog.found_collections import name_collections
from penstock.spark.lake.changelog.merge_rules import fill_collection_ids
from penstock.spark.lake.tables.data_files import match_types
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.storage.object_files import open_parquet
from penstock.spark.tables.inference import spread_rows
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event

NAMES = ["event", "collection_id", "scope", "collection"]
"""The columns that decide which documents a sample has."""
SAMPLE_BYTES = 64 << 20
"""Bytes of the values of a sample, about."""

Collection = tuple[str, str]


class ChangelogSample:
    """The values of some documents of each collection, spread over files of the changelog and over their rows.

    Args:
        lake: the lake of the changelog.
        values: number of values of a collection, about.
        files: number of files of which one row group is read.
    """

    def __init__(self, lake: LakeDirectory, values: int, files: int) -> None:
        self._lake = lake
        self._values = values
        self._files = files
        self._read: dict[tuple[str, int] | None, Mapping[Collection, Sequence[bytes | None]]] = {}

    def find_values(self, position: tuple[str, int] | None, collection: Collection) -> Sequence[bytes | None]:
        """Return values of documents that changed after a position. Also raises the errors of `find_delta`.

        Args:
            position: id and version of the changelog; None for all documents.
            collection: scope and name.
        """
        if position not in self._read:
            self._read[position] = self._sample(position)
        return self._read[position].get(collection, ())

    def _sample(self, position: tuple[str, int] | None) -> dict[Collection, list[bytes | None]]:
        delta = find_delta(self._lake, position)
        files = [] if delta is None else delta.files
        chosen = [files[at] for at in spread_rows(len(files), self._files)]
        found: dict[Collection, list[bytes | None]] = {}
        for path in self._lake.changelog_table.list_paths(chosen):
            with open_parquet(path) as file:
                limit, size = max(1, self._values // len(chosen)), SAMPLE_BYTES // len(chosen)
                for name, values in _read_group(file, limit, size):
                    found.setdefault(name, []).extend(values)
        return found


def _read_group(file: pq.ParquetFile, limit: int, size: int) -> Iterator[tuple[Collection, list[bytes | None]]]:
    """Yield the values of some documents of each collection in the middle row group of a file.

    Args:
        file: the file.
        limit: number of values of a collection.
        size: bytes of all values, about.
    """
    if not file.num_row_groups:
        return
    group = file.num_row_groups // 2
    places = _choose_rows(match_types(file.read_row_group(group, columns=NAMES), CHANGE_SCHEMA), limit)
    if not places:
        return
    values = match_types(file.read_row_group(group, columns=["value"]), CHANGE_SCHEMA)["value"]
    taken = {name: values.take(pa.array(rows, pa.int64())) for name, rows in places.items()}
    total = sum(each.nbytes for each in taken.values())
    for name, each in taken.items():
        kept = spread_rows(len(each), max(1, len(each) * size // total)) if total > size else range(len(each))
        yield name, each.take(pa.array(kept, pa.int64())).to_pylist()


def _choose_rows(changes: pa.Table, limit: int) -> dict[Collection, np.ndarray]:
    """Return the numbers of at most `limit` mutations of each collection."""
    changes = fill_collection_ids(changes)
    scopes, collections = name_collections(changes)
    # A separator that no name has.
    names = pc.binary_join_element_wise(scopes, collections, "\0").combine_chunks()
    encoded = pc.if_else(pc.equal(changes["event"], Event.MUTATION), names, None).combine_chunks().dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
    found: dict[Collection, np.ndarray] = {}
    for code, text in enumerate(encoded.dictionary.to_pylist()):
        scope, _, collection = text.partition("\0")
        rows = np.flatnonzero(codes == code)
        found[scope, collection] = rows[spread_rows(len(rows), limit)]
    return found
