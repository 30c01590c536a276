"""Decodes stream frames to objects, one struct at a time: faster than `run_decoder` for runs of few messages."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import EXTRAS_LENGTH_AT
from penstock.wire.columns.change_rules import (
    breaks_layout,
    has_rev_seqno,
    has_reversed_flags,
    is_value_omitted,
    read_xattrs,
)
from penstock.wire.columns.data_forms import SHAPES, reverse_u32
from penstock.wire.columns.heads import Run, StreamContext, find_frame_error
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.dcp import COLLECTION_SEPARATOR
from penstock.wire.values.collection_key import split_collection_key
from penstock.wire.values.json_value import is_utf8

_XATTR = int(Datatype.XATTR)
_new_change = tuple.__new__

_Owner = tuple[int | None, str | None, str | None]
"""A collection: its id, its scope's name, its own name."""

_NO_COLLECTION: _Owner = (None, None, None)


def decode_messages(run: Run, context: StreamContext) -> list[Change]:
    """Return the changes of a run as objects.

    Raises:
        RemoteProtocolError: a frame is impossible, as in gather_heads, or its content is.
    """
    decoder = _MessageDecoder(run, context)
    offsets: Sequence[int] = run.offsets if isinstance(run.offsets, list) else run.offsets.tolist()
    changes = [*map(decoder.decode, offsets, (*offsets[1:], run.end))]
    if decoder.fault is not None:
        raise decoder.fault
    return changes


class _MessageDecoder:
    """Decodes the messages of one run.

    Attributes:
        fault: the error of the first message with a good layout and a bad content. The error of a message that breaks
            its layout has precedence, wherever that message stands.
    """

    def __init__(self, run: Run, context: StreamContext) -> None:
        self._run, self._context, self._names = run, context, context.collections
        self._shapes = SHAPES[run.dialect]
        self._form_of, self._code_at = self._shapes.by_code.get, self._shapes.code_at
        self._view = memoryview(run.buffer)
        self._xattrs, self._values = context.xattrs, context.values
        self._vbucket = -1
        self._stream: tuple[int | None, Sequence[int | None]] = (None, ())
        self.fault: RemoteProtocolError | None = None

    def decode(self, offset: int, end: int) -> Change:
        """Return the change of a message, given its bounds. Raises RemoteProtocolError if it breaks its layout."""
        view = self._view
        form = self._form_of(view[offset + self._code_at] << 8 | view[offset + EXTRAS_LENGTH_AT])
        if form is None:
            raise self._error(offset)
        numbers = form.pick((*form.unpack(view, offset), None, 0))
        key_length, seqno, rev_seqno, cas, flags, expiry, lock_time, delete_time, vbucket, datatype = numbers[:10]
        _, engine_length, tap_flags, nmeta, name_length = numbers[10:]
        key_at = offset + form.head_bytes + engine_length
        value_at, end = key_at + key_length, end - nmeta
        if breaks_layout(key_length, value_at, end, seqno, form.ends_at_key):
            raise self._error(offset)
        owner, key = _NO_COLLECTION, view[key_at:value_at].tobytes()
        if name_length or self._names is not None:
            owner, key = self._split_key(offset, key, name_length)
        xattrs = None
        if self._xattrs and datatype & _XATTR:
            datatype &= ~_XATTR
            xattrs, value_at = self._read_xattrs(value_at, end)
        value = view[value_at:end].tobytes() if self._values and form.event is Event.MUTATION else None
        if tap_flags is not None:
            rev_seqno = rev_seqno if has_rev_seqno(engine_length) else None
            value = None if is_value_omitted(tap_flags) else value
            flags = reverse_u32(flags) if flags is not None and has_reversed_flags(tap_flags) else flags
        if vbucket != self._vbucket:
            self._vbucket, self._stream = vbucket, self._read_stream(vbucket)
        vbuuid, snapshot = self._stream
        datatype = datatype if self._values else None
        stored = vbucket, vbuuid, seqno, rev_seqno, cas, form.event, key, value
        times = flags, expiry, lock_time, delete_time
        return _new_change(Change, (*stored, *owner, datatype, *times, xattrs, *snapshot, None))

    def _error(self, offset: int) -> RemoteProtocolError:
        return find_frame_error(self._run, offset, prefixed=self._names is not None)

    def _read_stream(self, vbucket: int) -> tuple[int | None, Sequence[int | None]]:
        """Return the facts of a vbucket's stream: the vbuuid, and the others of StreamContext.NAMES."""
        try:
            facts: list[int | None] = [*self._context.read_vbucket(vbucket)]
        except RemoteProtocolError as error:
            self.fault = self.fault or error
            facts = [0] * len(StreamContext.NAMES)
        columns = self._shapes.stream_columns
        if columns != StreamContext.NAMES:
            pairs = zip(StreamContext.NAMES, facts, strict=True)
            facts = [number if name in columns else None for name, number in pairs]
        return facts[0], facts[1:]

    def _read_xattrs(self, at: int, end: int) -> tuple[dict[str, bytes] | None, int]:
        try:
            return read_xattrs(self._view, at, end)
        except RemoteProtocolError as error:
            self.fault = self.fault or error
            return None, at

    def _split_key(self, offset: int, key: bytes, name_length: int) -> tuple[_Owner, bytes]:
        """Return the collection of a key, and the key after its collection's id or name."""
        if self._names is None:
            named, key = self._split_name(offset, key, name_length)
            return (None, None, named), key
        collection_id, key = self._split_prefix(offset, key, name_length)
        scope, name = self._names.find_collection(collection_id)
        return (collection_id, scope, name), key

    def _split_prefix(self, offset: int, key: bytes, name_length: int) -> tuple[int, bytes]:
        """Return the collection id that a key begins with, and the rest of the key."""
        # An id below 128 is one byte and needs no call.
        if key[0] < 0x80 and len(key) > 1 and not name_length:
            return key[0], key[1:]
        try:
            collection_id, rest = split_collection_key(key)
        except RemoteProtocolError:
            rest = b""
        if not rest or name_length:
            raise self._error(offset)
        return collection_id, rest

    def _split_name(self, offset: int, key: bytes, length: int) -> tuple[str, bytes]:
        """Return the collection's name, which has `length` bytes, and the key after it."""
        key_at = length + len(COLLECTION_SEPARATOR)
        name, separator, rest = key[:length], key[length:key_at], key[key_at:]
        if separator != COLLECTION_SEPARATOR or not rest or not is_utf8(name):
            raise self._error(offset)
        return name.decode(), rest
