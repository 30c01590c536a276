"""Tables that describe the data messages of each dialect to the extension module."""

from __future__ import annotations

from struct import calcsize
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import EXTRAS_LENGTH_AT, KEY_LENGTH_AT
from penstock.wire.columns.shapes import BESIDE, COLLECTION_ID, ENGINE_LENGTH, NARROW, NMETA, SHAPES, WIDE, Form, Shapes

__all__ = ["NONZERO", "PREFIXED_TABLE", "TABLES", "Table"]


class Table(NamedTuple):
    """What the extension is told of a dialect: see _native.c, whose `gather` takes table and number_of, `hop` marks.

    wide, narrow: the names of the columns that are filled; what only says how long a part is stands in none. A table
    for keys that begin with a collection's id has that as its last wide column.
    """

    table: npt.NDArray[np.int32]
    number_of: npt.NDArray[np.uint8]
    marks: bytes
    wide: tuple[str, ...]
    narrow: tuple[str, ...]


NONZERO = WIDE[0]
"""The column that the extension lets no frame have as 0, if the form says it."""

_LOADED = 8
"""Bytes that are read for a number, whatever its own are."""


def _table(shapes: Shapes, *, prefixed: bool = False) -> Table:
    needless = {name for name, said in shapes.said.items() if not said.any()} - {NONZERO} | {NMETA}
    wide, narrow = (tuple(name for name in names if name not in needless) for names in (WIDE, (*NARROW, *BESIDE)))
    rows = [_row(form, (*wide, *narrow)) for form in shapes.forms]
    reach = max(at for form in shapes.forms for at, _ in form.places.values()) + _LOADED
    about = (shapes.code_at, EXTRAS_LENGTH_AT, KEY_LENGTH_AT, reach, prefixed, len(wide), len(narrow))
    table = np.array([*about, *(number for row in rows for number in row)], np.int32)
    marks = b"".join(bytes([at]) + mask.tobytes() for at, mask in shapes.masks)
    return Table(table, shapes.number_of, marks, (*wide, COLLECTION_ID) if prefixed else wide, narrow)


def _row(form: Form, names: tuple[str, ...]) -> list[int]:
    front, back = (form.places[name][0] if name in form.places else 0 for name in (ENGINE_LENGTH, NMETA))
    row = [form.head_bytes, front, back, form.bare]
    for name in names:
        at, code = form.places.get(name, (0, "Q"))
        row += [at, 8 * (_LOADED - calcsize(code)), -(name in form.places)]
    return row


TABLES: dict[Dialect, Table] = {dialect: _table(shapes) for dialect, shapes in SHAPES.items()}

PREFIXED_TABLE = _table(SHAPES[Dialect.DCP], prefixed=True)
"""For DCP, the one dialect that has collections."""
