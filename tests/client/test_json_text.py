"""Columns of a table as JSON text: each value is read as the same value."""

import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.documents.json_text import check_json_type, encode_json
from penstock.errors import UsageError

NESTED = pa.struct(
    [("a", pa.list_(pa.float64())), ("m", pa.map_(pa.string(), pa.int8())), ("t", pa.timestamp("s"))],
)
ROWS = [
    {"a": [1.5, float("nan"), None], "m": [("x", 1)], "t": datetime(2026, 1, 2, 3, 4, 5)},
    {"a": None, "m": [], "t": None},
    None,
    {"a": [], "m": [("y", None), ("z", 2)], "t": datetime(1, 1, 1)},
]
TEXTS = [
    b'{"a":[1.5,"NaN",null],"m":{"x":1},"t":"2026-01-02T03:04:05"}',
    b'{"m":{}}',
    None,
    b'{"a":[],"m":{"y":null,"z":2},"t":"0001-01-01T00:00:00"}',
]


@pytest.mark.parametrize(("start", "count"), [(0, 4), (1, 2), (2, 1), (3, 1), (1, 3), (4, 0)])
def test_objects_and_arrays_are_encoded_whatever_part_of_a_column_they_are(start, count):
    column = pa.array(ROWS, NESTED).slice(start, count)
    assert encode_json(column).to_pylist() == TEXTS[start : start + count]


def test_strings_are_escaped():
    texts = ["plain", 'q"', None, "\n", "ü", "\\u0041", "\x00\x1f\x7f\u2028", ""]
    encoded = encode_json(pa.array(texts)).to_pylist()
    assert [None if each is None else json.loads(each) for each in encoded] == texts
    assert encode_json(pa.array(["ü", None])).to_pylist() == ['"ü"'.encode(), None]


DAYS = pa.array([-719528, -719529, 2932896, 2932897, -(2**31), None], pa.int32()).cast(pa.date32())
MOMENTS = pa.array([-14182939876544, 253402300800000000, 0, 2**63 - 1, None], pa.int64())


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([True, None]), ["true", None]),
        (pa.array([-(2**63), 2**53 + 1]), ["-9223372036854775808", "9007199254740993"]),
        (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
        (pa.array([0.5, 100.0, -0.0, 1e-7, 5e-324, None]), ["0.5", "100.0", "-0.0", "1e-7", "5e-324", None]),
        (pa.array([float("inf"), -float("inf"), float("nan")]), ['"Infinity"', '"-Infinity"', '"NaN"']),
        (pa.array([0.1, 16777216, -0.0, float("nan")], pa.float32()), ["0.1", "16777216.0", "-0.0", '"NaN"']),
        (pa.array([Decimal("1.10"), None], pa.decimal128(38, 2)), ["1.10", None]),
        (pa.array([Decimal("9" * 35 + ".123")], pa.decimal128(38, 3)), ["9" * 35 + ".123"]),
        (pa.array([12300], pa.decimal128(5, -2)), ["1.23E+4"]),
        (DAYS, ['"0000-01-01"', '"-0001-12-31"', '"9999-12-31"', '"+10000-01-01"', '"-5877641-06-23"', None]),
        (
            MOMENTS.cast(pa.timestamp("us")),
            [
                '"1969-07-20T20:17:40.123456"',
                '"+10000-01-01T00:00:00"',
                '"1970-01-01T00:00:00"',
                '"+294247-01-10T04:00:54.775807"',
                None,
            ],
        ),
        (pa.array([0], pa.timestamp("ms", "America/New_York")), ['"1970-01-01T00:00:00+00:00"']),
        (pa.array([time(10), time(12, 30, 0, 500000)], pa.time64("us")), ['"10:00:00"', '"12:30:00.5"']),
        (pa.array([time(10)], pa.time32("s")), ['"10:00:00"']),
        (pa.array([None]), [None]),
        (pa.array([[b"\0"]]), ['["AA=="]']),
        (pa.array([[1, None], None, []]), ["[1,null]", None, "[]"]),
        (pa.array([[[0.1], None]], pa.large_list(pa.list_(pa.float32()))), ["[[0.1],null]"]),
        (pa.array([{"x": None}], pa.struct([("x", pa.null())])), ["{}"]),
        (pa.array([{}, None], pa.struct([])), ["{}", None]),
        (pa.array([[("q\"", 1)]], pa.map_(pa.string(), pa.int8())), ['{"q\\"":1}']),
        (pa.array([[(7, 1), (8, None)]], pa.map_(pa.int32(), pa.int8())), ['{"7":1,"8":null}']),
        (pa.array([[(0.1, 1)]], pa.map_(pa.float32(), pa.int8())), ['{"0.1":1}']),
        (pa.array([[(Decimal("1.10"), 1)]], pa.map_(pa.decimal128(5, 2), pa.int8())), ['{"1.10":1}']),
        (pa.array([[(date(2020, 1, 1), 1)]], pa.map_(pa.date32(), pa.int8())), ['{"2020-01-01":1}']),
        (pa.array([[(True, 1)]], pa.map_(pa.bool_(), pa.int8())), ['{"true":1}']),
    ],
    ids=lambda each: str(each.type) if isinstance(each, pa.Array) else "",
)  # fmt: skip
def test_values_of_each_type_are_exact(column, expected):
    assert encode_json(column).to_pylist() == [each and each.encode() for each in expected]
    inside = pa.StructArray.from_arrays([column], ["x"])
    assert encode_json(inside).to_pylist() == [f'{{"x":{each}}}'.encode() if each else b"{}" for each in expected]


def test_binary_values_are_json_already():
    assert encode_json(pa.array([b"[1]"])).to_pylist() == [b"[1]"]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_floats_are_read_as_the_same_floats(numbers):
    texts = encode_json(pa.array(numbers, pa.float32())).to_pylist()
    assert [np.float32(text) for text in texts] == [np.float32(number) for number in numbers]
    assert all(json.loads(text) == float(str(np.float32(n))) for text, n in zip(texts, numbers, strict=True))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_doubles_are_read_as_the_same_doubles(numbers):
    assert [json.loads(text) for text in encode_json(pa.array(numbers, pa.float64())).to_pylist()] == numbers


@given(st.lists(st.decimals(min_value=-(10**19), max_value=10**19, places=18)))
def test_decimals_keep_all_digits(numbers):
    texts = encode_json(pa.array(numbers, pa.decimal128(38, 18))).to_pylist()
    assert [Decimal(text.decode()) for text in texts] == numbers
    assert all(json.loads(text) is not None for text in texts)


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (pa.struct([("a", pa.list_(pa.duration("us")))]), r"'v\.a\[\]' is duration\[us\], which JSON does not have"),
        (pa.map_(pa.string(), pa.month_day_nano_interval()), r"column 'v\.value' is month_day_nano_interval"),
        (pa.map_(pa.binary(), pa.int8()), "column 'v' has keys of type binary, expected strings, numbers or times"),
        (pa.map_(pa.struct([("a", pa.int8())]), pa.int8()), "column 'v' has keys of type struct<a: int8>"),
    ],
)  # fmt: skip
def test_types_that_json_does_not_have_are_refused(of, text):
    with pytest.raises(UsageError, match=text):
        check_json_type(of, "v")


def test_a_column_of_another_type_is_refused():
    with pytest.raises(UsageError, match=r"duration\[us\], which JSON does not have"):
        encode_json(pa.array([{"x": timedelta(1)}]))
