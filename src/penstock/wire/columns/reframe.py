"""Frames of the log in another form: for a consumer of another dialect, or one with other wishes.

The log holds DCP frames: mutations, and tombstones with their times (DELETION V2, EXPIRATION). A Form says what becomes
of each kind. All heads are gathered and written as columns; key and value, which lie next to each other, are moved by
one Arrow take that puts every new head in front of what belongs to it. Below SMALL frames a loop is faster.

The log's keys begin with their collection's id. Whoever has not agreed on collections is sent the default one's alone,
whose id is a byte: that byte is left out, and where nothing else changes, only the lengths around it are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import BODY_LENGTH, HEADER_BYTES, HEADER_NAMES, Buffer, cut_frame
from penstock.wire.codec.layout import Message, decode
from penstock.wire.codec.opcodes import DraftCode, Magic, Opcode
from penstock.wire.columns.shapes import BODY_AT, EXTRAS_LENGTH_AT, KEY_LENGTH_AT, OPCODE_AT, head_dtype
from penstock.wire.messages.dcp import Deletion, DeletionV2, Expiration, Mutation, head_fields
from penstock.wire.messages.dcp_values import framing_of
from penstock.wire.messages.tap import TapDelete, TapMutation
from penstock.wire.messages.upr import UprDeletion, UprExpiration, UprMutation
from penstock.wire.messages.upr_draft import DraftDeletion, DraftExpiration, DraftMutation
from penstock.wire.values.collection_key import DEFAULT_PREFIX

__all__ = ["DCP", "FORMS", "NATIVE", "FrameForm", "reframe"]

_MUTATION = int(Opcode.DCP_MUTATION)

SMALL = 25
"""Frames: below, the loop is faster than the columns."""

_SOURCE = head_dtype(Mutation)
"""Header and extras of a mutation. In a tombstone the delete time stands where this has `flags`."""

_SOURCE_NAMES = frozenset(_SOURCE.names or ())
_STORED_ONLY = ("flags", "expiry", "lock_time", "nmeta", "nru")
"""What has no place in a tombstone: its delete time and key stand there."""

_PRIVATE = {TapMutation: [("rev_seqno", ">u8"), ("nru", "u1")], TapDelete: [("rev_seqno", ">u8")]}
"""The engine-private data of TAP, as ep-engine has it: between extras and key."""

_FRAMING = [("frame_info", "u1"), ("framing", ">u2")]
_STREAM_ID_INFO = framing_of(1)[0]
"""How framing extras with a stream's id begin: they lie between header and extras, whose length is then in the upper
byte of the key's."""

_KEY_LENGTH_LOW, _BODY_LOW = KEY_LENGTH_AT + 1, BODY_AT + 3
_BODY = Struct(">I")

Column = npt.NDArray[Any]
Numbers = int | Column


@dataclass(frozen=True)
class FrameForm:
    """What the change frames of a connection look like.

    keys_only: without values. datatypes: the bits that the consumer understands; None: all, also of values that are
    left out. reversed_flags: item flags in the order of bytes that little-endian TAP servers send them. bare_keys:
    without their collection's id; all frames are then the default collection's. stream_id: stands in each frame, where
    one vbucket may have several streams.
    """

    mutation: type[Message]
    deletion: type[Message]
    expiration: type[Message]
    keys_only: bool = False
    datatypes: int | None = None
    reversed_flags: bool = False
    bare_keys: bool = False
    stream_id: int | None = None
    _targets: dict[int, ColumnTarget] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        targets = {
            int(Opcode.DCP_MUTATION): ColumnTarget(self.mutation, self.stream_id),
            int(Opcode.DCP_DELETION): ColumnTarget(self.deletion, self.stream_id),
            int(Opcode.DCP_EXPIRATION): ColumnTarget(self.expiration, self.stream_id),
        }
        object.__setattr__(self, "_targets", targets)

    @cached_property
    def keeps_mutations(self) -> bool:
        """Do mutations go out as the log has them, but for the collection's id?"""
        changed = self.keys_only or self.datatypes is not None or self.stream_id is not None
        return self.mutation is Mutation and not changed

    @cached_property
    def is_native(self) -> bool:
        """Does everything go out as the log has it, but for the collection's id?"""
        return self.keeps_mutations and self.deletion is DeletionV2 and self.expiration is Expiration

    @cached_property
    def prefix_bytes(self) -> int:
        """How many bytes of the log's keys are left out."""
        return len(DEFAULT_PREFIX) if self.bare_keys else 0


class ColumnTarget:
    """A message to be written in columns: its head, with what stands in front of extras and key."""

    def __init__(self, cls: type[Message], stream_id: int | None = None) -> None:
        private = _PRIVATE.get(cls, [])
        framing = _FRAMING if stream_id is not None else []
        fields = head_dtype(cls).descr
        self.cls = cls
        self.extras_length = cls.layouts[max(cls.layouts)].extras.size
        self.private_length = np.dtype(private).itemsize
        self.framing_length = np.dtype(framing).itemsize
        self.dtype = np.dtype([*fields[: len(HEADER_NAMES)], *framing, *fields[len(HEADER_NAMES) :], *private])
        code = cls.opcode
        draft = isinstance(code, DraftCode)
        self.constant = {
            "magic": int(cls.magic),
            "opcode": code >> 8 if draft else int(code),
            "extras_length": self.extras_length,
            **({"datatype": code & 0xFF} if draft else {}),
            **({"engine_length": self.private_length, "ttl": 0xFF} if private else {}),
            **({"magic": int(Magic.ALT_REQUEST), "framing": stream_id} if stream_id is not None else {}),
        }


DCP = FrameForm(Mutation, Deletion, Deletion, bare_keys=True)
"""What a DCP consumer gets that asked for nothing special: deletions of form V1, also of what expired."""

NATIVE = FrameForm(Mutation, DeletionV2, Expiration)
"""What the log has."""

FORMS = {
    Dialect.DCP: DCP,
    Dialect.UPR: FrameForm(UprMutation, UprDeletion, UprExpiration, bare_keys=True),
    Dialect.UPR_DRAFT: FrameForm(DraftMutation, DraftDeletion, DraftExpiration, bare_keys=True),
    Dialect.TAP: FrameForm(TapMutation, TapDelete, TapDelete, datatypes=0, bare_keys=True),
}
"""By dialect, the form of a connection without options."""


def reframe(data: Buffer, begins: Sequence[int] | Column, form: FrameForm, **said: Numbers) -> Buffer:
    """Return the frames in another form.

    data: whole frames of the log, one behind the other, 2 GiB at most; a bytearray may be changed. begins: where each
    begins. said: fields of all frames, or of each, that are not to be taken from the log: `opaque`, `tap_flags`.
    """
    if not len(begins):
        return data
    as_they_are = form.is_native or (
        form.keeps_mutations and said.keys() <= {"opaque"} and _mutations_alone(data, begins)
    )
    if as_they_are:  # with the opaque that the log was read with
        return _without_prefixes(data, begins) if form.bare_keys else data
    if len(begins) < SMALL:
        return _one_by_one(data, begins, form, said)
    return _in_columns(data, np.asarray(begins, np.int64), form, said)


def _mutations_alone(data: Buffer, begins: Sequence[int] | Column) -> bool:
    if len(begins) < SMALL:
        return all(data[begin + OPCODE_AT] == _MUTATION for begin in begins)
    return bool((np.frombuffer(data, np.uint8)[np.asarray(begins) + OPCODE_AT] == _MUTATION).all())


def _without_prefixes(data: Buffer, begins: Sequence[int] | Column) -> Buffer:
    """Return the frames with a byte less each, the first of their keys."""
    if not isinstance(data, bytearray):
        data = bytearray(data)
    if len(begins) < SMALL:
        return b"".join(_pieces_without_prefixes(data, begins))
    begins = np.asarray(begins, np.int64)
    octets = np.frombuffer(data, np.uint8)
    octets[_KEY_LENGTH_LOW:][begins] -= 1  # a key has 1 to 256 bytes, one of them the prefix: no borrow
    low = octets[_BODY_LOW:]
    borrowing = begins[low[begins] == 0]
    low[begins] -= 1
    for at in range(_BODY_LOW - 1, BODY_AT - 1, -1):
        if not len(borrowing):
            break
        octet = octets[at:]
        octet[borrowing], borrowing = octet[borrowing] - 1, borrowing[octet[borrowing] == 0]
    cuts = begins + octets[EXTRAS_LENGTH_AT:][begins]
    cuts += HEADER_BYTES
    # From cut to cut: what lies between two of them is the rest of a frame, and the head of the next.
    bounds = np.empty(2 * len(cuts) + 2, np.int32)
    bounds[0], bounds[-1] = 0, len(data)
    bounds[1:-1:2] = cuts
    np.add(cuts, 1, out=bounds[2:-1:2], casting="unsafe")
    pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    _, _, joined = pieces.take(_every_second(len(cuts) + 1)).buffers()
    return memoryview(joined).cast("B")[: len(data) - len(cuts)]


def _pieces_without_prefixes(data: bytearray, begins: Sequence[int] | Column) -> Iterator[memoryview]:
    view, start = memoryview(data), 0
    for begin in map(int, begins):
        data[begin + _KEY_LENGTH_LOW] -= 1
        (body,) = BODY_LENGTH.unpack_from(data, begin)
        _BODY.pack_into(data, begin + BODY_AT, body - 1)
        cut = begin + HEADER_BYTES + data[begin + EXTRAS_LENGTH_AT]
        yield view[start:cut]
        start = cut + 1
    yield view[start:]


def _in_columns(data: Buffer, begins: Column, form: FrameForm, said: Mapping[str, Numbers]) -> memoryview:
    count = len(begins)
    opcodes = np.frombuffer(data, np.uint8)[begins + 1]
    targets = {opcode: target for opcode, target in form._targets.items() if (opcodes == opcode).any()}
    width = max(target.dtype.itemsize for target in targets.values())
    # One buffer for all: room for the new heads, the frames, and what a head that is gathered may reach beyond them.
    base = count * width
    whole = np.empty(base + len(data) + _SOURCE.itemsize, np.uint8)
    whole[base : base + len(data)] = np.frombuffer(data, np.uint8)
    source = np.ndarray((len(data),), f"V{_SOURCE.itemsize}", whole, base, (1,))[begins].view(_SOURCE)
    ends = np.append(begins[1:], len(data))
    tails_at = begins + (HEADER_BYTES + source["extras_length"].astype(np.int64))
    tails_at += form.prefix_bytes
    key_bytes = source["key_length"].astype(np.int64) - form.prefix_bytes
    tail_bytes = key_bytes if form.keys_only else ends - tails_at
    head_bytes = np.full(count, width)
    for opcode, target in targets.items():
        if len(targets) == 1:
            _write_heads(whole[:base].view(target.dtype), target, source, tail_bytes, form=form, said=said)
            continue
        rows = np.flatnonzero(opcodes == opcode)
        heads = np.empty(len(rows), target.dtype)
        chosen = {name: value if isinstance(value, int) else value[rows] for name, value in said.items()}
        _write_heads(heads, target, source[rows], tail_bytes[rows], form=form, said=chosen)
        whole[:base].reshape(count, width)[rows, : heads.itemsize] = heads.view(np.uint8).reshape(len(rows), -1)
        head_bytes[rows] = heads.itemsize
    places = np.stack((begins, tails_at, tails_at + tail_bytes), axis=1)
    return _joined(whole[: base + len(data)], head_bytes, width, places)


def _write_heads(
    heads: Column,
    target: ColumnTarget,
    source: Column,
    tail_bytes: Column,
    *,
    form: FrameForm,
    said: Mapping[str, Numbers],
) -> None:
    """Write the heads of frames of one kind, every byte of them."""
    gone = target.cls is not form.mutation
    constant: dict[str, Numbers] = {**target.constant, **said}
    constant["body"] = target.framing_length + target.extras_length + target.private_length + tail_bytes
    if form.keys_only and form.datatypes is not None:
        constant.setdefault("datatype", 0)
    for name in target.dtype.names or ():
        if name in constant:
            heads[name] = constant[name]
        elif name == "frame_info":
            heads[name] = _STREAM_ID_INFO
        elif name == "delete_time":
            timed = source["extras_length"] >= Expiration.layouts[3].extras.size
            heads[name] = np.where(timed, source["flags"], 0)
        elif name not in _SOURCE_NAMES or (gone and name in _STORED_ONLY):
            heads[name] = 0
        elif name == "key_length":
            heads[name] = source[name] - form.prefix_bytes | target.framing_length << 8
        elif name == "flags" and form.reversed_flags:
            heads[name] = source[name].byteswap()
        elif name == "datatype" and form.datatypes is not None:
            heads[name] = source[name] & form.datatypes
        else:
            heads[name] = source[name]


def _joined(whole: Column, head_bytes: Column, width: int, places: Column) -> memoryview:
    """Return each head with its tail behind it.

    whole: all heads, each in `width` bytes, and behind them all frames. places: by frame, where it begins, where its
    tail begins and ends. What is not wanted between them is laid out as values too, since Arrow knows no gaps.
    """
    count = len(places)
    base = count * width
    bounds = np.empty(5 * count + 1, np.int32)
    bounds[: 2 * count : 2] = np.arange(count) * width
    bounds[1 : 2 * count : 2] = bounds[: 2 * count : 2] + head_bytes
    np.add(places.reshape(-1), base, out=bounds[2 * count : -1], casting="unsafe")
    bounds[-1] = len(whole)
    pieces = pa.Array.from_buffers(pa.binary(), 5 * count, [None, pa.py_buffer(bounds), pa.py_buffer(whole)])
    _, _, joined = pieces.take(_interleaved(count)).buffers()
    return memoryview(joined).cast("B")[: int((head_bytes + places[:, 2] - places[:, 1]).sum())]


@lru_cache(maxsize=64)
def _every_second(count: int) -> pa.Array:
    return pa.array(np.arange(count, dtype=np.int32) * 2)


@lru_cache(maxsize=64)
def _interleaved(count: int) -> pa.Array:
    """Return the numbers of head 0, tail 0, head 1, ... among the pieces of `_joined`."""
    order = np.empty(2 * count, np.int32)
    order[::2] = np.arange(count) * 2
    order[1::2] = 2 * count + 1 + np.arange(count) * 3
    return pa.array(order)


def _one_by_one(data: Buffer, begins: Sequence[int] | Column, form: FrameForm, said: Mapping[str, Numbers]) -> bytes:
    view = memoryview(data)
    return b"".join(
        [
            _message(decode(cut_frame(view, int(begin))), form, {k: _at(v, row) for k, v in said.items()}).encode()
            for row, begin in enumerate(begins)
        ]
    )


def _at(value: Numbers, row: int) -> int:
    return value if isinstance(value, int) else int(value[row])


def _message(source: Any, form: FrameForm, said: Mapping[str, int]) -> Message:
    """Return a change of the log as the form's message."""
    cls = form._targets[int(source.opcode)].cls
    fields = {name for name, _ in head_fields(cls)}
    gone = not isinstance(source, Mutation)
    taken = {name: value for name in fields if (value := getattr(source, name, None)) is not None}
    value = b"" if form.keys_only else source.value
    if form.datatypes is not None and "datatype" in taken:
        taken["datatype"] = source.datatype & form.datatypes if not form.keys_only else 0
    if form.reversed_flags and not gone and "flags" in fields:
        taken["flags"] = int.from_bytes(source.flags.to_bytes(4, "big"), "little")
    if cls in _PRIVATE:
        private = np.zeros(1, np.dtype(_PRIVATE[cls]))
        for name in private.dtype.names or ():
            private[name] = getattr(source, name, 0)
        taken["engine_private"] = private.tobytes()
    for name in ("magic", "opcode", "key_length", "extras_length", "body", "engine_length"):
        taken.pop(name, None)
    if form.stream_id is not None:
        taken["framing"] = framing_of(form.stream_id)
    return cls(**{**taken, "key": source.key[form.prefix_bytes :], "value": value, **said})
