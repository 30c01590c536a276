"""Frames of the log in another form: for a consumer of another dialect, or one with other wishes.

The log holds DCP frames: mutations, and tombstones with their times (DELETION V2, EXPIRATION). A Form says what becomes
of each kind. All heads are gathered and written as columns; key and value, which lie next to each other, are moved by
one Arrow take that puts every new head in front of what belongs to it. Below SMALL frames a loop is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.wire.constants import Dialect, DraftCode, Opcode
from penstock.wire.dcp import Deletion, DeletionV2, Expiration, Mutation, head_fields
from penstock.wire.frame import HEADER_BYTES, cut_frame
from penstock.wire.layout import Message, decode
from penstock.wire.shapes import head_dtype
from penstock.wire.tap import TapDelete, TapMutation
from penstock.wire.upr import UprDeletion, UprExpiration, UprMutation
from penstock.wire.upr_draft import DraftDeletion, DraftExpiration, DraftMutation

__all__ = ["DCP", "FORMS", "NATIVE", "Form", "reframe"]

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

Column = npt.NDArray[Any]
Numbers = int | Column


@dataclass(frozen=True)
class Form:
    """What the change frames of a connection look like.

    keys_only: without values. datatypes: the bits that the consumer understands; None: all, also of values that are
    left out. reversed_flags: item flags in the order of bytes that little-endian TAP servers send them.
    """

    mutation: type[Message]
    deletion: type[Message]
    expiration: type[Message]
    keys_only: bool = False
    datatypes: int | None = None
    reversed_flags: bool = False
    _targets: dict[int, Target] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        targets = {
            int(Opcode.DCP_MUTATION): Target(self.mutation),
            int(Opcode.DCP_DELETION): Target(self.deletion),
            int(Opcode.DCP_EXPIRATION): Target(self.expiration),
        }
        object.__setattr__(self, "_targets", targets)

    @cached_property
    def keeps_mutations(self) -> bool:
        """Do mutations go out as the log has them?"""
        return self.mutation is Mutation and not self.keys_only and self.datatypes is None

    @cached_property
    def is_native(self) -> bool:
        """Does everything go out as the log has it?"""
        return self.keeps_mutations and self.deletion is DeletionV2 and self.expiration is Expiration


class Target:
    """A message to be written in columns: its head, with what stands between extras and key."""

    def __init__(self, cls: type[Message]) -> None:
        private = _PRIVATE.get(cls, [])
        self.cls = cls
        self.extras_length = cls.layouts[max(cls.layouts)].extras.size
        self.private_length = np.dtype(private).itemsize
        self.dtype = np.dtype([*head_dtype(cls).descr, *private])
        code = cls.opcode
        draft = isinstance(code, DraftCode)
        self.constant = {
            "magic": int(cls.magic),
            "opcode": code >> 8 if draft else int(code),
            "extras_length": self.extras_length,
            **({"datatype": code & 0xFF} if draft else {}),
            **({"engine_length": self.private_length, "ttl": 0xFF} if private else {}),
        }


DCP = Form(Mutation, Deletion, Deletion)
"""What a DCP consumer gets that asked for nothing special: deletions of form V1, also of what expired."""

NATIVE = Form(Mutation, DeletionV2, Expiration)

FORMS = {
    Dialect.DCP: DCP,
    Dialect.UPR: Form(UprMutation, UprDeletion, UprExpiration),
    Dialect.UPR_DRAFT: Form(DraftMutation, DraftDeletion, DraftExpiration),
    Dialect.TAP: Form(TapMutation, TapDelete, TapDelete, datatypes=0),
}
"""By dialect, the form of a connection without options."""


def reframe(
    data: bytes | bytearray, begins: Sequence[int] | Column, form: Form, **said: Numbers
) -> bytes | bytearray | memoryview:
    """Return the frames in another form.

    data: whole frames of the log, one behind the other, 2 GiB at most; begins: where each begins. said: fields of all
    frames, or of each, that are not to be taken from the log: `opaque`, `tap_flags`.
    """
    if not len(begins) or form.is_native:
        return data
    if form.keeps_mutations and said.keys() <= {"opaque"} and _mutations_alone(data, begins):
        return data  # with the opaque that the log was read with
    if len(begins) < SMALL:
        return _one_by_one(data, begins, form, said)
    return _in_columns(data, np.asarray(begins, np.int64), form, said)


def _mutations_alone(data: bytes | bytearray, begins: Sequence[int] | Column) -> bool:
    if len(begins) < SMALL:
        return all(data[begin + 1] == _MUTATION for begin in begins)
    return bool((np.frombuffer(data, np.uint8)[np.asarray(begins) + 1] == _MUTATION).all())


def _in_columns(data: bytes | bytearray, begins: Column, form: Form, said: Mapping[str, Numbers]) -> memoryview:
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
    tail_bytes = source["key_length"].astype(np.int64) if form.keys_only else ends - tails_at
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
    heads: Column, target: Target, source: Column, tail_bytes: Column, *, form: Form, said: Mapping[str, Numbers]
) -> None:
    """Write the heads of frames of one kind, every byte of them."""
    gone = target.cls is not form.mutation
    constant: dict[str, Numbers] = {**target.constant, **said}
    constant["body"] = target.extras_length + target.private_length + tail_bytes
    if form.keys_only and form.datatypes is not None:
        constant.setdefault("datatype", 0)
    for name in target.dtype.names or ():
        if name in constant:
            heads[name] = constant[name]
        elif name == "delete_time":
            timed = source["extras_length"] >= Expiration.layouts[3].extras.size
            heads[name] = np.where(timed, source["flags"], 0)
        elif name not in _SOURCE_NAMES or (gone and name in _STORED_ONLY):
            heads[name] = 0
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
def _interleaved(count: int) -> pa.Array:
    """Return the numbers of head 0, tail 0, head 1, ... among the pieces of `_joined`."""
    order = np.empty(2 * count, np.int32)
    order[::2] = np.arange(count) * 2
    order[1::2] = 2 * count + 1 + np.arange(count) * 3
    return pa.array(order)


def _one_by_one(
    data: bytes | bytearray, begins: Sequence[int] | Column, form: Form, said: Mapping[str, Numbers]
) -> bytes:
    view = memoryview(data)
    return b"".join(
        [
            _message(decode(cut_frame(view, int(begin))), form, {k: _at(v, row) for k, v in said.items()}).encode()
            for row, begin in enumerate(begins)
        ]
    )


def _at(value: Numbers, row: int) -> int:
    return value if isinstance(value, int) else int(value[row])


def _message(source: Any, form: Form, said: Mapping[str, int]) -> Message:
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
    return cls(**{**taken, "key": source.key, "value": value, **said})
