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
    padded = np.empty(len(data) + _SOURCE.itemsize, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    source = np.ndarray((len(data),), f"V{_SOURCE.itemsize}", padded, strides=(1,))[begins].view(_SOURCE)
    ends = np.append(begins[1:], len(data))
    tails_at = begins + (HEADER_BYTES + source["extras_length"].astype(np.int64))
    keys = source["key_length"].astype(np.int64)
    tail_bytes = keys if form.keys_only else ends - tails_at
    width = max(target.dtype.itemsize for target in form._targets.values())
    heads = np.zeros((count, width), np.uint8)
    head_bytes = np.empty(count, np.int64)
    for opcode, target in form._targets.items():
        rows = np.flatnonzero(source["opcode"] == opcode)
        if not len(rows):
            continue
        chosen = slice(None) if len(rows) == count else rows
        written = _heads(target, source[chosen], tail_bytes[chosen], form, {k: _of(v, chosen) for k, v in said.items()})
        heads[chosen, : target.dtype.itemsize] = written.view(np.uint8).reshape(len(rows), -1)
        head_bytes[chosen] = target.dtype.itemsize
    places = np.stack((begins, tails_at, tails_at + tail_bytes))
    return _joined(heads, head_bytes, padded[: len(data)], places)


def _of(value: Numbers, chosen: slice | Column) -> Numbers:
    return value if isinstance(value, int) else value[chosen]


def _heads(target: Target, source: Column, tail_bytes: Column, form: Form, said: Mapping[str, Numbers]) -> Column:
    """Return the heads of frames of one kind."""
    heads = np.zeros(len(source), target.dtype)
    names = set(target.dtype.names or ())
    gone = target.cls is not form.mutation
    for name in names & set(_SOURCE.names or ()):
        # What a tombstone has in these places is its delete time and key.
        if not (gone and name in ("flags", "expiry", "lock_time", "nmeta", "nru")):
            heads[name] = source[name]
    if gone and "delete_time" in names:
        heads["delete_time"] = np.where(
            source["extras_length"] >= Expiration.layouts[3].extras.size, source["flags"], 0
        )
    if "datatype" in names and form.datatypes is not None:
        heads["datatype"] &= 0 if form.keys_only else form.datatypes
    for name, number in target.constant.items():
        heads[name] = number
    heads["body"] = target.extras_length + target.private_length + tail_bytes
    if "flags" in names and form.reversed_flags:
        heads["flags"] = heads["flags"].byteswap()
    for name, numbers in said.items():
        heads[name] = numbers
    return heads


def _joined(heads: Column, head_bytes: Column, data: Column, places: Column) -> memoryview:
    """Return each head with its tail behind it. places: where each frame begins, its tail begins, and its tail ends.

    All heads and then all frames are laid out as the values of one Arrow array, what is not wanted between them
    included, since Arrow knows no gaps.
    """
    count, width = heads.shape
    base = count * width
    bounds = np.empty(5 * count + 1, np.int32)
    bounds[: 2 * count : 2] = np.arange(count) * width
    bounds[1 : 2 * count : 2] = bounds[: 2 * count : 2] + head_bytes
    bounds[2 * count : -1] = (base + places).T.reshape(-1)
    bounds[-1] = base + len(data)
    whole = pa.py_buffer(np.concatenate((heads.reshape(-1), data)))
    pieces = pa.Array.from_buffers(pa.binary(), 5 * count, [None, pa.py_buffer(bounds), whole])
    _, _, joined = pieces.take(_interleaved(count)).buffers()
    return memoryview(joined).cast("B")[: int((head_bytes + places[2] - places[1]).sum())]


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
