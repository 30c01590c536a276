"""Forms of data messages by dialect, and the place of each of their numbers.

All of this follows from the declared layouts. Only two facts are stated here: which messages carry changes, and the
event that each of them reports.
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
    list_head_fields,
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

_STREAM_COLUMNS = {
    Dialect.DCP: ("vbuuid", "snapshot_start", "snapshot_end", "snapshot_flags", "history"),
    Dialect.UPR: ("vbuuid", "history"),
    Dialect.UPR_DRAFT: ("vbuuid", "history"),
    Dialect.TAP: ("history",),
}
"""The columns that a dialect's streams have the same for all rows of a vbucket."""

WIDE = ("seqno", "rev_seqno", "cas", "flags", "expiry", "lock_time", "delete_time")
NARROW = ("vbucket", "datatype")
AUXILIARY = ("opaque", "engine_length", "tap_flags", "nmeta", "collection_length")
"""The numbers of a message that are int64 columns (WIDE), int32 columns (NARROW), or no columns (AUXILIARY)."""

COLLECTION_ID = "collection_id"
"""The number that keys begin with on a connection with collections; then all frames of a run have it."""

ENGINE_LENGTH, NMETA = "engine_length", "nmeta"
"""The bytes between extras and key, and the bytes after the value."""

_COLUMN_OF = {"by_seqno": "seqno"}
_STORED_ONLY = ("flags", "expiry", "lock_time")
_NUMBERS = ("key_length", *WIDE, *NARROW, *AUXILIARY)
_LENGTHS = (ENGINE_LENGTH, NMETA, "collection_length")

_DTYPES = {"B": "u1", "H": ">u2", "I": ">u4", "Q": ">u8"}


def make_dtype(fields: Iterable[tuple[str, str]]) -> np.dtype[np.void]:
    """Return a structured type of the given fields, each a name and a struct code."""
    return np.dtype([(name, _DTYPES[code]) for name, code in fields])


def make_head_dtype(cls: type[Message]) -> np.dtype[np.void]:
    """Return the header and extras of a message as a structured type."""
    return make_dtype(list_head_fields(cls))


def reverse_u32(numbers: Any) -> Any:
    """Return u32s with their bytes in the other order: one number, or a column."""
    if isinstance(numbers, np.ndarray):
        return numbers.byteswap()
    return int.from_bytes(numbers.to_bytes(4, "big"), "little")


@dataclass(frozen=True)
class Form:
    """One form of a data message: where each number of its frames lies.

    Attributes:
        cls: the class of the message.
        event: the event that the message reports.
        code: the byte that distinguishes the form from others, together with the length of its extras.
        head_bytes: bytes of header and extras.
        places: name of a number -> its offset in the frame, and its struct code.
        ends_at_key: nothing may follow the key.
        unpack: reads all numbers of the header, the extras, and the known part of the engine-private data.
        pick: takes the numbers of `unpack`, a None and a 0; returns the key's length, WIDE, NARROW and AUXILIARY.
            A number that the form does not have is None; a length that it does not have is 0.
    """

    cls: type[Message]
    event: Event
    code: int
    head_bytes: int
    places: dict[str, tuple[int, str]]
    ends_at_key: bool
    unpack: Callable[[Buffer, int], tuple[int, ...]]
    pick: Callable[[tuple[int | None, ...]], tuple[Any, ...]]

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The numbers as a structured type of SLACK bytes."""
        ats, codes = zip(*self.places.values(), strict=True)
        formats = [_DTYPES[code] for code in codes]
        return np.dtype({"names": [*self.places], "formats": formats, "offsets": ats, "itemsize": SLACK})


def _make_form(cls: type[Message], event: Event) -> Form:
    (layout,) = cls.layouts.values()
    draft = isinstance(cls.opcode, DraftCode)  # its datatype is the kind
    # The engine-private data of TAP is the engine's own; ep-engine's begins with the rev_seqno.
    fields = list_head_fields(cls) + [("rev_seqno", "Q")] * layout.private
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
        ends_at_key=dict(layout.parts)["value"] is Part.ABSENT,
        unpack=read.unpack_from,
        pick=itemgetter(*picks),
    )


NO_FORM = 0xFF
"""The form number of frames that have none of the dialect's forms."""


@dataclass(frozen=True)
class Shapes:
    """The forms of one dialect's data messages.

    Attributes:
        dialect: the dialect.
        forms: its forms; the number of a form is its index here.
        run_conditions: offsets in a frame, and the byte values there with which the frame may stand in a run.
        by_code: `code << 8 | length of the extras` -> form.
        code_at: offset of the code in a frame.
        stream_columns: those of StreamContext.NAMES that the dialect's streams have.
    """

    dialect: Dialect
    forms: tuple[Form, ...]
    run_conditions: tuple[tuple[int, frozenset[int]], ...]
    by_code: dict[int, Form]
    code_at: int
    stream_columns: tuple[str, ...]

    def can_be_in_run(self, buffer: Buffer, offset: int) -> bool:
        """Return whether the frame at `offset` may stand in a run."""
        return all(buffer[offset + at] in values for at, values in self.run_conditions)

    def find_run_members(self, octets: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each frame whether it may stand in a run."""
        return reduce(np.logical_and, (mask[octets[offsets + at]] for at, mask in self.masks))

    @cached_property
    def masks(self) -> tuple[tuple[int, npt.NDArray[np.bool_]], ...]:
        """The run conditions, each as a table over the values of a byte."""
        return tuple((at, np.isin(np.arange(256), list(values))) for at, values in self.run_conditions)

    @cached_property
    def form_numbers(self) -> npt.NDArray[np.uint8]:
        """A table of 256 x 256: code, length of the extras -> number of the form, or NO_FORM."""
        numbers = np.full((256, 256), NO_FORM, np.uint8)
        for number, form in enumerate(self.forms):
            numbers[form.code, form.head_bytes - HEADER_BYTES] = number
        return numbers

    @cached_property
    def present_in(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Name -> for each form, whether it has the number, or a value."""
        names = (*WIDE, *NARROW, *AUXILIARY)
        present = {name: np.array([name in form.places for form in self.forms]) for name in names}
        present[COLLECTION_ID] = np.ones(len(self.forms), np.bool_)
        return present | {"value": np.array([form.event is Event.MUTATION for form in self.forms])}

    @cached_property
    def ends_at_key(self) -> npt.NDArray[np.bool_]:
        """For each form number, NO_FORM included, whether nothing may follow the key."""
        bare = np.zeros(NO_FORM + 1, np.bool_)
        bare[: len(self.forms)] = [form.ends_at_key for form in self.forms]
        return bare


def _make_shapes(dialect: Dialect) -> Shapes:
    forms = tuple(_make_form(cls, event) for cls, event in _MESSAGES[dialect].items())
    codes = frozenset(form.code for form in forms)
    magics = frozenset(int(form.cls.magic) for form in forms)
    marks = [(MAGIC_AT, magics), (OPCODE_AT, codes)]
    if dialect is Dialect.UPR_DRAFT:  # all its data messages have one opcode; the kind is in the place of the datatype
        marks = [
            (MAGIC_AT, magics),
            (OPCODE_AT, frozenset(form.cls.opcode >> 8 for form in forms)),
            (DATATYPE_AT, codes),
        ]
    return Shapes(
        dialect=dialect,
        forms=forms,
        run_conditions=tuple(marks),
        by_code={form.code << 8 | form.head_bytes - HEADER_BYTES: form for form in forms},
        code_at=marks[-1][0],
        stream_columns=_STREAM_COLUMNS[dialect],
    )


SHAPES: dict[Dialect, Shapes] = {dialect: _make_shapes(dialect) for dialect in Dialect}

SLACK = max(
    at + calcsize(code) for shapes in SHAPES.values() for form in shapes.forms for at, code in form.places.values()
)
"""Bytes that must be readable after the last frame of a run: every frame is gathered as long as the longest head."""
