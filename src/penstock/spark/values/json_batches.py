"""Whole batches of JSON documents, read by pyarrow.json: much faster than one by one, for documents that it can read.

pyarrow.json has its own notion of JSON. So it gets only documents that it reads as penstock.wire.values.json_value
does. Where it refuses a batch, the caller halves the batch, and reads the last few documents one by one.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.spark.values.utf8 import is_utf8
from penstock.wire.values.json_value import MAX_LEVELS

__all__ = ["DOCUMENT", "SMALL_NUMBERS", "find_safe", "read_batch"]

DOCUMENT = "d"
"""The name that a document has in its line."""
MAX_OPENED = MAX_LEVELS
"""The most braces and brackets of a value for pyarrow.json, which crashes on deep nesting."""

_UNSAFE = r"\x00|[:,\[][ \t\r\n]*-?(?:NaN|Inf)"
"""pyarrow.json ends a text at a zero byte, and takes NaN and Inf for numbers. A match in a string only costs time."""
SMALL_NUMBERS = "[eE]-[0-9]{3}"
"""Numbers that pyarrow.json may read as 0 in a double: RE2 finds this short expression fast."""


def find_safe(values: pa.BinaryArray, unsafe: str = "", *, beginnings: str = "{[") -> pa.BooleanArray:
    """Return the values that pyarrow.json may get: if it reads them, it reads them right.

    Args:
        values: documents without nulls.
        unsafe: a regular expression of further documents that it must not get.
        beginnings: first characters of these values.
    """
    begins = (pc.starts_with(values, beginning.encode()) for beginning in beginnings)
    patterns = [_UNSAFE, unsafe] if unsafe else [_UNSAFE]
    matches = (pc.invert(pc.match_substring_regex(values, pattern)) for pattern in patterns)
    safe = reduce(pc.and_, matches, reduce(pc.or_, begins))
    if len(values) and pc.max(pc.binary_length(values)).as_py() > MAX_OPENED:
        opened = pc.add(pc.count_substring(values, b"{"), pc.count_substring(values, b"["))
        safe = pc.and_(safe, pc.less_equal(opened, MAX_OPENED))
    try:
        values.cast(pa.string())  # pyarrow.json does not check that text is UTF-8
    except pa.ArrowInvalid:
        safe = pc.and_(safe, is_utf8(values))
    return safe


def read_batch(
    values: pa.BinaryArray, of: pa.DataType | None = None, *, ignores_others: bool = False
) -> pa.Array | None:
    """Return a row for each value as pyarrow.json reads it; None if it cannot read the values.

    Each value becomes a line `{"d":value}`. A value that is not JSON can produce several rows, but never a part of
    another line's row. The reason is that an object starts after the last brace of the line, which JSON allows at the
    top only. So if there are as many rows as lines, each line has one row.

    Args:
        values: safe values.
        of: the type of a document; None to infer it.
        ignores_others: whether fields that the type does not have are left out.
    """
    lines = pc.binary_join_element_wise(f'{{"{DOCUMENT}":'.encode(), values, b"}\n", b"")
    _, offsets, data = lines.buffers()
    span = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    text = data.slice(int(span[0]), int(span[-1] - span[0]))
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(1, text.size)),
            parse_options=pj.ParseOptions(
                explicit_schema=None if of is None else pa.schema([(DOCUMENT, of)]),
                unexpected_field_behavior="ignore" if ignores_others else "infer",
            ),
        )
        table.validate()  # pyarrow.json reads arrays that start with nulls too short
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(values) or table.column_names != [DOCUMENT]:
        return None
    return table[DOCUMENT].combine_chunks()
