"""JSON documents one by one in Python: the columns of a document parser, the rest, and the misfits.

The extension module does the same much faster. This reader serves where the module was not built, and is the
module's rules in short.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.spark.values.column_tree import ColumnNode, NodeKind, Reason
from penstock.spark.values.json_decimals import fit_decimal, split_number
from penstock.spark.values.json_times import (
    InexactTime,
    fit_date,
    fit_unix_date,
    fit_unix_time,
    is_date_object,
    read_timestamp,
)
from penstock.wire.values.json_value import (
    NUMBER,
    Member,
    call_with_levels,
    is_text,
    read_elements,
    read_members,
    read_object,
    write_number,
)

MOST_DIGITS = {pa.float32(): 9, pa.float64(): 17}
"""The most digits of the shortest text of a number."""
LEADING_DIGITS = range(-330, 311)
"""Places of the first digit of numbers that a double may hold."""

DocumentRow = tuple[dict[str, Any] | None, str | None]
"""The values of a document by column, None if it is no object; and the text of the others, None if all fit."""


class DocumentRowReader:
    """Reads documents one after the other.

    Attributes:
        found: the misfits of the last document: the node, the reason, and the name of an unknown member.
    """

    def __init__(self, root: ColumnNode) -> None:
        self._root = root
        self.found: list[tuple[ColumnNode, Reason, str]] = []

    def read_row(self, value: bytes) -> DocumentRow:
        """Return the values of a document."""
        members = read_members(value)
        if members is not None:
            return call_with_levels(self._read_document, members)
        self.found = [(self._root, Reason.NO_OBJECT, "")]
        return None, None

    def _read_document(self, members: Sequence[Member]) -> DocumentRow:
        self.found = []
        into: dict[str, Any] = {}
        return into, self._read_fields(self._root, members, into)

    def _report(self, node: ColumnNode, reason: Reason, name: str = "") -> None:
        self.found.append((node, reason, name))

    def _read_fields(self, node: ColumnNode, members: Sequence[Member], into: dict[str, Any]) -> str | None:
        """Read the fields of an object.

        Args:
            node: a group or a struct.
            members: the fields.
            into: the values of columns, to which the values that fit are added.

        Returns:
            The text of the others; None if all fit.
        """
        last = {member.name: at for at, member in enumerate(members)}
        left: list[str] = []
        for at, (name, value, written_name, written) in enumerate(members):
            if value is None:
                continue
            child = node.members.get(name)
            rest: str | None = written
            if child is None:
                self._report(node, Reason.UNKNOWN, name)
            elif last[name] != at:
                self._report(child, Reason.REPEATED)
            elif child.kind is NodeKind.GROUP and isinstance(value, dict):
                rest = self._read_fields(child, read_object(written), into)
            else:
                held, rest = self._read_value(child, value, written)
                if child.kind is not NodeKind.GROUP:
                    into[child.name] = held
            left += [] if rest is None else [f"{written_name}:{rest}"]
        return f"{{{','.join(left)}}}" if left else None

    def _read_entries(self, element: ColumnNode, members: Sequence[Member]) -> tuple[list[tuple[str, Any]], str | None]:
        """Return the entries of a map, with null for a value that does not fit; and the text of the others."""
        last = {member.name: at for at, member in enumerate(members)}
        entries: list[tuple[str, Any]] = []
        left: list[str] = []
        for at, (name, value, written_name, written) in enumerate(members):
            rest: str | None = None
            if not is_text(name) or last[name] != at:
                if value is not None:
                    self._report(element, Reason.REPEATED if is_text(name) else Reason.INEXACT)
                    rest = written
            else:
                held, rest = self._read_value(element, value, written)
                entries.append((name, held))
            left += [] if rest is None else [f"{written_name}:{rest}"]
        return entries, f"{{{','.join(left)}}}" if left else None

    def _read_value(self, node: ColumnNode, value: Any, written: str) -> tuple[Any, str | None]:
        """Return the part of a value that fits, and the text of the rest; None if the whole value fits."""
        if value is None:
            return None, None
        if node.kind is NodeKind.STRUCT and isinstance(value, dict):
            into: dict[str, Any] = {}
            rest = self._read_fields(node, read_object(written), into)
            return into, rest
        if node.kind is NodeKind.MAP and isinstance(value, dict) and node.element:
            return self._read_entries(node.element, read_object(written))
        if node.kind is NodeKind.LIST and isinstance(value, list) and node.element:
            parts = [self._read_value(node.element, *element) for element in read_elements(written)]
            fits = all(left is None for _, left in parts)
            return [part for part, _ in parts], None if fits else written
        held = _fit_scalar(node, value, written)
        if isinstance(held, Reason):
            self._report(node, held)
            return None, written
        return held, None


def _fit_scalar(node: ColumnNode, value: Any, written: str) -> Any:
    """Return the value that a column holds, or the reason why it cannot hold it."""
    if node.kind is NodeKind.JSON_TEXT:
        return written
    if node.kind is NodeKind.BOOLEAN or isinstance(value, bool):
        return value if isinstance(value, bool) and node.kind is NodeKind.BOOLEAN else Reason.OTHER_TYPE
    read = _READERS.get(node.kind)
    return Reason.OTHER_TYPE if read is None else read(node, value)


def _fit_integer(node: ColumnNode, value: Any) -> int | Reason:
    if not isinstance(value, int | float):
        return Reason.OTHER_TYPE
    limit = 1 << (node.arrow_type.bit_width - 1)
    return value if isinstance(value, int) and -limit <= value < limit else Reason.INEXACT


def _fit_float(node: ColumnNode, value: Any) -> float | Reason:
    if not isinstance(value, int | float):
        return Reason.OTHER_TYPE
    number = split_number(write_number(value))
    digits = len(str(number.digits))
    if digits + number.exponent not in LEADING_DIGITS:
        return Reason.INEXACT
    with np.errstate(over="ignore"):
        rounded = node.arrow_type.to_pandas_dtype()(float(value))
    if not np.isfinite(rounded):
        return Reason.INEXACT
    if number.is_plain:
        return float(rounded) if int(rounded) == value else Reason.INEXACT
    is_shortest = digits <= MOST_DIGITS[node.arrow_type] and split_number(_write_shortest(rounded))[1:3] == number[1:3]
    return float(rounded) if is_shortest else Reason.INEXACT


def _write_shortest(value: np.floating[Any]) -> str:
    return np.format_float_scientific(value, unique=True, trim="0")


def _fit_decimal(node: ColumnNode, value: Any) -> Decimal | Reason:
    text = _find_number(value)
    if isinstance(text, Reason):
        return text
    held = fit_decimal(text, node.arrow_type)
    return Reason.INEXACT if held is None else held


def _find_number(value: Any) -> str | Reason:
    """Return the text of a number that a value is, or that a text is."""
    if isinstance(value, str):
        return value if NUMBER.fullmatch(value) else Reason.OTHER_TEXT
    return write_number(value) if isinstance(value, int | float) else Reason.OTHER_TYPE


def _fit_string(_node: ColumnNode, value: Any) -> str | Reason:
    if not isinstance(value, str):
        return Reason.OTHER_TYPE
    return value if is_text(value) else Reason.INEXACT


def _fit_binary(_node: ColumnNode, value: Any) -> bytes | Reason:
    if not isinstance(value, str):
        return Reason.OTHER_TYPE
    try:
        held = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return Reason.OTHER_TEXT
    return held if base64.b64encode(held).decode() == value else Reason.OTHER_TEXT


def _fit_time(node: ColumnNode, value: Any) -> datetime | date | Reason:
    is_date = node.kind is NodeKind.DATE
    if node.unit_digits >= 0:
        text = _find_number(value)
        if not isinstance(text, Reason):
            fit = fit_unix_date if is_date else fit_unix_time
            return fit(text, node.unit_digits) or Reason.INEXACT
    if not isinstance(value, str) and (is_date or not is_date_object(value)):
        return Reason.OTHER_TYPE
    try:
        return (fit_date(value) if is_date else read_timestamp(value)) or Reason.OTHER_TEXT
    except InexactTime:
        return Reason.INEXACT


_READERS: dict[NodeKind, Callable[[ColumnNode, Any], Any]] = {
    NodeKind.INTEGER: _fit_integer,
    NodeKind.FLOAT: _fit_float,
    NodeKind.DECIMAL: _fit_decimal,
    NodeKind.STRING: _fit_string,
    NodeKind.BINARY: _fit_binary,
    NodeKind.TIMESTAMP: _fit_time,
    NodeKind.DATE: _fit_time,
}
