"""Encodes changes of the log for a stream: filters them, and brings them into the connection's form.

Changes are processed in columns where possible. The first bytes of the keys show their collections. A vbucket that
has only ever had the default collection needs no such check. System events and synchronous writes are encoded one by
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import RemoteProtocolError
from penstock.node.streams.ext_metadata import append_ext_metadata
from penstock.node.streams.pushed_filter import PushedFilter
from penstock.node.streams.stream_filter import StreamFilter
from penstock.store.history.event_frames import read_event
from penstock.store.history.frame_chunks import Chunk, select_frames
from penstock.store.history.prepare_frames import PREPARED_PREFIX, parse_prepare_value, read_abort_value
from penstock.store.log.frame_fields import mask_mutations, read_by_seqnos, read_collection_ids
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.codec.frame import EXTRAS_LENGTH_AT, HEADER_BYTES, Buffer, cut_frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.columns.frame_form import FrameForm
from penstock.wire.columns.reframe import reframe
from penstock.wire.columns.revalue import ValueOptions, revalue
from penstock.wire.messages.dcp import Abort, Commit, Mutation, Prepare, SystemEvent
from penstock.wire.messages.dcp_values import pack_stream_id
from penstock.wire.messages.system_event import pack_system_event
from penstock.wire.values.collection_key import DEFAULT_COLLECTION, PREPARED_COLLECTION, SYSTEM_COLLECTION

_SEQNO_BYTES = 8
_FEW = 8  # changes up to which plain Python is faster than numpy
_SPECIAL_COLLECTIONS = (SYSTEM_COLLECTION, PREPARED_COLLECTION)
_LONG_ID = 0x80  # bit of a LEB128 byte that another byte follows


@dataclass(frozen=True)
class WireOptions:
    """The options of a connection's streams.

    Attributes:
        form: the messages of changes.
        content: the parts of values that are sent.
        flatbuffers: whether system events are FlatBuffers.
        ext_metadata: whether an extended metadata section follows each value.
        seqno_advanced: whether SEQNO_ADVANCED ends a snapshot whose last change is not sent.
        sync_writes: whether prepares, commits and aborts are messages of their own. Otherwise only commits are sent, as
            mutations and deletions.
        visible_seqnos: whether markers have the highest seqno that clients see, for replicas. Only markers of version
            2 have it.
        purge_seqno: whether the first marker of a stream, and markers of backfills, have the purge seqno.
        out_of_order: whether a stream of one collection may begin with its documents in the order of their keys.
        out_of_order_seqno: whether SEQNO_ADVANCED ends those documents.
        history: whether snapshots may have the older versions of documents.
        skip_first_deletions: whether the first snapshot of a history comes without deletions.
    """

    form: FrameForm
    content: ValueOptions
    flatbuffers: bool = False
    ext_metadata: bool = False
    seqno_advanced: bool = False
    sync_writes: bool = False
    visible_seqnos: bool = False
    purge_seqno: bool = False
    out_of_order: bool = False
    out_of_order_seqno: bool = False
    history: bool = False
    skip_first_deletions: bool = False

    @cached_property
    def with_bodies(self) -> FrameForm:
        """The form of frames whose values have been reduced already."""
        return replace(self.form, keys_only=False, datatypes=None)


class EncodedChanges(NamedTuple):
    """Changes as a stream sends them.

    Attributes:
        data: whole frames.
        items: number of changes.
        seqno: seqno of the last change, 0 without one.
    """

    data: Buffer
    items: int
    seqno: int


_NOTHING = EncodedChanges(b"", 0, 0)

FindPrepare = Callable[[int], int]
"""Returns the seqno of the prepare that the change at a seqno has committed; 0 if the change is sent as it is."""


class StreamEncoder:
    """Filters and encodes the changes of one stream.

    Attributes:
        filter: chooses the changes of the stream.
        stream_id: the id of the stream among those of its vbucket, or None.
        framing: the stream id as framing extras of each message.
        pushed_filter: chooses among these changes by key and value; None: all of them.
    """

    def __init__(
        self, stream_filter: StreamFilter, stream_id: int | None = None, pushed_filter: PushedFilter | None = None
    ) -> None:
        self.filter = stream_filter
        self.pushed_filter = pushed_filter
        self.stream_id = stream_id
        self.framing = b"" if stream_id is None else pack_stream_id(stream_id)
        self._options: WireOptions | None = None  # the connection's options, from which _stream_options was made
        self._stream_options: WireOptions

    def encode(
        self,
        chunk: Chunk,
        options: WireOptions,
        *,
        is_plain: bool = False,
        skip_deletions: bool = False,
        find_prepare: FindPrepare | None = None,
    ) -> EncodedChanges:
        """Return the frames of the changes that the stream sends; none once the filter is empty.

        Args:
            chunk: frames of the log.
            options: the options of the connection.
            is_plain: whether all changes are of the default collection, without system events.
            skip_deletions: whether to leave out deletions and expirations.
            find_prepare: finds the commits that are sent as such; None: there are none.
        """
        options = self._with_stream_id(options)
        is_mixed = skip_deletions or find_prepare is not None or self.pushed_filter is not None
        wanted = None if is_mixed else self._includes_all(chunk, is_plain=is_plain)
        if wanted:
            return EncodedChanges(_encode_form(chunk, options), chunk.frame_count, read_last_seqno(chunk))
        if wanted is not None:
            return _NOTHING
        pieces: list[Buffer] = []
        items = seqno = 0
        for part, is_special in self._split_changes(chunk, skip_deletions=skip_deletions, find_prepare=find_prepare):
            piece = self._encode_special(part, options, find_prepare) if is_special else _encode_form(part, options)
            if piece:
                pieces.append(piece)
                items, seqno = items + part.frame_count, read_last_seqno(part)
            if self.filter.is_empty:
                break
        return EncodedChanges(join_pieces(pieces), items, seqno)

    def _includes_all(self, chunk: Chunk, *, is_plain: bool) -> bool | None:
        """Return True to send all of some changes, False to send none, None if they are mixed.

        For few changes, this is faster than columns.
        """
        data, begins = chunk
        if is_plain:
            return self.filter.includes(DEFAULT_COLLECTION)
        if len(begins) > _FEW:
            return None
        owners = {data[begin + HEADER_BYTES + data[begin + EXTRAS_LENGTH_AT]] for begin in begins}
        if len(owners) > 1 or (only := owners.pop()) in _SPECIAL_COLLECTIONS or only >= _LONG_ID:
            return None
        return self.filter.includes(only)

    def _with_stream_id(self, options: WireOptions) -> WireOptions:
        if options is not self._options:
            self._options = self._stream_options = options
            if self.stream_id is not None:
                self._stream_options = replace(options, form=replace(options.form, stream_id=self.stream_id))
        return self._stream_options

    def _split_changes(
        self, chunk: Chunk, *, skip_deletions: bool, find_prepare: FindPrepare | None
    ) -> Iterator[tuple[Chunk, bool]]:
        """Divide changes into runs, and leave out the changes that are not sent.

        Yields:
            In order, a run of changes with False, or with True a single system event, prepare, commit or abort.
        """
        owners = read_chunk_collections(chunk)
        special = np.isin(owners, _SPECIAL_COLLECTIONS)
        if find_prepare is not None:
            special |= np.array([find_prepare(seqno) > 0 for seqno in _read_seqnos(chunk)])
        chosen = self._choose_changes(chunk, owners, special, skip_deletions=skip_deletions)
        start = 0
        for event in [*np.flatnonzero(special).tolist(), chunk.frame_count]:
            wanted = np.zeros(chunk.frame_count, np.bool_)
            wanted[start:event] = self.filter.select(owners[start:event])
            if chosen is not None:
                wanted &= chosen
            if (part := select_frames(chunk, wanted)).frame_count:
                yield part, False
            if event < chunk.frame_count:
                wanted[:] = False
                wanted[event] = True
                yield select_frames(chunk, wanted), True
            start = event + 1

    def _choose_changes(
        self, chunk: Chunk, owners: npt.NDArray[np.int64], special: npt.NDArray[np.bool_], *, skip_deletions: bool
    ) -> npt.NDArray[np.bool_] | None:
        """Return which changes are sent, if the stream has their collections; None for all."""
        chosen = mask_mutations(memoryview(chunk.data), np.asarray(chunk.offsets)) if skip_deletions else None
        if self.pushed_filter is None:
            return chosen
        wanted = ~special & (owners >= 0)
        if chosen is not None:
            wanted &= chosen
        if self.filter.scope is None:  # a system event may add a collection to a scope
            wanted &= self.filter.select(owners)
        return self.pushed_filter.select(chunk, owners, wanted)

    def _encode_special(self, part: Chunk, options: WireOptions, find_prepare: FindPrepare | None) -> Buffer:
        """Return the message of a system event, prepare, commit or abort; empty if this consumer gets none."""
        source: Any = decode_frame(cut_frame(memoryview(part.data), 0))
        if source.key.startswith(PREPARED_PREFIX):
            return _encode_prepare(source, options) if options.sync_writes else b""
        if find_prepare is not None and (prepared := find_prepare(source.by_seqno)):
            return Commit(
                vbucket=source.vbucket,
                opaque=source.opaque,
                key=source.key,
                prepared_seqno=prepared,
                by_seqno=source.by_seqno,
            ).encode()
        return self._encode_system_event(source, options)

    def _encode_system_event(self, source: Any, options: WireOptions) -> bytes:
        """Return the message of a system event, empty if this consumer gets none."""
        try:
            event = read_event(source.key, source.value, source.flags if isinstance(source, Mutation) else None)
        except RemoteProtocolError:
            event = None
        if event is None or not self.filter.apply_event(event):
            return b""
        if event.kind is SystemEventKind.COLLECTION_MODIFY and not options.flatbuffers:
            return b""
        packed = pack_system_event(event.kind, event.subject, as_table=options.flatbuffers)
        return SystemEvent(
            vbucket=source.vbucket,
            opaque=source.opaque,
            by_seqno=source.by_seqno,
            event=int(event.kind),
            version=packed.version,
            key=packed.key,
            value=packed.value,
            framing=self.framing,
        ).encode()


def _encode_form(chunk: Chunk, options: WireOptions) -> Buffer:
    """Return changes in the connection's form."""
    data, begins, bodies_removed = revalue(chunk.data, chunk.offsets, options.content)
    formed = reframe(data, begins, options.with_bodies if bodies_removed else options.form)
    return append_ext_metadata(formed) if options.ext_metadata else formed


def _encode_prepare(source: Any, options: WireOptions) -> bytes:
    """Return the message of a prepare or an abort. The document in a prepare gets the connection's form."""
    key = source.key[len(PREPARED_PREFIX) :]
    found = parse_prepare_value(memoryview(source.value))
    if found is None:
        return Abort(
            vbucket=source.vbucket,
            opaque=source.opaque,
            key=key,
            prepared_seqno=read_abort_value(source.value),
            by_seqno=source.by_seqno,
        ).encode()
    level, frame = found
    formed = _encode_form(Chunk(bytearray(frame), np.zeros(1, np.int64)), options)
    document: Any = decode_frame(cut_frame(memoryview(formed), 0))
    is_mutation = isinstance(document, Mutation)
    return Prepare(
        vbucket=source.vbucket,
        opaque=source.opaque,
        cas=source.cas,
        datatype=document.datatype,
        key=key,
        value=document.value,
        by_seqno=source.by_seqno,
        rev_seqno=source.rev_seqno,
        flags=document.flags if is_mutation else 0,
        expiry=document.expiry if is_mutation else 0,
        deleted=int(not is_mutation),
        durability=level,
    ).encode()


def _read_seqnos(chunk: Chunk) -> list[int]:
    """Return the seqno of each change."""
    found = read_by_seqnos(memoryview(chunk.data), np.asarray(chunk.offsets, np.int64))
    seqnos: list[int] = found.tolist()
    return seqnos


def join_pieces(pieces: Sequence[Buffer]) -> Buffer:
    """Return pieces as one buffer. A single piece is not copied."""
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_chunk_collections(chunk: Chunk) -> npt.NDArray[np.int64]:
    """Return the collection id of each change."""
    return read_collection_ids(memoryview(chunk.data), np.asarray(chunk.offsets, np.int64))


def read_last_seqno(chunk: Chunk) -> int:
    """Return the seqno of the last change."""
    at = int(chunk.offsets[-1]) + HEADER_BYTES
    return int.from_bytes(chunk.data[at : at + _SEQNO_BYTES], "big")
