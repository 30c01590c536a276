"""Tables that describe the data messages of each dialect to the extension module."""

from __future__ import annotations

from struct import calcsize
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import EXTRAS_LENGTH_AT, KEY_LENGTH_AT
from penstock.wire.columns.data_forms import (
    AUXILIARY,
    COLLECTION_ID,
    ENGINE_LENGTH,
    NARROW,
    NMETA,
    SHAPES,
    WIDE,
    Form,
    Shapes,
)


class NativeTable(NamedTuple):
    """A dialect's data messages, as the functions of _native.c read them.

    Attributes:
        table: the argument `table` of `gather`: places of the numbers of each form.
        number_of: the argument `number_of` of `gather`: code, length of the extras -> number of the form.
        run_conditions: the argument `marks` of `hop`: an offset and 256 booleans for each condition.
        wide, narrow: names of the columns that `gather` fills. Numbers that are only lengths of parts have no column.
            A table for keys that begin with a collection's id has the id as its last wide column.
    """

    table: npt.NDArray[np.int32]
    number_of: npt.NDArray[np.uint8]
    run_conditions: bytes
    wide: tuple[str, ...]
    narrow: tuple[str, ...]


NONZERO = WIDE[0]
"""The column that must not be 0 in any frame whose form has it; the extension refuses such a frame."""

_LOADED = 8
"""Bytes that the extension reads for a number, also for a shorter one."""


def _make_table(shapes: Shapes, *, prefixed: bool = False) -> NativeTable:
    needless = {name for name, present in shapes.present_in.items() if not present.any()} - {NONZERO} | {NMETA}
    wide, narrow = (tuple(name for name in names if name not in needless) for names in (WIDE, (*NARROW, *AUXILIARY)))
    rows = [_make_row(form, (*wide, *narrow)) for form in shapes.forms]
    reach = max(at for form in shapes.forms for at, _ in form.places.values()) + _LOADED
    about = (shapes.code_at, EXTRAS_LENGTH_AT, KEY_LENGTH_AT, reach, prefixed, len(wide), len(narrow))
    table = np.array([*about, *(number for row in rows for number in row)], np.int32)
    marks = b"".join(bytes([at]) + mask.tobytes() for at, mask in shapes.masks)
    return NativeTable(table, shapes.form_numbers, marks, (*wide, COLLECTION_ID) if prefixed else wide, narrow)


def _make_row(form: Form, names: tuple[str, ...]) -> list[int]:
    front, back = (form.places[name][0] if name in form.places else 0 for name in (ENGINE_LENGTH, NMETA))
    row = [form.head_bytes, front, back, form.ends_at_key]
    for name in names:
        at, code = form.places.get(name, (0, "Q"))
        row += [at, 8 * (_LOADED - calcsize(code)), -(name in form.places)]
    return row


TABLES: dict[Dialect, NativeTable] = {dialect: _make_table(shapes) for dialect, shapes in SHAPES.items()}

PREFIXED_TABLE = _make_table(SHAPES[Dialect.DCP], prefixed=True)
"""For DCP, the one dialect that has collections."""
