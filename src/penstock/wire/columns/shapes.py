"""What may stand in a run, by dialect: the forms of data messages, and where each of their numbers lies.

All of this follows from the declared layouts. What is stated here is only which messages they are, and what happened
where one of them arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import itemgetter
from struct import Struct, calcsize
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import DATATYPE_AT, HEADER_BYTES, MAGIC_AT, OPCODE_AT, Buffer
from penstock.wire.codec.layout import Message, Part
from penstock.wire.codec.opcodes import DraftCode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import (
    Deletion,
    DeletionV2,
    Expiration,
    Mutation,
    OldExpiration,
    PrototypeMutation,
    head_fields,
)
from penstock.wire.messages.tap import TapDelete, TapMutation
from penstock.wire.messages.upr import UprDeletion, UprExpiration, UprMutation
from penstock.wire.messages.upr_draft import DraftDeletion, DraftExpiration, DraftMutation

_MESSAGES: dict[Dialect, dict[type[Message], Event]] = {
    Dialect.DCP: {
        Mutation: Event.MUTATION,
        PrototypeMutation: Event.MUTATION,
        Deletion: Event.DELETION,
        DeletionV2: Event.DELETION,
        Expiration: Event.EXPIRATION,
        OldExpiration: Event.EXPIRATION,
    },
    Dialect.UPR: {
        UprMutation: Event.MUTATION,
        UprDeletion: Event.DELETION,
        UprExpiration: Event.EXPIRATION,
    },
    Dialect.UPR_DRAFT: {
        DraftMutation: Event.MUTATION,
        DraftDeletion: Event.DELETION,
        DraftExpiration: Event.EXPIRATION,
    },
    Dialect.TAP: {TapMutation: Event.MUTATION, TapDelete: Event.DELETION},
}

_ABOUT_STREAMS = {
    Dialect.DCP: ("vbuuid", "snapshot_start", "snapshot_end", "snapshot_flags", "history"),
    Dialect.UPR: ("vbuuid", "history"),
    Dialect.UPR_DRAFT: ("vbuuid", "history"),
    Dialect.TAP: ("history",),
}
"""What a dialect's streams say of all their rows."""

WIDE = ("seqno", "rev_seqno", "cas", "flags", "expiry", "lock_time", "delete_time")
NARROW = ("vbucket", "datatype")
BESIDE = ("opaque", "engine_length", "tap_flags", "nmeta", "collection_length")
"""The numbers of a message that are int64 columns, int32 columns, and no columns."""

COLLECTION_ID = "collection_id"
"""The number that keys begin with on a connection with collections; whatever the form, all frames of a run say it."""

ENGINE_LENGTH, NMETA = "engine_length", "nmeta"
"""The bytes between extras and key, and the bytes behind the value."""

_COLUMN_OF = {"by_seqno": "seqno"}
_STORED_ONLY = ("flags", "expiry", "lock_time")
_NUMBERS = ("key_length", *WIDE, *NARROW, *BESIDE)
_LENGTHS = (ENGINE_LENGTH, NMETA, "collection_length")

_DTYPES = {"B": "u1", "H": ">u2", "I": ">u4", "Q": ">u8"}


def dtype_of(fields: Iterable[tuple[str, str]]) -> np.dtype[np.void]:
    """Return fields, each a name and a struct code, as a structured type."""
    return np.dtype([(name, _DTYPES[code]) for name, code in fields])


def head_dtype(cls: type[Message]) -> np.dtype[np.void]:
    """Return the header and extras of a message as a structured type."""
    return dtype_of(head_fields(cls))


def reversed_u32(numbers: Any) -> Any:
    """Return u32s with their bytes in the other order: one number, or a column."""
    if isinstance(numbers, np.ndarray):
        return numbers.byteswap()
    return int.from_bytes(numbers.to_bytes(4, "big"), "little")


@dataclass(frozen=True)
class Form:
    """One form of a data message.

    code: what tells it from others, together with the length of its extras. head_bytes: header and extras. places: by
    name, where a number lies from the frame's first byte, and its struct code. bare: nothing may follow the key.
    unpack: reads all numbers of the header, the extras and what is known of engine-private data. pick: from these, a
    None and a 0, the length of the key, WIDE, NARROW and BESIDE; a number that the form does not say is None, a length
    is 0.
    """

    cls: type[Message]
    event: Event
    code: int
    head_bytes: int
    places: dict[str, tuple[int, str]]
    bare: bool
    unpack: Callable[[Buffer, int], tuple[int, ...]]
    pick: Callable[[tuple[int | None, ...]], tuple[Any, ...]]

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The numbers as a structured type of SLACK bytes."""
        ats, codes = zip(*self.places.values(), strict=True)
        formats = [_DTYPES[code] for code in codes]
        return np.dtype({"names": [*self.places], "formats": formats, "offsets": ats, "itemsize": SLACK})


def _form(cls: type[Message], event: Event) -> Form:
    (layout,) = cls.layouts.values()
    draft = isinstance(cls.opcode, DraftCode)  # its datatype is the kind
    # The engine-private data of TAP is the engine's own; ep-engine's begins with the rev_seqno.
    fields = head_fields(cls) + [("rev_seqno", "Q")] * layout.private
    read = Struct(">" + "".join(code for _, code in fields))
    names = [_COLUMN_OF.get(name, name) for name, _ in fields]
    unsaid = (("datatype",) if draft else ()) + (() if event is Event.MUTATION else _STORED_ONLY)
    places, at = {}, 0
    for name, (_, code) in zip(names, fields, strict=True):
        if name not in unsaid:
            places[name] = (at, code)
        at += calcsize(">" + code)
    picks = [names.index(name) if name in places else len(names) + (name in _LENGTHS) for name in _NUMBERS]
    return Form(
        cls=cls,
        event=event,
        code=cls.opcode & 0xFF,
        head_bytes=HEADER_BYTES + layout.extras.size,
        places=places,
        bare=dict(layout.parts)["value"] is Part.ABSENT,
        unpack=read.unpack_from,
        pick=itemgetter(*picks),
    )


NO_FORM = 0xFF


@dataclass(frozen=True)
class Shapes:
    """The forms of one dialect.

    marks: which bytes say that a frame may stand in a run: where, counted from its first, and with which values.
    by_code: the forms by `code << 8 | length of the extras`; code_at: where the code lies. about_streams: those of
    StreamContext.NAMES that the dialect's streams can say.
    """

    dialect: Dialect
    forms: tuple[Form, ...]
    marks: tuple[tuple[int, frozenset[int]], ...]
    by_code: dict[int, Form]
    code_at: int
    about_streams: tuple[str, ...]

    def may_run(self, buffer: Buffer, offset: int) -> bool:
        """Say whether the frame at `offset` may stand in a run."""
        return all(buffer[offset + at] in values for at, values in self.marks)

    def may_run_each(self, octets: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Do what may_run does for many frames."""
        return reduce(np.logical_and, (mask[octets[offsets + at]] for at, mask in self.masks))

    @cached_property
    def masks(self) -> tuple[tuple[int, npt.NDArray[np.bool_]], ...]:
        """The marks, with a truth for every value of a byte."""
        return tuple((at, np.isin(np.arange(256), list(values))) for at, values in self.marks)

    @cached_property
    def number_of(self) -> npt.NDArray[np.uint8]:
        """By code and length of the extras, which of the forms it is, NO_FORM where it is none."""
        numbers = np.full((256, 256), NO_FORM, np.uint8)
        for number, form in enumerate(self.forms):
            numbers[form.code, form.head_bytes - HEADER_BYTES] = number
        return numbers

    @cached_property
    def said(self) -> dict[str, npt.NDArray[np.bool_]]:
        """By name: which of the forms say a number, or have a value."""
        names = (*WIDE, *NARROW, *BESIDE)
        said = {name: np.array([name in form.places for form in self.forms]) for name in names}
        said[COLLECTION_ID] = np.ones(len(self.forms), np.bool_)
        return said | {"value": np.array([form.event is Event.MUTATION for form in self.forms])}

    @cached_property
    def bare(self) -> npt.NDArray[np.bool_]:
        """By number of a form, NO_FORM included: may nothing follow its key?"""
        bare = np.zeros(NO_FORM + 1, np.bool_)
        bare[: len(self.forms)] = [form.bare for form in self.forms]
        return bare


def _shapes(dialect: Dialect) -> Shapes:
    forms = tuple(_form(cls, event) for cls, event in _MESSAGES[dialect].items())
    codes = frozenset(form.code for form in forms)
    magics = frozenset(int(form.cls.magic) for form in forms)
    marks = [(MAGIC_AT, magics), (OPCODE_AT, codes)]
    if dialect is Dialect.UPR_DRAFT:
        marks = [
            (MAGIC_AT, magics),
            (OPCODE_AT, frozenset(form.cls.opcode >> 8 for form in forms)),
            (DATATYPE_AT, codes),
        ]
    return Shapes(
        dialect=dialect,
        forms=forms,
        marks=tuple(marks),
        by_code={form.code << 8 | form.head_bytes - HEADER_BYTES: form for form in forms},
        code_at=marks[-1][0],
        about_streams=_ABOUT_STREAMS[dialect],
    )


SHAPES: dict[Dialect, Shapes] = {dialect: _shapes(dialect) for dialect in Dialect}

SLACK = max(
    at + calcsize(code) for shapes in SHAPES.values() for form in shapes.forms for at, code in form.places.values()
)
"""Bytes that must be readable behind the last frame of a run: every frame is gathered as long as the longest head."""
