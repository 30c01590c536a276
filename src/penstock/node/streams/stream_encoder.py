"""From changes of the log to what a stream sends of them: only those that it is for, and in the connection's form.

Everything is done in columns, as far as nothing is special: collections are told apart by the first bytes of the keys,
and where a vbucket has never had any but the default one, nobody looks at those. System events are few, and go one by
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import RemoteProtocolError
from penstock.node.streams.ext_metadata import with_ext_metadata
from penstock.node.streams.stream_filter import StreamFilter
from penstock.store.history.event_frames import read_event
from penstock.store.history.frame_chunks import NO_FRAMES, Chunk
from penstock.store.log.frame_fields import collection_ids, is_mutation
from penstock.store.log.segment import gather_ascending
from penstock.wire.codec.constants import SystemEventKind
from penstock.wire.codec.frame import EXTRAS_LENGTH_AT, HEADER_BYTES, Buffer, cut_frame
from penstock.wire.codec.layout import decode
from penstock.wire.columns.frame_form import FrameForm
from penstock.wire.columns.reframe import reframe
from penstock.wire.columns.revalue import Content, revalue
from penstock.wire.messages.dcp import Mutation, SystemEvent
from penstock.wire.messages.dcp_values import framing_of
from penstock.wire.messages.system_event import pack_system_event
from penstock.wire.values.collection_key import DEFAULT_COLLECTION, SYSTEM_COLLECTION

__all__ = ["EncodedChanges", "StreamEncoder", "WireOptions", "chosen", "joined", "owners_of", "seqno_of_last"]

_MEAN_RUN = 8  # a slice costs about as much as Arrow takes for so many frames
_SEQNO_BYTES = 8
_FEW = 8
_LONG_ID = 0x80  # the first byte of a collection's id that has another behind it


@dataclass(frozen=True)
class WireOptions:
    """What a connection has agreed on for its streams.

    Attributes:
        form: which messages changes are.
        content: what is sent of values.
        flatbuffers: system events come as FlatBuffers.
        ext_metadata: a section of meta data comes behind values.
        seqno_advanced: the end of a snapshot is announced where its last change is not sent.
        purge_seqno: the first marker of a stream and those of backfills have the purge seqno.
        skip_first_deletions: the first snapshot of a history comes without deletions.
    """

    form: FrameForm
    content: Content
    flatbuffers: bool = False
    ext_metadata: bool = False
    seqno_advanced: bool = False
    purge_seqno: bool = False
    skip_first_deletions: bool = False

    @cached_property
    def with_bodies(self) -> FrameForm:
        """The form of frames that have lost already what is not wanted of their values."""
        return replace(self.form, keys_only=False, datatypes=None)


class EncodedChanges(NamedTuple):
    """Changes as a stream sends them.

    Attributes:
        data: whole frames.
        items: how many changes they are.
        seqno: of the last change, 0 if there is none.
    """

    data: Buffer
    items: int
    seqno: int


_NOTHING = EncodedChanges(b"", 0, 0)


class StreamEncoder:
    """Filters and encodes the changes of one stream.

    Attributes:
        filter: which changes the stream sends.
        stream_id: the stream's id among those of its vbucket, None without. framing: the id as framing extras, which
            are in each of the stream's messages.
    """

    def __init__(self, stream_filter: StreamFilter, stream_id: int | None = None) -> None:
        self.filter = stream_filter
        self.stream_id = stream_id
        self.framing = b"" if stream_id is None else framing_of(stream_id)
        self._options: WireOptions | None = None  # the connection's, of which _own was made
        self._own: WireOptions

    def encode(
        self, chunk: Chunk, options: WireOptions, *, is_plain: bool = False, skip_deletions: bool = False
    ) -> EncodedChanges:
        """Return what is sent of some changes, nothing once the filter is empty.

        Args:
            options: the connection's.
            is_plain: all changes are of the default collection, and no system event is among them.
            skip_deletions: leave out deletions and expirations.
        """
        options = self._with_stream_id(options)
        wanted = self._wants(chunk, is_plain=is_plain) if not skip_deletions else None
        if wanted:
            return EncodedChanges(_formed(chunk, options), chunk.frames, seqno_of_last(chunk))
        if wanted is not None:
            return _NOTHING
        pieces: list[Buffer] = []
        items = seqno = 0
        for part, is_event in self._parts(chunk, skip_deletions=skip_deletions):
            piece = self._system_event(part, options) if is_event else _formed(part, options)
            if piece:
                pieces.append(piece)
                items, seqno = items + part.frames, seqno_of_last(part)
            if self.filter.is_empty:
                break
        return EncodedChanges(joined(pieces), items, seqno)

    def _wants(self, chunk: Chunk, *, is_plain: bool) -> bool | None:
        """Return whether some changes are sent, all or none; None where they have to be told apart.

        Quicker than in columns for those that come one at a time.
        """
        data, begins = chunk
        if is_plain:
            return self.filter.wants(DEFAULT_COLLECTION)
        if len(begins) > _FEW:
            return None
        owners = {data[begin + HEADER_BYTES + data[begin + EXTRAS_LENGTH_AT]] for begin in begins}
        if len(owners) > 1 or (only := owners.pop()) == SYSTEM_COLLECTION or only >= _LONG_ID:
            return None
        return self.filter.wants(only)

    def _with_stream_id(self, options: WireOptions) -> WireOptions:
        if options is not self._options:
            self._options = self._own = options
            if self.stream_id is not None:
                self._own = replace(options, form=replace(options.form, stream_id=self.stream_id))
        return self._own

    def _parts(self, chunk: Chunk, *, skip_deletions: bool) -> Iterator[tuple[Chunk, bool]]:
        """Yield in order the changes that are sent, and each system event by itself, with True."""
        owners = owners_of(chunk)
        passed = ~is_mutation(memoryview(chunk.data), np.asarray(chunk.begins)) if skip_deletions else None
        start = 0
        for event in [*np.flatnonzero(owners == SYSTEM_COLLECTION).tolist(), chunk.frames]:
            wanted = np.zeros(chunk.frames, np.bool_)
            wanted[start:event] = self.filter.of(owners[start:event])
            if passed is not None:
                wanted &= ~passed
            if (part := chosen(chunk, wanted)).frames:
                yield part, False
            if event < chunk.frames:
                wanted[:] = False
                wanted[event] = True
                yield chosen(chunk, wanted), True
            start = event + 1

    def _system_event(self, part: Chunk, options: WireOptions) -> bytes:
        """Return the message of a system event, nothing if this consumer gets none."""
        source: Any = decode(cut_frame(memoryview(part.data), 0))
        try:
            event = read_event(source.key, source.value, source.flags if isinstance(source, Mutation) else None)
        except RemoteProtocolError:
            event = None
        if event is None or not self.filter.take(event):
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


def _formed(chunk: Chunk, options: WireOptions) -> Buffer:
    """Return changes in the connection's form."""
    data, begins, bodies_gone = revalue(chunk.data, chunk.begins, options.content)
    formed = reframe(data, begins, options.with_bodies if bodies_gone else options.form)
    return with_ext_metadata(formed) if options.ext_metadata else formed


def joined(pieces: Sequence[Buffer]) -> Buffer:
    """Return pieces as one, without a copy of a single one."""
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def owners_of(chunk: Chunk) -> npt.NDArray[np.int64]:
    """Return the collection that each change is in."""
    return collection_ids(memoryview(chunk.data), np.asarray(chunk.begins, np.int64))


def seqno_of_last(chunk: Chunk) -> int:
    at = int(chunk.begins[-1]) + HEADER_BYTES
    return int.from_bytes(chunk.data[at : at + _SEQNO_BYTES], "big")


def chosen(chunk: Chunk, wanted: npt.NDArray[np.bool_]) -> Chunk:
    """Return some of the changes. wanted: for each whether it is one of them."""
    if wanted.all():
        return chunk
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False]))))
    if not len(edges):
        return NO_FRAMES
    begins = np.asarray(chunk.begins, np.int64)
    bounds = np.append(begins, len(chunk.data))
    lengths = np.diff(bounds)[wanted]
    view = memoryview(chunk.data)
    if len(edges) // 2 * _MEAN_RUN <= len(lengths):
        runs = zip(bounds[edges[::2]].tolist(), bounds[edges[1::2]].tolist(), strict=True)
        data = bytearray().join([view[begin:end] for begin, end in runs])
    else:
        data = bytearray(gather_ascending(view, begins[wanted], lengths.astype(np.uint32)))
    return Chunk(data, np.cumsum(lengths) - lengths)
