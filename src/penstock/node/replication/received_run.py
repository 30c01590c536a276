"""Stores runs of received changes: consecutive messages of documents as columns, without a dispatch of each."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import RemoteProtocolError, StatusError
from penstock.node.answers import Parked
from penstock.node.replication.passive_stream import PassiveStream
from penstock.node.replication.received_parts import check_value
from penstock.node.session.session import Session
from penstock.store.history.vbucket_changes import REFUSED
from penstock.store.log.logged_frames import LONG_FROM, FrameRun
from penstock.wire.codec.constants import MAX_KEY, Dialect
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import BODY_AT, KEY_LENGTH_AT, OPAQUE_AT
from penstock.wire.columns.data_forms import SHAPES
from penstock.wire.columns.heads import Heads, Run, gather_heads
from penstock.wire.messages.dcp import DeletionV2, Expiration, Mutation
from penstock.wire.values.collection_key import DEFAULT_PREFIX, PREPARED_COLLECTION, SYSTEM_COLLECTION

_SHAPES = SHAPES[Dialect.DCP]
_XATTR = int(Datatype.XATTR)
_CHECKED = int(Datatype.XATTR | Datatype.SNAPPY)
"""Datatypes of values that are checked."""
FEW_MESSAGES: Final = 8
"""Messages below which dispatch is faster than columns."""
_LONG_ID: Final = 0x80  # the first byte of a collection id of two or more bytes
_OPAQUE = np.arange(OPAQUE_AT, OPAQUE_AT + 4)
_IS_MUTATION = np.array([form.cls is Mutation for form in _SHAPES.forms])
_HAS_TIME = np.array([form.cls in (DeletionV2, Expiration) for form in _SHAPES.forms])


def store_run(session: Session, streams: Mapping[int, PassiveStream], run: Run) -> tuple[int, bytes]:
    """Store the regular changes at the beginning of a run. Dispatch serves the next message.

    Args:
        session: the session of the connection.
        streams: its streams by vbucket.
        run: the messages.

    Returns:
        The number of stored changes, and the messages that are due: acknowledgements of snapshots and prepares.

    Raises:
        CloseConnection: a change breaks the order of its stream.
    """
    stored, replies = 0, b""
    while len(run.offsets) >= FEW_MESSAGES and (found := _find_regular(session, streams, run)) is not None:
        count, reply = found.store()
        replies += reply
        stored += count
        run = run._replace(offsets=run.offsets[count:])
        if count < found.run.change_count:  # the bucket refuses the next change
            break
    return stored, replies


class _RegularChanges(NamedTuple):
    """Changes of one stream whose messages have the form of the log.

    Attributes:
        stream: the stream.
        run: the changes, without their opaques.
        max_cas: the highest cas.
    """

    stream: PassiveStream
    run: FrameRun
    max_cas: int

    def store(self) -> tuple[int, bytes]:
        """Store the changes.

        Returns:
            The number of stored changes, and the messages that are due.
        """
        try:
            completes = self.stream.store_run(self.run, self.max_cas)
        except REFUSED:
            return self.run.count_stored(self.stream.vbucket.changes.high_seqno), b""
        return self.run.change_count, self.stream.acknowledge(is_complete=completes)


def _find_regular(session: Session, streams: Mapping[int, PassiveStream], run: Run) -> _RegularChanges | None:
    """Return the first changes of a run if they are regular; None if too few are.

    The message of a regular change becomes the frame of the log. It has a cas of its own and no extended metadata. A
    tombstone has the time of the deletion, and no value but extended attributes. The vbucket has no prepares.
    """
    try:
        heads = gather_heads(run)
    except RemoteProtocolError:
        return None
    stream = streams.get(int(heads.vbucket[0]))
    if stream is None or stream.opaque != heads.opaque[0] or not (accepted := stream.accepted_seqnos):
        return None
    if stream.vbucket.history.prepares.is_used:
        return None
    numbers, seqnos = heads.numbers, heads.numbers["seqno"]
    is_regular = (
        (heads.vbucket == stream.vbucket.id)
        & (heads.opaque == stream.opaque)
        & (numbers["cas"] > 0)
        & (numbers["rev_seqno"] >= 0)
        & (numbers["datatype"] & ~session.datatypes == 0)
        & (seqnos >= accepted[0])
        & (seqnos <= accepted[-1])
        & _find_regular_documents(session, run, heads)
    )
    is_regular[1:] &= seqnos[1:] > seqnos[:-1]
    count = len(is_regular) if is_regular.all() else int(is_regular.argmin())
    if count >= FEW_MESSAGES:
        count = _count_valid_values(session, run, heads, count)
    return _cut_regular(session, stream, run, heads, count) if count >= FEW_MESSAGES else None


def _find_regular_documents(session: Session, run: Run, heads: Heads) -> npt.NDArray[np.bool_]:
    """Return which messages have a regular key, a regular length, and the parts of a regular tombstone."""
    numbers, is_mutation = heads.numbers, heads.select_by_form(_IS_MUTATION)
    key_bytes, value_bytes = heads.values_at - heads.keys_at, heads.ends - heads.values_at
    is_bare = (value_bytes == 0) & (numbers["datatype"] == 0)
    is_tombstone = heads.select_by_form(_HAS_TIME) & (is_bare | (numbers["datatype"] & _XATTR != 0))
    found: npt.NDArray[np.bool_] = (key_bytes <= MAX_KEY) & (value_bytes < LONG_FROM) & (is_mutation | is_tombstone)
    if (nmeta := numbers.get("nmeta")) is not None:
        found &= nmeta == 0
    if (delete_times := numbers.get("delete_time")) is not None:
        found &= is_mutation | (delete_times != 0)
    if session.collections:
        first = np.frombuffer(run.buffer, np.uint8)[heads.keys_at]
        is_own = (first == SYSTEM_COLLECTION) | (first == PREPARED_COLLECTION)
        found &= (first < _LONG_ID) & ~is_own & (key_bytes > 1)
    return found


def _count_valid_values(session: Session, run: Run, heads: Heads, count: int) -> int:
    """Return how many of the first `count` messages precede the first value that is invalid or needs a thread."""
    datatypes, view = heads.numbers["datatype"][:count], memoryview(run.buffer)
    for row in np.flatnonzero(datatypes & _CHECKED).tolist():
        value = view[heads.values_at[row] : heads.ends[row]]
        try:
            check_value(session, int(datatypes[row]), value)
        except (StatusError, RemoteProtocolError, Parked):
            return int(row)  # dispatch finds the same, and answers it
    return count


def _cut_regular(session: Session, stream: PassiveStream, run: Run, heads: Heads, count: int) -> _RegularChanges:
    """Return the first `count` changes of a run, which are regular."""
    first, end = int(run.offsets[0]), int(heads.ends[count - 1])
    octets = np.frombuffer(run.buffer, np.uint8)[first:end].copy()
    bounds = np.append(np.asarray(run.offsets[:count], np.int64), end) - first
    keys_at, values_at = heads.keys_at[:count] - first, heads.values_at[:count] - first
    octets[bounds[:-1, None] + _OPAQUE] = 0
    keys = zip(keys_at.tolist(), values_at.tolist(), strict=True)
    if session.collections:
        data = octets.tobytes()
        found = [data[key_at:value_at] for key_at, value_at in keys]
    else:  # the key gets the id of the default collection
        _add_to_lengths(octets, bounds[:-1], len(DEFAULT_PREFIX))
        data = octets.tobytes()
        found = [DEFAULT_PREFIX + data[key_at:value_at] for key_at, value_at in keys]
        parts = pairwise([0, *keys_at.tolist(), len(data)])
        data = DEFAULT_PREFIX.join([data[start:stop] for start, stop in parts])
        bounds += len(DEFAULT_PREFIX) * np.arange(count + 1)
    is_mutation = np.broadcast_to(heads.select_by_form(_IS_MUTATION), len(heads.ends))[:count]
    changes = FrameRun(found, heads.numbers["seqno"][:count], data, bounds, is_mutation)
    return _RegularChanges(stream, changes, int(heads.numbers["cas"][:count].max()))


def _add_to_lengths(octets: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], nbytes: int) -> None:
    """Add a number of bytes to the lengths of key and body in the headers of some frames."""
    for at, code in ((KEY_LENGTH_AT, ">u2"), (BODY_AT, ">u4")):
        places = offsets[:, None] + np.arange(at, at + np.dtype(code).itemsize)
        lengths = octets[places].view(code) + nbytes
        octets[places] = lengths.astype(code).view(np.uint8)
