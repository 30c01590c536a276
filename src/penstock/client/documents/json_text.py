"""Columns as JSON text, like Spark's `to_json`: fields of structs that are null are left out.

Every number is written with its own digits, so that it is read as the same number. NaN and infinities, which JSON does
not have, are the strings "NaN", "Infinity" and "-Infinity". Times are text of ISO 8601, in UTC if they have a zone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError

_ESCAPED = r'["\\\x00-\x1f]'


def is_nested(of: pa.DataType) -> bool:
    """Return whether values of this type are JSON objects or arrays."""
    return bool(pa.types.is_struct(of) or pa.types.is_map(of) or _is_list(of))


def _is_list(of: pa.DataType) -> bool:
    return bool(pa.types.is_list(of) or pa.types.is_large_list(of))


def check_json_type(of: pa.DataType, path: str) -> None:
    """Check that values of a type can be written as JSON.

    Args:
        of: the type.
        path: the column, and the field in it, for the error.

    Raises:
        UsageError: JSON has no such values.
    """
    if pa.types.is_struct(of):
        for field in of:
            check_json_type(field.type, f"{path}.{field.name}")
    elif pa.types.is_map(of):
        if is_nested(of.key_type) or pa.types.is_binary(of.key_type):
            raise UsageError(f"column {path!r} has keys of type {of.key_type}, expected strings, numbers or times")
        check_json_type(of.key_type, f"{path}.key")
        check_json_type(of.item_type, f"{path}.value")
    elif _is_list(of):
        check_json_type(of.value_type, f"{path}[]")
    else:
        _find_encoder(of, path)


def encode_json(column: pa.Array) -> pa.Array:
    """Return each value as JSON, in a binary column; null stays null. Binary values are JSON already.

    Raises:
        UsageError: JSON has no values of this type.
    """
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.binary())
    return _encode(column).cast(pa.binary())


def _encode(column: pa.Array) -> pa.StringArray:
    of = column.type
    if pa.types.is_struct(of):
        return _encode_struct(column)
    if pa.types.is_map(of):
        return _encode_map(column)
    if _is_list(of):
        values = _encode(_select_elements(column, column.values)).fill_null("null")
        return pc.binary_join_element_wise("[", _join_elements(column, values), "]", "")
    return _find_encoder(of, "value")(column)


def _encode_struct(column: pa.StructArray) -> pa.StringArray:
    names = [json.dumps(field.name, ensure_ascii=False) for field in column.type]
    fields = zip(names, column.flatten(), strict=True)
    members = [pc.binary_join_element_wise(name, _encode(field), ":") for name, field in fields]
    # A first member that is never null keeps the join of a row without members from being null.
    inside = pc.binary_join_element_wise(pa.repeat("", len(column)), *members, ",", null_handling="skip")
    objects = pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(inside, 1), "}", "")
    return pc.if_else(column.is_valid(), objects, None) if column.null_count else objects


def _encode_map(column: pa.MapArray) -> pa.StringArray:
    keys, values = _select_elements(column, column.keys), _select_elements(column, column.items)
    names = _encode(keys)
    if not _is_string(keys.type):
        names = pc.binary_join_element_wise('"', pc.utf8_trim(names, '"'), '"', "")
    members = pc.binary_join_element_wise(names, _encode(values).fill_null("null"), ":")
    return pc.binary_join_element_wise("{", _join_elements(column, members), "}", "")


def _select_elements(column: pa.ListArray | pa.MapArray, elements: pa.Array) -> pa.Array:
    """Return the elements of the lists of a column, which may be a part of a longer column."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return elements.slice(first, last - first)


def _join_elements(column: pa.ListArray | pa.MapArray, texts: pa.StringArray) -> pa.StringArray:
    """Return the texts of the elements of each list with commas between them, null for a null."""
    offsets = pc.subtract(column.offsets, column.offsets[0])
    kind = pa.LargeListArray if pa.types.is_large_list(column.type) else pa.ListArray
    lists = kind.from_arrays(offsets, texts, mask=column.is_null() if column.null_count else None)
    return pc.binary_join(lists, ",")


# Values that are neither objects nor arrays


def _encode_plain(column: pa.Array) -> pa.StringArray:
    return column.cast(pa.string())


def _encode_float(column: pa.FloatingPointArray) -> pa.StringArray:
    """Return the shortest digits that are read as the same number of this type."""
    texts = column.cast(pa.string())
    whole = pc.match_substring_regex(texts, "^-?[0-9]+$")
    texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    if pc.all(pc.is_finite(column)).as_py() is False:
        for word, text in (("nan", '"NaN"'), ("-inf", '"-Infinity"'), ("inf", '"Infinity"')):
            texts = pc.if_else(pc.equal(texts, word), text, texts)
    return texts


def _is_string(of: pa.DataType) -> bool:
    return bool(pa.types.is_string(of) or pa.types.is_large_string(of))


def _encode_string(column: pa.StringArray) -> pa.StringArray:
    texts = pc.binary_join_element_wise('"', column.cast(pa.string()), '"', "")
    odd = pc.match_substring_regex(column, _ESCAPED).fill_null(False)
    if not odd.true_count:
        return texts
    escaped = [json.dumps(text, ensure_ascii=False) for text in column.filter(odd).to_pylist()]
    return pc.replace_with_mask(texts, odd, pa.array(escaped, pa.string()))


def _encode_bytes(column: pa.BinaryArray) -> pa.StringArray:
    texts = [None if each is None else f'"{base64.b64encode(each).decode()}"' for each in column.to_pylist()]
    return pa.array(texts, pa.string())


def _encode_time(column: pa.Array) -> pa.StringArray:
    """Return dates and timestamps of any year. Python and Arrow know no year above 9999, or above 32767."""
    of = column.type
    unit, width = ("D", pa.int32()) if pa.types.is_date32(of) else (of.unit, pa.int64())
    numbers = column.cast(width).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    texts = pa.array(np.datetime_as_string(numbers.view(f"M8[{unit}]")).astype(object), pa.string())
    texts = pc.replace_substring_regex(texts, r"\.0+$", "")
    texts = pc.replace_substring_regex(texts, r"^([0-9]{5,})", r"+\1")
    texts = pc.replace_substring_regex(texts, r"^-([0-9]{3})-", r"-0\1-")
    zone = "+00:00" if unit != "D" and of.tz is not None else ""
    texts = pc.binary_join_element_wise('"', texts, f'{zone}"', "")
    return pc.if_else(column.is_valid(), texts, None)


def _encode_clock(column: pa.Time64Array) -> pa.StringArray:
    texts = pc.replace_substring_regex(column.cast(pa.string()), r"\.0+$|(\.[0-9]*[1-9])0+$", r"\1")
    return pc.binary_join_element_wise('"', texts, '"', "")


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.StringArray]], ...] = (
    (_is_string, _encode_string),
    (pa.types.is_integer, _encode_plain),
    (pa.types.is_boolean, _encode_plain),
    (pa.types.is_null, _encode_plain),
    (pa.types.is_decimal, _encode_plain),
    (pa.types.is_floating, _encode_float),
    (pa.types.is_date32, _encode_time),
    (pa.types.is_timestamp, _encode_time),
    (pa.types.is_time, _encode_clock),
    (pa.types.is_binary, _encode_bytes),
    (pa.types.is_large_binary, _encode_bytes),
)


def _find_encoder(of: pa.DataType, path: str) -> Callable[[pa.Array], pa.StringArray]:
    for is_kind, encode in _ENCODERS:
        if is_kind(of):
            return encode
    raise UsageError(describe_odd_type(path, of))


def describe_odd_type(path: str, of: object) -> str:
    """Return the error for a column of a type that JSON does not have."""
    return f"column {path!r} is {of}, which JSON does not have, expected another type, such as string"
