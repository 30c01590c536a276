"""Documents as typed columns: the extension module, its Python counterpart, and models of single values."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.spark.values import typed_documents
from penstock.spark.values.column_tree import FORMS
from penstock.spark.values.typed_documents import ColumnRule, DocumentParser, Misfit, ParsedDocuments
from penstock.wire.codec import native
from penstock.wire.values.json_value import MAX_LEVELS
from tests.examples import scaled

TIMESTAMP, DATE = pa.timestamp("us", "UTC"), pa.date32()
Rules = list[ColumnRule]
Read = Callable[[Rules, list[bytes | None]], ParsedDocuments]


def read_natively(rules: Rules, values: list[bytes | None]) -> ParsedDocuments:
    return check_arrays(DocumentParser(rules).parse(pa.array(values, pa.binary())))


def read_in_python(rules: Rules, values: list[bytes | None]) -> ParsedDocuments:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "extension", None)
        return check_arrays(DocumentParser(rules).parse(pa.array(values, pa.binary())))


def check_arrays(found: ParsedDocuments) -> ParsedDocuments:
    for each in (found.columns, found.rest, found.objects):
        each.validate(full=True)
    return found


READS = {"native": read_natively, "python": read_in_python}


@pytest.fixture(params=READS)
def read(request: pytest.FixtureRequest) -> Read:
    """Parse with the extension module, and without it."""
    if request.param == "native" and native.extension is None:
        pytest.skip("the extension module was not built, or PENSTOCK_NATIVE=0")
    return READS[request.param]


def read_value(read: Read, of: pa.DataType, written: str, form: str | None = None) -> tuple[Any, str | None]:
    """Return the value of a column x, and the reason of a misfit."""
    found = read([ColumnRule("x", of, form=form)], [f'{{"x":{written}}}'.encode()])
    reason = next((reason for path, reason in found.misfits if path == "x"), None)
    assert len(found.misfits) == (reason is not None)
    assert found.rest.to_pylist() == [f'{{"x":{written}}}' if reason else None]
    return found.columns["x"][0].as_py(), reason


# Single values


def at(*units: int) -> datetime:
    return datetime(*units, tzinfo=UTC)  # type: ignore[arg-type, misc]


INEXACT, TYPE, TEXT = "not held exactly", "other type", "text of another form"
NOON = at(2026, 11, 28, 12)
HELD = [
    *((pa.bool_(), None, *case) for case in (("true", True), ("false", False), ("1", TYPE), ('"true"', TYPE))),
    (pa.int8(), None, "127", 127),
    (pa.int8(), None, "128", INEXACT),
    (pa.int16(), None, "-32768", -32768),
    (pa.int16(), None, "-32769", INEXACT),
    (pa.int32(), None, "2147483648", INEXACT),
    *(
        (pa.int64(), None, *case)
        for case in (
            ("9223372036854775807", 2**63 - 1),
            ("9223372036854775808", INEXACT),
            ("-9223372036854775808", -(2**63)),
            ("-9223372036854775809", INEXACT),
            ("18446744073709551616", INEXACT),
            ("-0", 0),
            ("1.0", INEXACT),
            ("1e3", INEXACT),
            ('"1"', TYPE),
            ("true", TYPE),
            ("[1]", TYPE),
            ('{"y":1}', TYPE),
        )
    ),
    *(
        (pa.float64(), None, *case)
        for case in (
            ("0.1", 0.1),
            ("0.10", 0.1),
            ("1e-1", 0.1),
            ("0.10000000000000001", INEXACT),
            ("0.3", 0.3),
            ("0.30000000000000004", 0.1 + 0.2),
            ("0.123456789012345678", INEXACT),
            ("9007199254740993", INEXACT),
            ("9007199254740994", 9007199254740994.0),
            ("1267650600228229401496703205376", 2.0**100),
            ("1267650600228229401496703205377", INEXACT),
            ("1e400", INEXACT),
            ("1" + "0" * 400, INEXACT),
            ("1e-400", INEXACT),
            ("0e99999999999999999999", 0.0),
            ("5e-324", 5e-324),
            ("4.9e-324", INEXACT),
            ("1.7976931348623157e308", sys.float_info.max),
            ("5.444517870735016e+39", 2.0**132),
            ("1125899906842624.2", 1125899906842624.25),
            ("1125899906842624.3", INEXACT),
            ('"0.1"', TYPE),
        )
    ),
    (pa.float32(), None, "16777216", 16777216.0),
    (pa.float32(), None, "16777217", INEXACT),
    (pa.float32(), None, "1e39", INEXACT),
    (pa.float32(), None, "0.1", float(np.float32(0.1))),
    (pa.float32(), None, "0.123456789", INEXACT),
    *(
        (pa.decimal128(5, 2), None, *case)
        for case in (
            ("123.45", Decimal("123.45")),
            ("123.4500", Decimal("123.45")),
            ("12345e-2", Decimal("123.45")),
            ("1234.5", INEXACT),
            ("0.001", INEXACT),
            ("-999.99", Decimal("-999.99")),
            ("-0.00", Decimal("0.00")),
            ("1e99999999999999999999", INEXACT),
            ('"123.45"', Decimal("123.45")),
            ('"1e1"', Decimal("10.00")),
            ('"\\u0031"', Decimal("1.00")),
            ('" 1"', TEXT),
            ('"0.001"', INEXACT),
            ("true", TYPE),
        )
    ),
    (pa.decimal128(38, 0), None, "9" * 38, Decimal("9" * 38)),
    (pa.decimal128(38, 0), None, "-" + "9" * 38, Decimal("-" + "9" * 38)),
    (pa.decimal128(38, 0), None, "9" * 39, INEXACT),
    (pa.string(), None, '"\\ud83d\\ude00 \\u0000\\n"', "\U0001f600 \0\n"),
    (pa.string(), None, '"\\ud83d"', INEXACT),
    (pa.string(), None, "1", TYPE),
    (pa.string(), "json", '"a"', '"a"'),
    (pa.string(), "json", '{"y" : [1.0]}', '{"y" : [1.0]}'),
    *(
        (pa.binary(), None, *case)
        for case in (
            ('""', b""),
            ('"aGk="', b"hi"),
            ('"a\\u0047k="', b"hi"),
            ('"aGl="', TEXT),
            ('"aGk"', TEXT),
            ('"a-k="', TEXT),
            ('"===="', TEXT),
            ("1", TYPE),
        )
    ),
    *(
        (TIMESTAMP, None, f'"{text}"', found)
        for text, found in {
            "2026-11-28": at(2026, 11, 28),
            "2026-11-28T12:00:00Z": NOON,
            "2026-11-28t12:00:00.000z": NOON,
            "2026-11-28 12:00": NOON,
            "2026-11-28T13:00:00+01": NOON,
            "2026-11-28T08:30:00-0330": NOON,
            "2026-11-28T12:00:00.123456789Z": INEXACT,
            "20261128": at(2026, 11, 28),
            "20261128T1200Z": NOON,
            "20261128T120000.5+0000": at(2026, 11, 28, 12, 0, 0, 500_000),
            "Sat, 28 Nov 2026 12:00:00 GMT": NOON,
            "sat, 28 nov 2026 13:00:00 +0100": NOON,
            "5 Nov 2026 12:00 UTC": at(2026, 11, 5, 12),
            "Sun, 28 Nov 2026 12:00:00 GMT": TEXT,
            "Sat, 28 Nov 2026 12:00:00": TEXT,
            "Sat, 31 Nov 2026 12:00:00 GMT": TEXT,
            "2026-11-28T12": TEXT,
            "2026-11-28T12:00:0012": TEXT,
            "20261128 1200": TEXT,
            "20261128T12:00": TEXT,
            "2026-1128": TEXT,
            "2026-02-29": TEXT,
            "2024-02-29": at(2024, 2, 29),
            "1900-02-29": TEXT,
            "0001-01-01T00:00+00:01": TEXT,
            "9999-12-31T23:59:59-00:01": TEXT,
            "1795867200": TEXT,
            "": TEXT,
        }.items()
    ),
    (TIMESTAMP, None, '"2026\\u002d11-28"', at(2026, 11, 28)),
    (TIMESTAMP, None, "1795867200", TYPE),
    *(
        (TIMESTAMP, None, f'{{"$date":{inner}', found)
        for inner, found in {
            '"2026-11-28T12:00:00Z"}': NOON,
            "1795867200000}": NOON,
            '{"$numberLong":"1795867200000"}}': NOON,
            '{"$numberLong":"1795867200000","y":1}}': TEXT,
            '{"$numberLong":1795867200000}}': TEXT,
            "null}": TEXT,
            "1795867200000.0001}": INEXACT,
            '1795867200000,"y":1}': TYPE,
            '1795867200000,"$date":1795867200000}': TYPE,
        }.items()
    ),
    (TIMESTAMP, None, '{"\\u0024date":1795867200000}', NOON),
    (TIMESTAMP, None, "{}", TYPE),
    (TIMESTAMP, "unix_s", "1795867200", NOON),
    (TIMESTAMP, "unix_s", "1795867200.25", at(2026, 11, 28, 12, 0, 0, 250_000)),
    (TIMESTAMP, "unix_s", "1795867200.1234567", INEXACT),
    (TIMESTAMP, "unix_s", '"1795867200"', NOON),
    (TIMESTAMP, "unix_s", '"2026-11-28T12:00Z"', NOON),
    (TIMESTAMP, "unix_s", "253402300800", INEXACT),
    (TIMESTAMP, "unix_ms", "1795867200000", NOON),
    (TIMESTAMP, "unix_ms", "-1", at(1969, 12, 31, 23, 59, 59, 999_000)),
    (TIMESTAMP, "unix_us", "1.7958672e15", NOON),
    (TIMESTAMP, "unix_us", "true", TYPE),
    (DATE, None, '"2026-11-28"', date(2026, 11, 28)),
    (DATE, None, '"20261128"', date(2026, 11, 28)),
    (DATE, None, '"0001-01-01"', date(1, 1, 1)),
    (DATE, None, '"2026-11-28T00:00Z"', TEXT),
    (DATE, None, '{"$date":0}', TYPE),
    (DATE, "unix_ms", "1795824000000", date(2026, 11, 28)),
    (DATE, "unix_s", "-86400", date(1969, 12, 31)),
    (DATE, "unix_ms", "1795867200000", INEXACT),
]
"""Type, form and JSON text -> the value of the column, or the reason why the value is not in it."""


def test_values_are_held_or_left_with_a_reason(read: Read) -> None:
    wrong = []
    for of, form, written, expected in HELD:
        held, reason = read_value(read, of, written, form)
        if (held if reason is None else reason) != expected:
            wrong.append((str(of), form, written, held, reason))
    assert wrong == []


WRITTEN_NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda each: str(np.float32(each))),
    st.integers(-(2**70), 2**70).map(str),
    st.builds(
        "{}{}.{}e{}".format,
        st.sampled_from(["", "-"]),
        st.integers(0, 10**9),
        st.integers(0, 10**18),
        st.integers(-345, 330),
    ),
    st.builds("{}.{}".format, st.integers(2**50, 2**53), st.sampled_from(["1", "2", "25", "3", "5", "7", "75", "8"])),
)
"""Numbers near and far from those that columns hold."""


@given(st.lists(WRITTEN_NUMBERS, min_size=1, max_size=20))
@settings(max_examples=scaled(300))
def test_doubles_give_back_the_number_of_the_document(numbers: list[str]) -> None:
    """The shortest text of a held double is the same number. Integers are exact."""
    documents: list[bytes | None] = [f'{{"x":{number}}}'.encode() for number in numbers]
    for found in (read([ColumnRule("x", pa.float64())], documents) for read in READS.values()):
        for number, held in zip(numbers, found.columns["x"].to_pylist(), strict=True):
            value, shown = Fraction(number), float(number)
            is_integer = number.lstrip("-").isdigit()
            is_held = np.isfinite(shown) and value == Fraction(shown if is_integer else repr(shown))
            assert held == (shown if is_held else None), number


@given(st.lists(WRITTEN_NUMBERS, min_size=1, max_size=20), st.integers(1, 38), st.data())
@settings(max_examples=scaled(300))
def test_decimals_hold_numbers_exactly_or_not_at_all(numbers: list[str], precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, precision))
    documents: list[bytes | None] = [f'{{"x":{number}}}'.encode() for number in numbers]
    for read in READS.values():
        found = read([ColumnRule("x", pa.decimal128(precision, scale))], documents).columns["x"].to_pylist()
        for number, held in zip(numbers, found, strict=True):
            scaled_value = Fraction(number) * 10**scale
            is_held = scaled_value.denominator == 1 and abs(scaled_value) < 10**precision
            assert held == (Decimal(number) if is_held else None), number


# Whole documents

O = pa.struct([("x", pa.int64()), ("l", pa.list_(pa.int64()))])  # noqa: E741
RULES = [
    ColumnRule("n", pa.int64()),
    ColumnRule("o", O),
    ColumnRule("m", pa.map_(pa.string(), pa.int64())),
    ColumnRule("ls", pa.list_(O)),
    ColumnRule("city", pa.string(), ("address", "city")),
    ColumnRule("zip", pa.string(), ("address", "more", "zip")),
]
UNKNOWN, REPEATED = "unknown field", "repeated name"
DOCUMENTS: list[tuple[bytes, dict[str, Any], str | None, dict[tuple[str, str], int]]] = [
    (b"{}", {}, None, {}),
    (b'{"n":1, "void" : null}', {"n": 1}, None, {}),
    (b'{ "n" : 1 , "z" : [1, 2] , "y":"" }', {"n": 1}, '{"z":[1, 2],"y":""}', {("z", UNKNOWN): 1, ("y", UNKNOWN): 1}),
    (b'{"n":"1"}', {}, '{"n":"1"}', {("n", TYPE): 1}),
    (b'{"n":1,"n":2}', {"n": 2}, '{"n":1}', {("n", REPEATED): 1}),
    (b'{"n":1,"\\u006e":null}', {}, '{"n":1}', {("n", REPEATED): 1}),
    (b'{"n":null,"n":2,"z":1}', {"n": 2}, '{"z":1}', {("z", UNKNOWN): 1}),
    (
        b'{"o":{"x":1,"y":{"deep":[1, 2]},"l":[3]}}',
        {"o": {"x": 1, "l": [3]}},
        '{"o":{"y":{"deep":[1, 2]}}}',
        {("o.y", UNKNOWN): 1},
    ),
    (b'{"o":7,"ls":{}}', {}, '{"o":7,"ls":{}}', {("o", TYPE): 1, ("ls", TYPE): 1}),
    (b'{"o":{},"ls":[],"m":{}}', {"o": {"x": None, "l": None}, "ls": [], "m": []}, None, {}),
    (
        b'{"o":{"x":1,"l":[1,"a",2]},"o":{"x":2,"x":3,"l":[1,"b",null]}}',
        {"o": {"x": 3, "l": [1, None, None]}},
        '{"o":{"x":1,"l":[1,"a",2]},"o":{"x":2,"l":[1,"b",null]}}',
        {("o", REPEATED): 1, ("o.x", REPEATED): 1, ("o.l[]", TYPE): 1},
    ),
    (
        b'{"m":{"a":1,"b":"x","c":null,"a":3,"\\ud800":4}}',
        {"m": [("b", None), ("c", None), ("a", 3)]},
        '{"m":{"a":1,"b":"x","\\ud800":4}}',
        {("m[]", REPEATED): 1, ("m[]", TYPE): 1, ("m[]", INEXACT): 1},
    ),
    (
        b'{"ls":[{"x":1},null,{"x":"a","q":{}},7,{"x":2,"x":3}]}',
        {"ls": [{"x": 1, "l": None}, None, {"x": None, "l": None}, None, {"x": 3, "l": None}]},
        '{"ls":[{"x":1},null,{"x":"a","q":{}},7,{"x":2,"x":3}]}',
        {("ls[].x", TYPE): 1, ("ls[].q", UNKNOWN): 1, ("ls[]", TYPE): 1, ("ls[].x", REPEATED): 1},
    ),
    (
        b'{"address":{"city":"Ulm","street":"Weg","more":{"zip":"89073","zip":null,"po":1}}}',
        {"city": "Ulm"},
        '{"address":{"street":"Weg","more":{"zip":"89073","po":1}}}',
        {("address.street", UNKNOWN): 1, ("address.more.zip", REPEATED): 1, ("address.more.po", UNKNOWN): 1},
    ),
    (b'{"address":"Ulm"}', {}, '{"address":"Ulm"}', {("address", TYPE): 1}),
    (b'{"address":null}', {}, None, {}),
    (
        b'{"address":{"city":"Ulm"},"address":{"more":{"zip":"1"}}}',
        {"zip": "1"},
        '{"address":{"city":"Ulm"}}',
        {("address", REPEATED): 1},
    ),
    (b'{"\\udc00":1,"":2}', {}, '{"\\udc00":1,"":2}', {("?", UNKNOWN): 1, ("", UNKNOWN): 1}),
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document[0].decode())
def test_documents_are_divided_into_columns_and_rest(read: Read, document: Any) -> None:
    value, columns, rest, misfits = document
    around: list[bytes | None] = [b'{"n":5}', value, b"no document", None, b'{"n":6}']
    found = read(RULES, around)
    assert found.columns.to_pylist()[1] == dict.fromkeys(found.columns.schema.names) | columns
    assert found.columns["n"].to_pylist() == [5, columns.get("n"), None, None, 6]
    assert found.rest.to_pylist() == [None, rest, None, None, None]
    assert found.objects.to_pylist() == [True, True, False, None, True]
    assert found.misfits == {place: Misfit(count, (1,)) for place, count in misfits.items()} | {
        ("", "no JSON object"): Misfit(1, (2,))
    }


def test_misfits_name_the_first_rows(read: Read) -> None:
    found = read(
        [ColumnRule("l", pa.list_(pa.int8()))], [b'{"l":[300,1.5,"x",300]}', b'{"l":[0]}', *[b'{"l":[256]}'] * 5]
    )
    assert found.misfits == {
        ("l[]", INEXACT): Misfit(8, (0, 2, 3)),
        ("l[]", TYPE): Misfit(1, (0,)),
    }


def test_thousand_unknown_names_are_counted_apart(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[bytes | None] = [*(b'{"f%d":1}' % number for number in range(1200)), b'{"f0":1,"f1100":2}']
    found = read([], values)
    assert found.columns.num_rows == len(values)
    assert len(found.misfits) == 1001
    assert found.misfits["f0", UNKNOWN] == Misfit(2, (0, 1200))
    assert found.misfits["*", UNKNOWN] == Misfit(201, (1000, 1001, 1002))
    monkeypatch.setattr(typed_documents, "SLICE_BYTES", 1000)
    assert read([], values) == found


def test_slices_give_the_same_result(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[bytes | None] = [*(document[0] for document in DOCUMENTS), None, b"{", *(b'{"n":"x"}',) * 5]
    whole = read(RULES, values)
    monkeypatch.setattr(typed_documents, "SLICE_BYTES", 50)
    assert read(RULES, values) == whole


def test_columns_that_most_documents_lack(read: Read) -> None:
    """Columns of each kind have their values where they belong, behind any number of nulls."""
    written: dict[pa.DataType, tuple[str, Any]] = {
        pa.bool_(): ("true", True),
        pa.int8(): ("7", 7),
        pa.float64(): ("0.5", 0.5),
        pa.decimal128(20, 1): ("1.5", Decimal("1.5")),
        pa.string(): ('"x"', "x"),
        pa.binary(): ('"aGk="', b"hi"),
        DATE: ('"1970-01-02"', date(1970, 1, 2)),
        pa.list_(O): ('[{"x":1},{},{"l":[2]}]', [{"x": 1, "l": None}, {"x": None, "l": None}, {"x": None, "l": [2]}]),
        pa.map_(pa.string(), O): ('{"k":{"l":[]},"m":null}', [("k", {"x": None, "l": []}), ("m", None)]),
        pa.struct([("o", O), ("b", pa.bool_())]): ('{"o":{"l":[3]}}', {"o": {"x": None, "l": [3]}, "b": None}),
    }
    rules = [ColumnRule(f"c{number}", of) for number, of in enumerate(written)]
    for gap in (0, 1, 7, 8, 9, 63, 64, 65, 300):
        values: list[bytes | None] = []
        for number, (text, _) in enumerate(written.values()):
            values += [b"{}"] * gap + [b'{"c%d":%s}' % (number, text.encode())]
        found = read(rules, [*values, *values, None, b"["])
        assert found.rest.null_count == len(found.rest)
        for number, (_, value) in enumerate(written.values()):
            place, column = (gap + 1) * (number + 1) - 1, found.columns.column(number)
            assert [row for row, each in enumerate(column.is_valid().to_pylist()) if each] == [
                place,
                place + len(values),
            ]
            assert [column[place].as_py(), column[place + len(values)].as_py()] == [value, value]


@pytest.mark.parametrize("of", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
def test_documents_are_parts_of_arrays_of_any_layout(of: pa.DataType) -> None:
    values = pa.array([b'{"n":1}', None, b'{"n":2,"z":1}', b'{"n":3}', None], of)
    for start, count in ((0, 5), (1, 3), (2, 0), (5, 0), (3, 2)):
        found = check_arrays(DocumentParser(RULES).parse(values.slice(start, count)))
        assert found.columns["n"].to_pylist() == [1, None, 2, 3, None][start : start + count]
        assert found.rest.to_pylist() == [None, None, '{"z":1}', None, None][start : start + count]


def test_large_and_deep_values(read: Read) -> None:
    nested = b"[" * (MAX_LEVELS - 1) + b"]" * (MAX_LEVELS - 1)
    many = ",".join(map(str, range(50_000))).encode()
    values: list[bytes | None] = [
        b'{"n":1,"z":%s}' % nested,
        b'{"n":1,"z":[%s]}' % nested,
        b'{"n":1,"o":{"x":2,"y":%s}}' % nested[1:-1],
        b'{"n":1,"o":{"x":2,"y":%s}}' % nested,
        b"[" * 100_000,
        b'{"n":1,"o":{"l":[%s]},"z":"%s"}' % (many, b"x" * 1_000_000),
    ]
    found = read(RULES, values)
    assert found.objects.to_pylist() == [True, False, True, False, False, True]
    assert found.columns["n"].to_pylist() == [1, None, 1, None, None, 1]
    assert len(found.columns["o"][5]["l"].as_py()) == 50_000
    assert len(found.rest[5].as_py()) == len('{"z":""}') + 1_000_000


BAD_RULES = [
    ([ColumnRule("a", pa.uint8())], "column a is uint8; expected a type that JSON has values of"),
    ([ColumnRule("a", pa.map_(pa.int64(), pa.string()))], "column a is map"),
    ([ColumnRule("a", pa.struct([("x", pa.int8()), ("x", pa.int8())]))], "fields x, x; expected each name once"),
    ([ColumnRule("a", pa.int8()), ColumnRule("a", pa.int8(), ("b",))], "columns a, a; expected each name once"),
    ([ColumnRule("a", pa.int8()), ColumnRule("b", pa.int8(), ("a",))], "column b has path a of another column"),
    ([ColumnRule("a", pa.int8()), ColumnRule("b", pa.int8(), ("a", "x"))], "the path of column b leads into column a"),
    ([ColumnRule("a", TIMESTAMP, form="epoch")], "the form of a is 'epoch'; expected unix_s, unix_ms, unix_us or json"),
]


@pytest.mark.parametrize(("rules", "message"), BAD_RULES)
def test_bad_rules_are_refused(rules: Rules, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DocumentParser(rules)


def test_arrays_that_lie_outside_of_their_buffers_are_refused() -> None:
    if native.extension is None:
        pytest.skip("the extension module was not built, or PENSTOCK_NATIVE=0")
    root = np.array([0, -1, 0, 0, 0, 1, 0, -1], np.int32)
    offsets = np.array([0, 2, 4], np.int32)

    def parse(
        table: bytes = root.tobytes(), offsets: bytes = offsets.tobytes(), data: bytes = b"{}{}", **more: int
    ) -> Any:
        assert native.extension is not None
        start, count, columns = more.get("start", 0), more.get("count", 2), more.get("columns", 0)
        return native.extension.parse_documents(
            table, b"", MAX_LEVELS, columns, b"", offsets, data, False, start, count
        )

    assert parse()[1] == []
    for wrong in (
        {"data": b"{}{"},
        {"offsets": np.array([0, 3, 2], np.int32).tobytes()},
        {"offsets": np.array([-1, 2, 4], np.int32).tobytes()},
        {"count": 3},
        {"start": -1},
        {"start": 2},
        {"columns": 1},
        {"table": b""},
        *({"table": np.array(row, np.int32).tobytes()} for row in ([13, *[0] * 7], [0, 0, 0, 1, 1, 1, 0, -1])),
        *({"table": np.array([0, 0, 0, 0, 0, at, 1, -1], np.int32).tobytes()} for at in (0, 1)),
    ):
        with pytest.raises(ValueError, match=r"that is none|outside of its buffer"):
            parse(**wrong)  # type: ignore[arg-type]


# Any documents by any rules: the extension module and Python agree

NAMES = ["a", "b", "é", 'q"', ""]
LEAVES = st.sampled_from(
    [pa.bool_(), pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), TIMESTAMP, DATE]
    + [pa.decimal128(precision, scale) for precision, scale in ((5, 2), (38, 0), (38, 19), (3, 3))]
)
TYPES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(lambda of: pa.map_(pa.string(), of)),
        st.dictionaries(st.sampled_from(NAMES), inner, max_size=3).map(lambda found: pa.struct(list(found.items()))),
    ),
    max_leaves=5,
)
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple)


@st.composite
def rule_lists(draw: st.DrawFn) -> Rules:
    """Return rules with paths that do not lead into each other."""
    rules: Rules = []
    for path in draw(st.lists(PATHS, max_size=4, unique=True)):
        if not any(path[: len(each.path)] == each.path or each.path[: len(path)] == path for each in rules):
            form = draw(st.sampled_from([None, None, "json", *FORMS]))
            rules.append(ColumnRule(f"c{len(rules)}", draw(TYPES), path, form))
    return rules


TEXTS = st.one_of(
    st.text(max_size=4),
    WRITTEN_NUMBERS,
    st.sampled_from([json.loads(case[2]) for case in HELD if case[2].startswith('"')]),
)
KEYS = st.sampled_from(
    [*map(json.dumps, NAMES), '"\\u0061"', '"z"', '"\\ud800"', '"$date"', '"\\u0024date"', '"$numberLong"']
)
SPACE = st.sampled_from(["", "", " ", "\n\t"])


def write_parts(brackets: str, parts: list[str], space: str) -> str:
    return f"{brackets[0]}{space}{f'{space},'.join(parts)}{space}{brackets[1]}"


def write_objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.builds("{}{}:{}{}".format, KEYS, SPACE, SPACE, inner)
    return st.builds(write_parts, st.just("{}"), st.lists(members, max_size=4), SPACE)


VALUES = st.recursive(
    st.one_of(
        st.sampled_from(["null", "true", "false", "-0", "0e9", "1e99999999999999999999", '"\\ud800"', '"\\u0031.5"']),
        WRITTEN_NUMBERS,
        TEXTS.map(json.dumps),
        TEXTS.map(lambda text: json.dumps(text, ensure_ascii=False)),
        TEXTS.map(lambda text: f'{{"$date":{json.dumps(text)}}}'),
        WRITTEN_NUMBERS.map(lambda number: f'{{"$date":{{"$numberLong":"{number}"}}}}'),
    ),
    lambda inner: st.builds(write_parts, st.just("[]"), st.lists(inner, max_size=3), SPACE) | write_objects(inner),
    max_leaves=8,
)
ENCODED = write_objects(VALUES).map(lambda text: text.encode("utf-8", "replace"))
DAMAGED = st.builds(
    lambda value, at, added, removed: value[: at % (len(value) + 1)] + added + value[at % (len(value) + 1) + removed :],
    ENCODED,
    st.integers(0, 500),
    st.sampled_from([b"", b",", b"}", b"[", b'"', b"\\", b"\0", b"\xff", b"1", b"n"]),
    st.integers(0, 1),
)


@given(rule_lists(), st.lists(st.none() | ENCODED | DAMAGED, max_size=6))
@settings(max_examples=scaled(500))
def test_python_and_the_extension_module_agree(rules: Rules, values: list[bytes | None]) -> None:
    found, expected = read_natively(rules, values), read_in_python(rules, values)
    assert found.columns.equals(expected.columns)
    assert found == expected
    for left in found.rest.drop_null().to_pylist():
        assert isinstance(json.loads(left, parse_int=str), dict)
