"""Stores runs of received changes: consecutive messages of documents, without the dispatch of each message."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import RemoteProtocolError, StatusError
from penstock.node.answers import Parked
from penstock.node.replication.passive_stream import PassiveStream
from penstock.node.replication.received_parts import check_value, read_key
from penstock.node.session.session import Session
from penstock.store.history.vbucket_changes import REFUSED
from penstock.store.log.long_frame import LONG_FROM
from penstock.wire.codec.constants import MAX_KEY, Dialect
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import BODY_AT, EXTRAS_LENGTH_AT, KEY_LENGTH_AT, OPAQUE_AT
from penstock.wire.columns.data_forms import SHAPES
from penstock.wire.columns.heads import Heads, Run, gather_heads
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import MUTATION_HEAD, DeletionV2, Expiration, Mutation
from penstock.wire.values.collection_key import DEFAULT_PREFIX, PREPARED_COLLECTION, SYSTEM_COLLECTION

__all__ = ["store_run"]

_SHAPES = SHAPES[Dialect.DCP]
_CODE_AT = _SHAPES.code_at
_NRU_AT: Final = MUTATION_HEAD.size - 1  # the last byte of the extras
_XATTR = int(Datatype.XATTR)
_PLAIN = ~int(Datatype.XATTR | Datatype.SNAPPY)
_FEW_MESSAGES: Final = 8
"""Messages below which one by one is faster than columns."""
_LONG_ID: Final = 0x80  # the first byte of a collection id of two or more bytes
_OPAQUE = np.arange(OPAQUE_AT, OPAQUE_AT + 4)
_IS_MUTATION = np.array([form.cls is Mutation for form in _SHAPES.forms])
_HAS_TIME = np.array([form.cls in (DeletionV2, Expiration) for form in _SHAPES.forms])


def store_run(session: Session, streams: Mapping[int, PassiveStream], run: Run) -> tuple[int, bytes]:
    """Store the changes of a run up to the first that needs an answer, a thread or a retry.

    Args:
        session: the session of the connection.
        streams: its streams by vbucket.
        run: the messages.

    Returns:
        The number of stored changes, and the messages that are due: acknowledgements of snapshots and prepares.

    Raises:
        CloseConnection: a change breaks the order of its stream.
    """
    stored, replies, left = 0, b"", run
    while len(left.offsets) >= _FEW_MESSAGES and (found := _find_regular(session, streams, left)) is not None:
        count, reply = found.store()
        replies += reply
        stored += count
        left = run._replace(offsets=run.offsets[stored:])
        if count < len(found.seqnos):  # the bucket refuses the next change
            return stored, replies
    if not len(left.offsets):
        return stored, replies
    count, more = _store_one_by_one(session, streams, left)
    return stored + count, replies + more


class _RegularChanges(NamedTuple):
    """Changes of one stream whose messages have the form of the log.

    Attributes:
        stream: the stream.
        keys: the store's keys.
        seqnos: the seqnos, ascending.
        frames: the messages without their opaques.
        max_cas: the highest cas.
    """

    stream: PassiveStream
    keys: list[bytes]
    seqnos: list[int]
    frames: list[bytes]
    max_cas: int

    def store(self) -> tuple[int, bytes]:
        """Store the changes.

        Returns:
            The number of stored changes, and the messages that are due.
        """
        try:
            completes = self.stream.store_frames(self.keys, self.seqnos, self.frames, self.max_cas)
        except REFUSED:
            return bisect_right(self.seqnos, self.stream.vbucket.changes.high_seqno), b""
        return len(self.seqnos), self.stream.acknowledge(is_complete=completes)


def _find_regular(session: Session, streams: Mapping[int, PassiveStream], run: Run) -> _RegularChanges | None:
    """Return the first changes of a run if they are regular; None if too few are.

    A regular change needs no check of its value, and its message becomes the frame of the log. It has a cas of its own
    and no extended metadata. A tombstone has the time of the deletion and no value. The vbucket has no prepares.
    """
    try:
        heads = gather_heads(run)
    except RemoteProtocolError:
        return None
    numbers, vbucket, opaque = heads.numbers, int(heads.vbucket[0]), int(heads.opaque[0])
    stream = streams.get(vbucket)
    if stream is None or stream.opaque != opaque or not (accepted := stream.accepted_seqnos):
        return None
    if stream.vbucket.history.prepares.is_used:
        return None
    octets, seqnos = np.frombuffer(run.buffer, np.uint8), numbers["seqno"]
    key_bytes, value_bytes = heads.values_at - heads.keys_at, heads.ends - heads.values_at
    is_mutation = heads.select_by_form(_IS_MUTATION)
    is_regular = (
        (heads.vbucket == vbucket)
        & (heads.opaque == opaque)
        & (numbers["cas"] > 0)
        & (numbers["rev_seqno"] >= 0)
        & (numbers["datatype"] & ~(session.datatypes & _PLAIN) == 0)
        & (key_bytes <= MAX_KEY)
        & (value_bytes < LONG_FROM)
        & (is_mutation | (heads.select_by_form(_HAS_TIME) & (value_bytes == 0) & (numbers["datatype"] == 0)))
        & (seqnos >= accepted[0])
        & (seqnos <= accepted[-1])
    )
    is_regular[1:] &= seqnos[1:] > seqnos[:-1]
    if (nmeta := numbers.get("nmeta")) is not None:
        is_regular &= nmeta == 0
    if (delete_times := numbers.get("delete_time")) is not None:
        is_regular &= is_mutation | (delete_times != 0)
    if session.collections:
        first = octets[heads.keys_at]
        is_own = (first == SYSTEM_COLLECTION) | (first == PREPARED_COLLECTION)
        is_regular &= (first < _LONG_ID) & ~is_own & (key_bytes > 1)
    count = len(is_regular) if is_regular.all() else int(is_regular.argmin())
    return _cut_regular(session, stream, run, heads, count) if count >= _FEW_MESSAGES else None


def _cut_regular(session: Session, stream: PassiveStream, run: Run, heads: Heads, count: int) -> _RegularChanges:
    """Return the first `count` changes of a run, which are regular."""
    first, end = int(run.offsets[0]), int(heads.ends[count - 1])
    octets = np.frombuffer(run.buffer, np.uint8)[first:end].copy()
    offsets = np.asarray(run.offsets[:count], np.int64) - first
    keys_at, values_at = heads.keys_at[:count] - first, heads.values_at[:count] - first
    octets[offsets[:, None] + _OPAQUE] = 0
    bounds = [*offsets.tolist(), end - first]
    keys = zip(keys_at.tolist(), values_at.tolist(), strict=True)
    if session.collections:
        data = octets.tobytes()
        found = [data[key_at:value_at] for key_at, value_at in keys]
        frames = [data[start:stop] for start, stop in pairwise(bounds)]
    else:  # the key gets the id of the default collection
        _add_to_lengths(octets, offsets, len(DEFAULT_PREFIX))
        data = octets.tobytes()
        found = [DEFAULT_PREFIX + data[key_at:value_at] for key_at, value_at in keys]
        parts = zip(bounds, keys_at.tolist(), bounds[1:], strict=False)
        frames = [data[start:key_at] + DEFAULT_PREFIX + data[key_at:stop] for start, key_at, stop in parts]
    seqnos: list[int] = heads.numbers["seqno"][:count].tolist()
    return _RegularChanges(stream, found, seqnos, frames, int(heads.numbers["cas"][:count].max()))


def _add_to_lengths(octets: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], nbytes: int) -> None:
    """Add a number of bytes to the lengths of key and body in the headers of some frames."""
    for at, code in ((KEY_LENGTH_AT, ">u2"), (BODY_AT, ">u4")):
        places = offsets[:, None] + np.arange(at, at + np.dtype(code).itemsize)
        lengths = octets[places].view(code) + nbytes
        octets[places] = lengths.astype(code).view(np.uint8)


def _store_one_by_one(session: Session, streams: Mapping[int, PassiveStream], run: Run) -> tuple[int, bytes]:
    """Store the changes of a run one by one.

    Args:
        session: the session of the connection.
        streams: its streams by vbucket.
        run: the messages.

    Returns:
        As `store_run`.
    """
    offsets: Sequence[int] = run.offsets if isinstance(run.offsets, list) else run.offsets.tolist()
    view = memoryview(run.buffer)
    replies = b""
    for stored, (offset, end) in enumerate(zip(offsets, (*offsets[1:], run.end), strict=True)):
        try:
            replies += _store_message(session, streams, view, offset, end)
        except (StatusError, RemoteProtocolError, Parked):
            return stored, replies  # the dispatch serves this message again, and answers it
    return len(offsets), replies


def _store_message(
    session: Session, streams: Mapping[int, PassiveStream], view: memoryview, offset: int, end: int
) -> bytes:
    """Store one change.

    Returns:
        The messages that are due.

    Raises:
        RemoteProtocolError: the message is no regular change.
        StatusError: the change is refused.
        Parked: the value needs a thread.
    """
    form = _SHAPES.by_code.get(view[offset + _CODE_AT] << 8 | view[offset + EXTRAS_LENGTH_AT])
    if form is None:
        raise RemoteProtocolError("the dispatch finds the error")
    numbers = form.pick((*form.unpack(view, offset), None, 0))
    key_length, seqno, rev_seqno, cas, flags, expiry, lock_time, delete_time, vbucket, datatype = numbers[:10]
    opaque, _, _, nmeta, name_length = numbers[10:]
    stream = streams.get(vbucket)
    key_at = offset + form.head_bytes
    value_at = key_at + key_length
    if stream is None or stream.opaque != opaque or nmeta or name_length or not seqno or value_at > end:
        raise RemoteProtocolError("the dispatch finds the error")
    if datatype & ~session.datatypes:
        raise RemoteProtocolError(f"datatype 0x{datatype:02x}, agreed on 0x{session.datatypes:02x}")
    event = form.event
    is_mutation = event is Event.MUTATION
    if not is_mutation and not datatype & _XATTR:
        datatype, value_at = 0, end
    value = bytes(view[value_at:end])
    check_value(session, datatype, value)
    completes = stream.store_change(
        event,
        read_key(session, bytes(view[key_at : key_at + key_length])),
        value,
        seqno=seqno,
        cas=cas,
        rev_seqno=rev_seqno,
        flags=flags or 0,
        expiry=expiry or 0,
        lock_time=lock_time or 0,
        nru=view[offset + _NRU_AT] if is_mutation else 0,
        datatype=datatype,
        delete_time=delete_time or 0,
    )
    return stream.acknowledge(is_complete=completes)
