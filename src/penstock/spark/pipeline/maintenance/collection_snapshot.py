"""New snapshots of collections: the documents of some collections are compared with the bucket, while no run writes.

Only changes up to the lake's position matter: the next run reads all later ones. Each such change that the tables lack
is added to the changelog, with its own seqno. Nothing of the changelog becomes void, so other collections stay as they
are. A document that the bucket no longer has gets a deletion. Its seqno lies between the document's last change and the
position, and the changelog does not use it. There is one: the bucket has used it for the deletion, and has purged the
tombstone since.

One commit adds all of it. A process that is killed before leaves files that vacuum removes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.argument_types import check_arguments
from penstock.client.blocking import read_changes_at
from penstock.client.connect.address import Address
from penstock.client.feeds.collection_selection import DEFAULT_COLLECTIONS, CollectionSelection
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import Error, NoSuchCollection, UsageError
from penstock.spark.lake.changelog.changelog_writer import abort_batch, write_files
from penstock.spark.lake.changelog.merge_rules import DOCUMENT_EVENTS, read_keys
from penstock.spark.lake.current.current_table import merge_tables
from penstock.spark.lake.current.typed_table import list_document_tables
from penstock.spark.lake.maintenance.lake_compaction import make_maintenance_transaction
from penstock.spark.lake.reading.lake_positions import read_position
from penstock.spark.lake.reading.lake_readers import scan_changelog, scan_current
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.pipeline.definition.definition import PipelineDefinition, SourceDefinition
from penstock.spark.pipeline.state.source_lakes import SourceLake, find_source_lakes
from penstock.spark.source.batch_planning import plan_batch
from penstock.spark.source.offsets import Offset
from penstock.spark.source.planner import Planner
from penstock.spark.source.source_options import SourceOptions
from penstock.spark.storage.full_disk import translate_full_disk
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event

LOOKUP = ("vbucket", "collection_id", "key", "key_bytes", "seqno", "scope", "collection", "cas", "rev_seqno")

Uint64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class CollectionSnapshot:
    """The result of a new snapshot of collections.

    Attributes:
        source: the name of the source.
        collections: the collections, as scope.name.
        documents: number of changes that the bucket sent.
        added: number of these that the tables lacked.
        removed: number of documents that the bucket no longer has.
    """

    source: str | None
    collections: tuple[str, ...]
    documents: int
    added: int
    removed: int


@check_arguments
def resnapshot_collections(
    definition: PipelineDefinition,
    collections: Collection[str],
    *,
    source: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> CollectionSnapshot:
    """Compare the documents of some collections with the bucket, and add the missing changes to the changelog.

    Raises LakeRefused while a run writes the lake, and Unreachable if the bucket does not answer. Error means that the
    bucket's history changed since the last run, or meanwhile.

    Args:
        definition: the pipeline.
        collections: each as `name`, in the scope of the source, or as `scope.name`.
        source: the source; None for the only one.
        report: called with the state of the work, in words.

    Returns:
        The counts.

    Raises:
        UsageError: the source or the bucket does not have a collection, the source is not suited, or no run has
            written the lake.
    """
    place = _find_source(definition, source)
    options = place.source.parse_options()
    selection = _select_collections(place.source, options, collections)
    lake = definition.open_lake(place.path)
    if not lake.path.is_dir():
        raise UsageError(f"{lake.path} has no position yet; expected the lake of a pipeline that has run")
    with translate_full_disk(definition.lake), hold_lock(lake.path, 0) as lock:
        position = read_position(lake)
        changelog = lake.changelog_table.open()
        if position is None or changelog is None:
            raise UsageError(f"{lake.path} has no position yet; expected the lake of a pipeline that has run")
        lake.check_owner()
        lake.changelog_table.check_versions()
        with closing(Planner(options.address, options.vbuckets)) as planner:
            known = planner.read_collections() or DEFAULT_COLLECTIONS
            try:
                selection.check_names(known)
            except NoSuchCollection as error:
                raise UsageError(str(error)) from None
            infos = _read_infos(planner, position.offset)
            documents = _KnownDocuments.read(lake, selection.find_ids(known), position.offset, infos)
            names = tuple(".".join(name) for name in selection.list_names())
            comparing = _Comparison(documents, position.offset, lambda text: report(f"{', '.join(names)}: {text}"))
            address = _narrow_address(options.address, selection)
            batches = comparing.compare(_read_rows(address, options, sorted(infos)))
            files = write_files(batches, lake.changelog_table.write_root, len(position.offset.vbuckets))
            try:
                _check_unchanged(infos, planner.read_infos(sorted(infos)))
                lock.raise_if_lost()
                if files:
                    lake.changelog_table.commit(changelog, make_maintenance_transaction(changelog), files)
            except BaseException:
                abort_batch(lake, files)
                raise
        merge_tables(list_document_tables(lake))
    return CollectionSnapshot(place.source.name, names, comparing.rows, comparing.added, comparing.removed)


def _find_source(definition: PipelineDefinition, name: str | None) -> SourceLake:
    found = [each for each in find_source_lakes(definition).declared if name in (None, each.source.name)]
    if len(found) != 1:
        names = ", ".join(str(each.name) for each in definition.sources)
        raise UsageError(f"source is {'not given' if name is None else repr(name)}, expected {names}")
    return found[0]


def _select_collections(
    source: SourceDefinition, options: SourceOptions, collections: Collection[str]
) -> CollectionSelection:
    """Return the collections.

    Raises:
        UsageError: the source does not read one of them, or its rows need Spark.
    """
    if source.where is not None or source.transform is not None:
        key = "where" if source.where is not None else "transform"
        raise UsageError(f"the source has {key}, which only a run applies; expected --vbuckets instead of --collection")
    if options.dialect is not Dialect.DCP:
        raise UsageError(f"protocol is {options.dialect.value!r}, which does not support collections; dcp does")
    if not collections:
        raise UsageError("no collection is given; expected some of the source")
    selected = CollectionSelection(options.place.options.scope, options.place.options.collections)
    found = CollectionSelection(selected.scope, tuple(collections))
    if selected.collections and (missing := [n for n in found.list_names() if n not in selected.list_names()]):
        names = ", ".join(".".join(name) for name in selected.list_names())
        raise UsageError(f"the source does not read the collection {'.'.join(missing[0])!r}; expected some of {names}")
    return CollectionSelection("", tuple(".".join(name) for name in found.list_names()))


def _narrow_address(address: Address, selection: CollectionSelection) -> Address:
    return replace(address, options=replace(address.options, scope="", collections=selection.collections))


def _read_infos(planner: Planner, position: Offset) -> Mapping[int, VbucketInfo]:
    """Return the state of the vbuckets of which the lake has changes.

    Raises:
        Error: the next run will roll back a vbucket.
    """
    infos = {vb: info for vb, info in planner.read_infos().items() if position.vbuckets[vb].seqno}
    planned, _ = plan_batch(position, infos)
    rolled = [vb for vb in infos if planned.vbuckets[vb].history != position.vbuckets[vb].history]
    if rolled:
        raise Error(f"vbucket {rolled[0]} of the bucket has another history than the tables; run the pipeline first")
    return infos


def _check_unchanged(before: Mapping[int, VbucketInfo], after: Mapping[int, VbucketInfo]) -> None:
    for vbucket, info in before.items():
        if vbucket not in after or after[vbucket].failover_log != info.failover_log:
            raise Error(f"vbucket {vbucket} of the bucket got another history meanwhile; run the command again")


def _read_rows(address: Address, options: SourceOptions, vbuckets: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the changes of the collections in the shape of the source."""
    if not vbuckets:
        return
    shape = options.make_shape("")
    for batch in read_changes_at(address, stop="now", vbuckets=vbuckets, values=shape.needs_values, rollback="fail"):
        yield shape.apply(batch)


@dataclass(slots=True)
class _KnownDocuments:
    """The documents of the collections that the tables have.

    Attributes:
        lake: the lake.
        rows: their rows, with LOOKUP.
        identities: one value for each.
        seqnos: the seqno of each.
        seen: whether the bucket has sent a change of each.
    """

    lake: LakeDirectory
    rows: pa.Table
    identities: pa.Array
    seqnos: Uint64
    seen: npt.NDArray[np.bool_]

    @classmethod
    def read(
        cls, lake: LakeDirectory, ids: Collection[int], position: Offset, vbuckets: Collection[int]
    ) -> _KnownDocuments:
        which = pc.field("collection_id").isin(pa.array(ids, pa.int64())) & pc.field("vbucket").isin(
            pa.array(vbuckets, pa.int32())
        )
        rows = scan_current(lake, LOOKUP, which)
        identities = _identify(rows["vbucket"], rows["collection_id"], read_keys(rows))
        return cls(lake, rows, identities, _to_unsigned(rows["seqno"]), np.zeros(rows.num_rows, bool))

    def list_removed(self, position: Offset) -> pa.RecordBatch:
        """Return deletions of the documents of which the bucket has sent no change.

        Raises:
            Error: a vbucket has no free seqno for one of them.
        """
        gone = self.rows.filter(pa.array(~self.seen))
        vbuckets = gone["vbucket"].to_pylist()
        used = self._read_used_seqnos(set(vbuckets))
        free = {vb: position.vbuckets[vb].seqno for vb in used}
        seqnos = [0] * len(vbuckets)
        own = _to_unsigned(gone["seqno"]).tolist()
        for at in sorted(range(len(vbuckets)), key=lambda each: -own[each]):
            vb = vbuckets[at]
            while free[vb] in used[vb]:
                free[vb] -= 1
            if free[vb] <= own[at]:
                raise Error(f"vbucket {vb} has no free seqno for a deletion; read it again with --vbuckets {vb}")
            seqnos[at] = free[vb]
            free[vb] -= 1
        now = np.uint64(time.time_ns())
        columns = {
            "event": pa.repeat(pa.scalar(Event.DELETION, pa.string()), gone.num_rows),
            "seqno": pa.array(np.array(seqnos, np.uint64).view(np.int64)),
            "key": read_keys(gone),
            # Later than the document's, so that the deletion wins in other buckets too.
            "cas": pa.array(np.maximum(_to_unsigned(gone["cas"]) + np.uint64(1), now).view(np.int64)),
            "rev_seqno": pc.add(gone["rev_seqno"], 1),
            "flags": pa.repeat(pa.scalar(0, pa.int64()), gone.num_rows),
            "vbuuid": pa.array([_to_signed(position.vbuckets[vb].vbuuid) for vb in vbuckets], pa.int64()),
            **{name: gone[name] for name in ("vbucket", "collection_id", "scope", "collection")},
        }
        return _make_batch(columns, gone.num_rows, position)

    def _read_used_seqnos(self, vbuckets: Collection[int]) -> dict[int, set[int]]:
        """Return all seqnos of the changelog in some vbuckets."""
        used: dict[int, set[int]] = {vb: set() for vb in vbuckets}
        if vbuckets:
            which = pc.field("vbucket").isin(pa.array(vbuckets, pa.int32()))
            rows = scan_changelog(self.lake, ["vbucket", "seqno"], which)
            for vb, seqno in zip(rows["vbucket"].to_pylist(), _to_unsigned(rows["seqno"]).tolist(), strict=True):
                used[vb].add(seqno)
        return used


class _Comparison:
    """Finds the changes that the tables lack.

    Attributes:
        rows: changes that the bucket sent.
        added, removed: changes and deletions that were found.
    """

    def __init__(self, documents: _KnownDocuments, position: Offset, report: Callable[[str], None]) -> None:
        self.rows = self.added = self.removed = 0
        self._documents = documents
        self._position = position
        self._report = report
        self._limits = np.array([each.seqno for each in position.vbuckets], np.uint64)

    def compare(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the missing changes, and then the deletions."""
        for batch in batches:
            rows = batch.filter(pc.is_in(batch["event"], value_set=DOCUMENT_EVENTS))
            self.rows += rows.num_rows
            self._report(f"{self.rows:,} changes read")
            missing = rows.filter(pa.array(self._mark_missing(rows)))
            self.added += missing.num_rows
            if missing.num_rows:
                columns = {name: missing[name] for name in missing.schema.names}
                yield _make_batch(columns, missing.num_rows, self._position)
        removed = self._documents.list_removed(self._position)
        self.removed = removed.num_rows
        if removed.num_rows:
            yield removed

    def _mark_missing(self, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        documents = self._documents
        identities = _identify(rows["vbucket"], pc.fill_null(rows["collection_id"], 0), rows["key"])
        at = pc.fill_null(pc.index_in(identities, value_set=documents.identities), -1).to_numpy()
        is_known = at >= 0
        documents.seen[at[is_known]] = True
        known = np.zeros(rows.num_rows, np.uint64)
        known[is_known] = documents.seqnos[at[is_known]]
        seqnos = _to_unsigned(rows["seqno"])
        is_past = seqnos <= self._limits[rows["vbucket"].to_numpy()]
        is_mutation = pc.equal(rows["event"], Event.MUTATION).to_numpy(zero_copy_only=False)
        found: npt.NDArray[np.bool_] = is_past & (seqnos > known) & (is_mutation | is_known)
        return found


def _identify(vbuckets: pa.Array, collections: pa.Array, keys: pa.Array) -> pa.Array:
    parts = [each.cast(pa.string()).cast(pa.binary()) for each in (vbuckets, collections)]
    found = pc.binary_join_element_wise(*parts, keys, b"/")
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _make_batch(columns: dict[str, pa.Array], rows: int, position: Offset) -> pa.RecordBatch:
    """Return changes in CHANGE_SCHEMA, with the history of the lake.

    The snapshot of each is its own and has one further seqno. So none of them shows a consistent state.
    """
    seqnos = columns["seqno"]
    histories = np.array([each.history for each in position.vbuckets])[
        columns["vbucket"].to_numpy(zero_copy_only=False)
    ]
    ends = pa.array((_to_unsigned(seqnos) + np.uint64(1)).view(np.int64))
    columns |= {"history": pa.array(histories), "snapshot_start": seqnos, "snapshot_end": ends}
    found = [columns.get(field.name, pa.nulls(rows, field.type)).cast(field.type) for field in CHANGE_SCHEMA]
    parts = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in found]
    return pa.RecordBatch.from_arrays(parts, schema=CHANGE_SCHEMA)


def _to_unsigned(seqnos: pa.Array) -> Uint64:
    found: Uint64 = seqnos.to_numpy(zero_copy_only=False).view(np.uint64) if len(seqnos) else np.empty(0, np.uint64)
    return found


def _to_signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
