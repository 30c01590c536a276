"""Values by a JSON path: whole chunks give the same values as one document at a time."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.spark.dependents import json_paths as paths
from penstock.spark.dependents.json_paths import extract_values, find_values, parse_path
from penstock.spark.dependents.value_types import VALUE_TYPES, find_value_type
from penstock.spark.tables import json_columns
from penstock.wire.codec import native
from penstock.wire.values.json_value import TooDeepJson, parse_written_json

BEYOND_LONG = 1 << 63

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-BEYOND_LONG - 1, BEYOND_LONG)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(["2010-07-22 20:00:20", "2010-07-22T20:00:20.5Z", "2010-07-22T20:00:20+02:00", "2010-13-01"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
)
NAMES = [*sorted(VALUE_TYPES), "decimal(3, 1)"]
DOCUMENTS = st.fixed_dictionaries({}, optional={"a": VALUES, "b": VALUES, "c": VALUES})
GARBAGE = st.sampled_from(
    [
        *(
            b"",
            b" ",
            b"\n",
            b"null",
            b"1",
            b"[1, [2]]",
            b'"a"',
            b"{",
            b'{"a":1}}',
            b'{"a":1}{"a":2}',
            b'1}{"document":2',
        ),
        *(b'{"a":1,"a":2}', b'{"a":1,"b":NaN}', b'{"b":Infinity}', b'{"a":-Inf}', b'{"a":"NaN"}', b'{"a":": Inf"}'),
        *(b'{"a":1e400}', b'{"a":1e3}', b'{"a":7.0}', b'{"a":-0.0}', b'{"a":1}\0', b"1}\0", b"\xff", b'{"a":"\xff"}'),
        *(b'{"a":"\\ud800"}', b'{"c":"\\ud800","a":1}', b'{"a":"\\u0000"}', b'{"a":"\t"}', b'{\n"a"\r\n: 5}'),
        b'{"b":' + b"[" * 2000 + b"]" * 2000 + b',"a":1}',
    ]
)
TEXTS = DOCUMENTS.map(lambda document: json.dumps(document).encode()) | GARBAGE


def one_by_one(documents, names, kind):
    found = []
    for row, text in enumerate(documents):
        try:
            document = parse_written_json(text or b"")
        except TooDeepJson:
            found.append((row, None))
            continue
        except ValueError:
            continue
        found += [(row, kind.fit(value)) for value in find_values(document, names)]
    return found


@given(
    st.lists(TEXTS | st.none(), max_size=60),
    st.sampled_from(["a", "a.b", "b.a.a"]),
    st.sampled_from(NAMES),
)
def test_chunks_equal_single_documents(documents, path, name):
    names, kind = parse_path(path), find_value_type(name)
    expected = one_by_one(documents, names, kind)
    for extension in (native.extension, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "extension", extension)
            found = extract_values(pa.array(documents, pa.binary()), names, kind)
        assert list(zip(found.rows.tolist(), found.values.to_pylist(), strict=True)) == expected
        assert found.misfits.is_valid().equals(found.values.is_null())


@given(st.lists(DOCUMENTS, min_size=1, max_size=10), st.sampled_from(NAMES), st.data())
def test_similar_rows_read_together_equal_single_documents(samples, name, data):
    rows = data.draw(st.lists(st.sampled_from(samples), min_size=20, max_size=200))
    documents = [json.dumps(document).encode() for document in rows]
    kind = find_value_type(name)
    found = extract_values(pa.chunked_array([documents[:7], documents[7:]], pa.binary()), ("a",), kind)
    pairs = list(zip(found.rows.tolist(), found.values.to_pylist(), strict=True))
    assert pairs == one_by_one(documents, ("a",), kind)


def test_elements_of_arrays_stay_in_their_order():
    documents = [b'{"a":[{"b":[1,[2,3]]},{"b":4},{"b":null},5,[{"b":[]},{"b":"x"}]]}', b"{}", b'[{"a":{"b":6}},[7]]']
    found = extract_values(pa.array(documents), ("a", "b"), VALUE_TYPES["long"])
    assert found.values.to_pylist() == [1, 2, 3, 4, None, 6]
    assert found.rows.tolist() == [0, 0, 0, 0, 0, 2]
    assert found.misfits.to_pylist() == [None, None, None, None, '"x"', None]


def test_values_that_fit_are_read_without_python(monkeypatch):
    monkeypatch.setattr(paths, "parse_written_json", None)
    documents = [json.dumps({"n": n, "tags": [{"name": f"t{n}"}, {"name": "all"}]}).encode() for n in range(500)]
    found = extract_values(pa.array(documents), ("tags", "name"), VALUE_TYPES["string"])
    assert len(found.values) == 1000
    assert found.rows.tolist()[:4] == [0, 0, 1, 1]


KIND_TABLE = [
    ("string", "x", "x"),
    ("string", "", ""),
    ("string", 5, None),
    ("double", 7, 7.0),
    pytest.param("double", 10**400, None, id="huge"),
    ("double", 2**53, 2.0**53),
    ("double", 2**53 + 1, None),
    ("double", 2**53 + 2, 2.0**53 + 2),
    ("double", -(2**63) + 1, None),
    ("double", 10**22, 1e22),
    ("double", 10**23, None),
    ("double", True, None),
    ("long", 7.0, None),
    ("long", BEYOND_LONG, None),
    ("long", False, None),
    ("boolean", False, False),
    ("boolean", 0, None),
    ("timestamp", "2010-07-22 20:00:20", datetime(2010, 7, 22, 20, 0, 20, tzinfo=UTC)),
    ("timestamp", "2010-07-22T20:00:20+02:00", datetime(2010, 7, 22, 18, 0, 20, tzinfo=UTC)),
    ("timestamp", "yesterday", None),
    ("timestamp", "20100722T200020", datetime(2010, 7, 22, 20, 0, 20, tzinfo=UTC)),
    ("date", "2010-07-22", date(2010, 7, 22)),
    ("date", "2010-07-22T20:00:20", None),
    ("timestamp", 5, None),
    ("decimal(4, 2)", 7, Decimal(7)),
    ("decimal(4, 2)", 0.1, Decimal("0.1")),
    ("decimal(4, 2)", 1e1, Decimal(10)),
    ("decimal(4, 2)", 0.125, None),
    ("decimal(4, 2)", 100, None),
    ("decimal(4, 2)", "7", Decimal(7)),
    ("decimal(4, 2)", "seven", None),
    ("decimal(4, 2)", True, None),
    ("decimal(38, 0)", 10**38 - 1, Decimal(10**38 - 1)),
]


@pytest.mark.parametrize(("name", "value", "wanted"), KIND_TABLE)
def test_values_fit_their_type(name, value, wanted):
    found = extract_values(pa.array([json.dumps({"a": [value]}).encode()] * 40), ("a",), find_value_type(name))
    assert found.values.to_pylist() == [wanted] * 40
    assert found.misfits.to_pylist() == [None if wanted is not None else json.dumps(value)[:100]] * 40


@pytest.mark.parametrize("count", [1, 400])
@pytest.mark.parametrize(
    ("written", "held"),
    [
        ("9007199254740993", None),
        ("9007199254740994", 2.0**53 + 2),
        ("-0.0", 0.0),
        ("0e-400", 0.0),
        ("1e-400", None),
        ("-1.5E-0400", None),
        ("1e-300", 1e-300),
    ],
)
def test_a_double_is_never_another_number(written, held, count):
    """A whole number that was rounded is a misfit, whichever parser reads it, as in the columns of views."""
    documents = pa.array([b'{"a":1.5}'] * count + [f'{{"a":{written}}}'.encode()])
    found = extract_values(documents, ("a",), VALUE_TYPES["double"])
    assert found.values.to_pylist() == [1.5] * count + [held]
    assert found.misfits.to_pylist() == [None] * count + [written if held is None else None]
    columns, rest = json_columns.parse(documents, json_columns.from_ddl("a DOUBLE"))
    assert columns.field("a").to_pylist() == [1.5] * count + [held]
    assert rest.to_pylist() == [None] * count + [None if held is not None else f'{{"a":{written}}}']


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("double", 9007199254740993),
        ("double", 2**63 - 1),
        ("double", 10**400),
        ("double", float("nan")),
        ("double", "5"),
        ("long", 2**63),
        ("long", 5.0),
        ("long", True),
        ("decimal(4, 2)", Decimal("0.125")),
        ("decimal(4, 2)", 0.5),
        ("date", "2026-02-30"),
        ("date", datetime(2026, 1, 1, tzinfo=UTC)),
        ("timestamp", 5),
        ("string", 5),
    ],
)
def test_bounds_that_the_type_does_not_hold_are_refused(name, bound):
    kind = find_value_type(name)
    with pytest.raises(UsageError, match=r"the bound is .*; expected a"):
        kind.convert_bound(bound, "the bound")


@pytest.mark.parametrize("text", ["9007199254740993", "1e400", "nan", "١٢", "1_0"])
def test_typed_bounds_that_a_double_does_not_hold_are_refused(text):
    kind = find_value_type("double")
    with pytest.raises(UsageError, match=f"the bound is '?{text}'?; expected a double"):
        kind.convert_bound(kind.parse_text(text), "the bound")


def test_negative_zero_becomes_zero():
    found = extract_values(pa.array([b'{"a":-0.0}'] * 40), ("a",), VALUE_TYPES["double"])
    assert {math.copysign(1, value) for value in found.values.to_pylist()} == {1.0}


@pytest.mark.parametrize(
    ("text", "names"), [("a", ("a",)), ("a.b c.d", ("a", "b c", "d")), ("`a.b`.c", ("a.b", "c")), ("_.ä", ("_", "ä"))]
)
def test_paths_are_parsed(text, names):
    assert parse_path(text) == names


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a[0]", "`a", "``", "a`b`", "a\0b", "a.`\0`", "\ud800"])
def test_invalid_paths_are_refused(text):
    with pytest.raises(UsageError, match="expected names joined by dots"):
        parse_path(text)


def test_unknown_type_is_refused():
    with pytest.raises(UsageError, match=r"the type is 'number'; expected one of string, double.*, decimal\(p, s\)"):
        find_value_type("number")
    assert find_value_type("DECIMAL( 12,2)").name == "decimal(12, 2)"
    for name in ("decimal(39, 2)", "decimal(0, 0)", "decimal(2, 3)"):
        with pytest.raises(UsageError, match="expected 1 to 38 digits, not more of them after the point"):
            find_value_type(name)
