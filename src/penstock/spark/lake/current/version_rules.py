"""Version rules: from which change to which other change a version of a document was the newest one.

Pure functions over Arrow tables. A version begins with a mutation. It is closed by the next change of its document, by
the end or the beginning of its collection, or by a flush. A rollback removes the versions that were lost, and opens
versions again that a lost change had closed. A flush closes versions and removes none, so no later rollback reaches
the versions before it.

The order of changes is that of (history, seqno). Times only describe it. A time that goes back counts as the newest
time of the document so far, so the versions of a document never overlap. A time is null where the bucket has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.changelog.merge_rules import (
    COLLECTION_EVENTS,
    DOCUMENT_EVENTS,
    IDENTITY,
    ROLLBACK_EVENTS,
    Bools,
    RollbackMarkers,
    encode_collections,
    read_seqnos,
)
from penstock.wire.columns.schema import Event

TIME = pa.timestamp("us", "UTC")
VERSION_COLUMNS = pa.schema(
    [
        ("_valid_from", TIME),
        ("_valid_to", TIME),
        ("_is_current", pa.bool_()),
        ("_closed_history", pa.int32()),
        ("_closed_seqno", pa.int64()),
    ]
)
"""The columns of a version: its times, and the place of the change that closed it. A flush has the seqno 0."""
_PLACE = pa.schema(
    [
        ("vbucket", pa.int32()),
        ("collection_id", pa.int64()),
        ("key", pa.binary()),
        ("history", pa.int32()),
        ("seqno", pa.int64()),
    ]
)
KNOWN_COLUMNS = pa.schema([*_PLACE, *VERSION_COLUMNS])
"""The columns of the versions that a table has."""
CHANGE_COLUMNS = pa.schema([*_PLACE, ("event", pa.string()), ("_changed_at", TIME)])
"""The columns of changes that make versions. The time is null where the bucket has none."""
END_EVENTS = pa.concat_arrays([COLLECTION_EVENTS, pa.array([Event.FLUSH], pa.string())])
"""Events that close all versions of a collection or a vbucket."""
_NO_TIME = np.iinfo(np.int64).min
_NO_LIMIT = np.iinfo(np.uint64).max

Ints = npt.NDArray[np.int64]
Seqnos = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class MergedVersions:
    """The effect of changes on the versions of documents.

    Attributes:
        lost: a mask of the known versions that a rollback removes.
        changed: a mask of the known versions that are closed now, or open again.
        updates: the VERSION_COLUMNS of the changed versions, in their order.
        fresh: a mask of the changes that are new versions.
        added: the VERSION_COLUMNS of the new versions, in their order.
    """

    lost: Bools
    changed: Bools
    updates: pa.Table
    fresh: Bools
    added: pa.Table


def merge_versions(known: pa.Table, changes: pa.Table) -> MergedVersions:
    """Return the effect of later changes on the versions of a table.

    The known versions may lack closed ones that no rollback reaches and that are older than all changes by their times.

    Args:
        known: versions with KNOWN_COLUMNS, as earlier merges have left them. Rows in any order.
        changes: changes of the documents, collection events, rollbacks and flushes, in any order, with CHANGE_COLUMNS.
    """
    cuts = _collect_cuts(changes)
    survives = cuts.mark_survivors(changes)
    ends = changes.filter(pa.array(survives & _mark_events(changes, END_EVENTS)))
    newer = np.flatnonzero(survives & _mark_events(changes, DOCUMENT_EVENTS))
    lost = ~cuts.mark_survivors(known)
    was_open = known["_is_current"].to_numpy()
    is_open = was_open | ~cuts.mark_survivors(_select_closings(known))
    older = np.flatnonzero(~lost & (is_open & ~was_open | _mark_concerned(known, changes, ends)))
    newer = newer[~_mark_repeated(changes.take(pa.array(newer)), known.take(pa.array(older)))]
    steps = pa.concat_tables(
        [_list_known_steps(known.take(pa.array(older)), is_open[older]), _list_steps(changes.take(pa.array(newer)))]
    )
    found = _find_versions(steps, ends)
    stays_open = was_open[older] & found["_is_current"].to_numpy()[: len(older)]
    is_changed = is_open[older] & ~stays_open
    is_version = steps["is_version"].to_numpy()[len(older) :]
    changed, fresh = np.zeros(known.num_rows, bool), np.zeros(changes.num_rows, bool)
    changed[older[is_changed]] = True
    fresh[newer[is_version]] = True
    return MergedVersions(
        lost,
        changed,
        found.slice(0, len(older)).filter(pa.array(is_changed)),
        fresh,
        found.slice(len(older)).filter(pa.array(is_version)),
    )


def _mark_events(rows: pa.Table, events: pa.Array) -> Bools:
    found: Bools = pc.is_in(rows["event"], value_set=events).to_numpy()
    return found


def _collect_cuts(rows: pa.Table) -> RollbackMarkers:
    """Return the rollbacks among changes. A flush limits how far back the rollbacks after it reach."""
    rows = rows.filter(pa.array(_mark_events(rows, ROLLBACK_EVENTS)))
    rows = rows.sort_by([("vbucket", "ascending"), ("history", "ascending")])
    vbuckets = rows["vbucket"].to_numpy().astype(np.int64)
    is_flush = _mark_events(rows, pa.array([Event.FLUSH]))
    limits = np.where(is_flush, _NO_LIMIT, read_seqnos(rows))
    is_first = np.diff(vbuckets, prepend=-1) != 0
    is_first[1:] |= is_flush[:-1]
    groups = np.split(limits, np.flatnonzero(is_first | is_flush)[1:])
    reach = [np.minimum.accumulate(group[::-1])[::-1] for group in groups]
    return RollbackMarkers(vbuckets << 32 | rows["history"].to_numpy(), np.concatenate(reach))


def _select_closings(known: pa.Table) -> pa.Table:
    """Return the places of the changes that closed versions; a place that always survives for open ones."""
    columns = {"history": known["_closed_history"], "seqno": known["_closed_seqno"]}
    return pa.table({"vbucket": known["vbucket"]} | {name: pc.fill_null(each, 0) for name, each in columns.items()})


def _mark_concerned(known: pa.Table, changes: pa.Table, ends: pa.Table) -> Bools:
    """Return a mask of the known versions that may be closed: those with a changed key or in an ended collection."""
    is_flush = pa.array(_mark_events(ends, pa.array([Event.FLUSH])))
    flushed = ends.filter(is_flush)["vbucket"].to_numpy()
    ended = encode_collections(ends.filter(pc.invert(is_flush)))
    found: Bools = pc.is_in(known["key"], value_set=pc.unique(changes["key"])).to_numpy()
    return found | np.isin(known["vbucket"].to_numpy(), flushed) | np.isin(encode_collections(known), ended)


def _mark_repeated(changes: pa.Table, known: pa.Table) -> Bools:
    """Return a mask of the changes that are known versions. A delta that begins again has such changes."""
    found: Bools = np.isin(_encode_places(changes), _encode_places(known))
    return found


def _encode_places(rows: pa.Table) -> npt.NDArray[np.void]:
    found = np.empty(rows.num_rows, [("vbucket", np.int64), ("history", np.int64), ("seqno", np.int64)])
    for name in found.dtype.names or ():
        found[name] = rows[name].to_numpy()
    return found


def _list_known_steps(known: pa.Table, is_open: Bools) -> pa.Table:
    """Return known versions as steps. A version that stays closed also brings the time at which it was closed."""
    start, end = (_read_times(known[name]) for name in ("_valid_from", "_valid_to"))
    newest = np.where(is_open, start, np.maximum(start, end))
    return _make_steps(known, np.ones(known.num_rows, bool), start, newest)


def _list_steps(changes: pa.Table) -> pa.Table:
    """Return changes of documents as steps."""
    times = _read_times(changes["_changed_at"])
    return _make_steps(changes, _mark_events(changes, pa.array([Event.MUTATION])), times, times)


def _make_steps(rows: pa.Table, is_version: Bools, times: Ints, newest: Ints) -> pa.Table:
    found = rows.select([*IDENTITY, "history", "seqno"])
    for name, values in (("is_version", is_version), ("time", times), ("newest", newest)):
        found = found.append_column(name, pa.array(values))
    return found


def _read_times(times: pa.ChunkedArray) -> Ints:
    found: Ints = pc.fill_null(times.cast(pa.int64()), _NO_TIME).to_numpy()
    return found


def _find_versions(steps: pa.Table, ends: pa.Table) -> pa.Table:
    """Return the VERSION_COLUMNS of each step, as if each were a version.

    Args:
        steps: versions and deletions, each with its time and the newest time that is known from it.
        ends: events that close all versions of a collection or a vbucket.
    """
    documents, histories, seqnos = _number_documents(steps), steps["history"].to_numpy(), read_seqnos(steps)
    order = np.lexsort((seqnos, histories, documents))
    is_same = documents[order][1:] == documents[order][:-1]
    following = np.full(len(order), -1)
    following[order[:-1][is_same]] = order[1:][is_same]
    end_histories, end_seqnos = _find_next_ends(steps, ends)
    has_end, has_next = end_histories >= 0, following >= 0
    is_before = (histories[following] < end_histories) | (
        (histories[following] == end_histories) & (seqnos[following] <= end_seqnos)
    )
    by_step = has_next & (~has_end | is_before)
    is_open = ~by_step & ~has_end
    is_version = steps["is_version"].to_numpy()
    counts = is_version.copy()
    counts[following[is_version & by_step]] = True
    starts = _find_starts(steps, counts, documents, order)
    ended = np.where(by_step, starts[following], _NO_TIME)
    closed_histories = np.where(by_step, histories[following], end_histories)
    closed_seqnos = np.where(by_step, seqnos[following], end_seqnos).view(np.int64)
    return pa.table(
        [
            _make_times(starts),
            _make_times(ended),
            pa.array(is_open),
            pa.array(closed_histories, pa.int32(), mask=is_open),
            pa.array(closed_seqnos, pa.int64(), mask=is_open),
        ],
        schema=VERSION_COLUMNS,
    )


def _make_times(times: Ints) -> pa.Array:
    return pa.array(times, TIME, mask=times == _NO_TIME)


def _number_documents(rows: pa.Table) -> Ints:
    """Return a number for each row, the same for all rows of a document."""
    keys = rows["key"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    places, place = np.unique(encode_collections(rows), return_inverse=True)
    numbers: Ints = keys * len(places) + place
    return numbers


def _find_starts(steps: pa.Table, counts: Bools, documents: Ints, order: npt.NDArray[np.intp]) -> Ints:
    """Return the time of each step, or the newest time before it of the steps of its document that count."""
    times, newest = steps["time"].to_numpy(), np.where(counts, steps["newest"].to_numpy(), _NO_TIME)
    known, ranks = np.unique(np.append(newest[order], _NO_TIME), return_inverse=True)
    is_first = np.diff(documents[order], prepend=-1) != 0
    # Ranks of later documents begin above those of earlier ones, so a single running maximum serves all documents.
    running = np.maximum.accumulate(np.cumsum(is_first) * len(known) + ranks[:-1]) % len(known)
    before = np.append(_NO_TIME, known[running][:-1])
    before[is_first] = _NO_TIME
    starts: Ints = np.empty_like(times)
    starts[order] = np.where(times[order] == _NO_TIME, _NO_TIME, np.maximum(times[order], before))
    return starts


def _find_next_ends(steps: pa.Table, ends: pa.Table) -> tuple[Ints, Seqnos]:
    """Return history and seqno of the first end behind each step, of its collection or vbucket; history -1 for none."""
    places = encode_collections(steps)
    is_flush = pa.array(_mark_events(ends, pa.array([Event.FLUSH])))
    flushes, collections = ends.filter(is_flush), ends.filter(pc.invert(is_flush))
    known = np.unique(places)
    # a flush ends each collection of its vbucket
    flush, at = np.nonzero(flushes["vbucket"].to_numpy()[:, None] == (known >> 32)[None, :])
    count = len(places)
    place = np.concatenate([places, encode_collections(collections), known[at]])
    history = np.concatenate(
        [steps["history"].to_numpy(), collections["history"].to_numpy(), flushes["history"].to_numpy()[flush]]
    )
    seqno = np.concatenate([read_seqnos(steps), read_seqnos(collections), np.zeros(len(flush), np.uint64)])
    is_end = np.arange(len(place)) >= count
    order = np.lexsort((is_end, seqno, history, place))
    following = np.where(is_end[order], np.arange(len(order)), len(order))
    following = np.minimum.accumulate(following[::-1])[::-1]
    inside = np.minimum(following, len(order) - 1)
    found = order[inside]
    has_end = (following < len(order)) & (place[found] == place[order])
    histories, seqnos = np.full(len(order), -1), np.zeros(len(order), np.uint64)
    histories[order[has_end]], seqnos[order[has_end]] = history[found[has_end]], seqno[found[has_end]]
    return histories[:count], seqnos[:count]
