"""JSON values as typed columns: compared with a model that reads single values, and with hostile and odd values."""

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.spark.tables.json_columns import (
    differences,
    evolution,
    from_ddl,
    infer,
    parse,
    to_ddl,
)
from penstock.wire.values.json_value import NUMBER
from tests.examples import scaled

# The model reads whole values with json.loads, and returns the list_parts that do not fit as a value.

TIMESTAMP, DATE = pa.timestamp("us", "UTC"), pa.date32()
CROWD = 64
"""Other values beside the one that a test is about."""


def at(*units: int) -> datetime:
    return datetime(*units, tzinfo=UTC)  # type: ignore[arg-type, misc]


TIMES = {
    "2026-01-01": at(2026, 1, 1),
    "0001-01-01T00:00Z": at(1, 1, 1),
    "0001-01-01T00:00+00:01": None,
    "0000-01-01T00:00:00": None,
    "1582-10-10T00:00:00": at(1582, 10, 10),
    "9999-12-31T23:59:59.999999Z": at(9999, 12, 31, 23, 59, 59, 999999),
    "9999-12-31T23:59:59-00:01": None,
    "2026-11-28T09:30:00.25+01:00": at(2026, 11, 28, 8, 30, 0, 250_000),
    "2026-11-28 09:30:00": at(2026, 11, 28, 9, 30),
    "2026-11-28T09:30:00.123456789Z": None,
    "2026-11-28T09:30:00.123456000Z": at(2026, 11, 28, 9, 30, 0, 123_456),
    "2026-11-28T09:30:00-0330": at(2026, 11, 28, 13),
    "2026-11-28T09:30+18": at(2026, 11, 27, 15, 30),
    "2026-11-28T09:30:00+18:01": None,
    "2026-11-28T09:30:00+01:60": None,
    "2026-11-28T23:59:60Z": None,
    "2026-11-28T24:00:00": None,
    "2026-11-28T09": None,
    "2026-11-28T09:30:00.": None,
    "2026-11-28T09:30:00z": at(2026, 11, 28, 9, 30),
    "2026-11-28Z": None,
    "2026-02-29": None,
    "20261128": at(2026, 11, 28),
    " 2026-11-28": None,
    "1.5": None,
    "-3": None,
}
"""Texts with their times."""
DATES = {"2026-01-01": date(2026, 1, 1), "20261128": date(2026, 11, 28)}

LIMITS = {pa.int8(): 2**7, pa.int16(): 2**15, pa.int32(): 2**31, pa.int64(): 2**63}
NOTHING = object()


def split_value(value: Any, of: pa.DataType) -> tuple[Any, Any]:
    """Return the part of a value that fits the type, and the rest; the rest is NOTHING if the whole value fits."""
    if value is None:
        return None, NOTHING
    if isinstance(of, pa.StructType) and isinstance(value, dict):
        found, left = {}, {}
        for name in dict.fromkeys([*value, *(field.name for field in of)]):
            inside = value.get(name)
            if of.get_field_index(name) >= 0:
                found[name], remains = split_value(inside, of.field(name).type)
            else:
                remains = NOTHING if inside is None else inside
            if remains is not NOTHING:
                left[name] = remains
        return found, left or NOTHING
    if isinstance(of, pa.ListType) and isinstance(value, list):
        elements = [split_value(element, of.value_type) for element in value]
        whole = all(remains is NOTHING for _, remains in elements)
        return [found for found, _ in elements], NOTHING if whole else value
    if isinstance(of, pa.Decimal128Type):
        is_number = NUMBER.fullmatch(str(value)) and not isinstance(value, bool | list | dict)
        number = Fraction(str(value)) * 10**of.scale if is_number else None
        fits = number is not None and number.denominator == 1 and abs(number) < 10**of.precision
        value = Decimal(str(value)) if fits else value
    elif of in (TIMESTAMP, DATE):
        known = (TIMES if of == TIMESTAMP else DATES).get(value) if isinstance(value, str) else None
        fits, value = known is not None, value if known is None else known
    elif isinstance(value, bool) or of == pa.bool_():
        fits = isinstance(value, bool) and of == pa.bool_()
    elif isinstance(value, int):
        exact = abs(value) < 2**1000 and of == pa.float64() and int(float(value)) == value
        value = float(value) if exact else value
        fits = exact or (of in LIMITS and -LIMITS[of] <= value < LIMITS[of])
    elif isinstance(value, float):
        fits = of == pa.float64()
    else:
        fits = isinstance(value, str) and of == pa.string()
    return (value, NOTHING) if fits else (None, value)


NAMES = st.sampled_from(["a", "b", "Ä", 'q"`', ""])
NUMBERS = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**70, 10**40, 10**400]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.5, -0.25, 1e22, 1e37, 1e40, 99.5, 10**37, 10**38]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=3), st.sampled_from([*TIMES]))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=5)
PLAIN_TYPES = st.sampled_from(
    [pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.float64(), pa.string(), TIMESTAMP, DATE]
    + [pa.decimal128(precision, scale) for precision, scale in ((3, 1), (38, 0), (38, 19), (2, 2))]
)


def structs(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.dictionaries(NAMES, of, max_size=4)
    return fields.map(lambda found: pa.struct(list(found.items())))


TYPES = st.recursive(PLAIN_TYPES, lambda inner: inner.map(pa.list_) | structs(inner), max_leaves=4)
SCHEMAS = structs(TYPES)
GARBAGE = st.sampled_from(
    [b"", b"17", b"null", b"[1]", b'"text"', b"{", b'{"a":1', b'{"a":1}}', b'{"a":1}{"a":2}', b'{"a":1},"d":{"b":2}',
     b'{}}{"d":{}', b"{}}\0", b'{"a":NaN}', b'{"a":Infinity}', b'{"a":"\xff"}', b"\xff\xfe", b'{"a":01}', b'{"a":"\n"}',
     b"{'a':1}", b'{"a":1,}', b'{"a":1} x', b'\xef\xbb\xbf{"a":1}', b'{"a":"\\ud800"}', b'{"\\udfff":1}',
     b'{"a":1,"a":2}', b'{"z":[{"a":1,"a":2}]}', b'{"a":{"b":1,"b":true}}', b'{"a":1e999}', b'{"a":-0,"b":1e-999}',
     b' {\n"a" :\t1 , "b":[ ] }\r\n', b'{"a":"\\u0031"}', b'{"a": "1.5","b":[".5"]}', b'{"a":1E+70,"b":-1e-2}',
     b'{"a":123456789012345678901234567890123456789012345678901234567890}',
     b'{"a":1.50000000000000000000000000000000000000}']
)  # fmt: skip


def texts(rest: pa.StringArray) -> list[Any]:
    return [NOTHING if text is None else json.loads(text) for text in rest.to_pylist()]


@given(SCHEMAS, st.lists(DOCUMENTS, max_size=4), st.booleans())
@settings(max_examples=scaled(200))
def test_values_are_divided_into_columns_and_rest(of, documents, escaped):
    values = pa.array([json.dumps(each, ensure_ascii=escaped).encode() for each in documents], pa.binary())
    columns, rest = parse(values, of)
    found = [split_value(each, of) for each in documents]
    assert columns.type == of
    assert columns.equals(pa.array([fits for fits, _ in found], of))
    assert texts(rest) == [left for _, left in found]
    columns.validate(full=True)


def write_scalar(value: date | Decimal) -> Any:
    return float(value) if isinstance(value, Decimal) else str(value)


@given(SCHEMAS, st.lists(DOCUMENTS, min_size=1, max_size=4), st.lists(GARBAGE | st.none(), max_size=3), st.randoms())
@settings(max_examples=scaled(100))
def test_a_value_does_not_change_its_neighbours(of, documents, odd, chance):
    """Each value gives the same result in any batch."""
    written = [json.dumps(each).encode() for each in documents]
    known = [json.dumps(split_value(each, of)[0], default=write_scalar).encode() for each in documents]
    values: list[bytes | None] = [*written, *odd]
    values += [chance.choice(known if chance.random() < 0.9 else written) for _ in range(2 * CROWD + 3)]
    chance.shuffle(values)
    batch = pa.array(values, pa.binary())
    columns, rest = parse(batch, of)
    alone = [parse(batch.slice(at, CROWD), of) for at in range(0, len(batch), CROWD)]
    assert columns.equals(pa.concat_arrays([each for each, _ in alone]))
    assert rest.equals(pa.concat_arrays([each for _, each in alone]))
    columns.validate(full=True)
    rest.validate(full=True)


@given(GARBAGE | st.binary(max_size=12), SCHEMAS)
def test_any_bytes_are_parsed_or_kept_as_rest(value, of):
    """A value that is not an object for the json module is completely in the rest."""
    columns, rest = parse(pa.array([value], pa.binary()), of)
    text = rest[0].as_py()
    try:
        document = json.loads(value.decode(), parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        document = None
    if not isinstance(document, dict):
        assert columns[0].as_py() is None
        try:
            assert text == value.decode()
        except UnicodeDecodeError:
            assert base64.b64decode(json.loads(text)["_binary"]) == value


T = at(2026, 11, 28, 8, 30)
ODD = [
    (b'{"a":1,"a":2}', {"a": 2}, '{"a":1}'),
    (b'{"a":1,"a":null}', {"a": None}, '{"a":1}'),
    (b'{"n":"5"}', {}, '{"n":"5"}'),
    (b'{"n":1.0}', {}, '{"n":1.0}'),
    (b'{"n":9223372036854775808}', {}, '{"n":9223372036854775808}'),
    (b'{"f":9007199254740993}', {}, '{"f":9007199254740993}'),
    (b'{"f":9007199254740994}', {"f": 9007199254740994.0}, None),
    (b'{"f":3,"n":-0}', {"f": 3.0, "n": 0}, None),
    (b'{"f":1e999}', {}, '{"f":1e999}'),
    (b'{"s":"\\ud83c\\udf7a \\u0000"}', {"s": "\U0001f37a \0"}, None),
    (b'{"s":"\\ud83c"}', {}, '{"s":"\\ud83c"}'),
    (b'{"o":{"x":1,"y":{"deep":[1, 2]}}}', {"o": {"x": 1}}, '{"o":{"y":{"deep":[1, 2]}}}'),
    (b'{"o":7}', {}, '{"o":7}'),
    (b'{"o":{}, "l":[]}', {"o": {"x": None}, "l": []}, None),
    (b'{"l":[1,"two",null,3]}', {"l": [1, None, None, 3]}, '{"l":[1,"two",null,3]}'),
    (b'{"unknown": 1.10, "n": 1, "void": null}', {"n": 1}, '{"unknown":1.10}'),
    (b"{}", {}, None),
    (b"3", None, "3"),
    (b"null", None, "null"),
    (b"\xff", None, '{"_binary": "/w=="}'),
    (b'{"d":12345678901234567.89,"t":"2026-11-28T09:30+01:00"}', {"d": Decimal("12345678901234567.89"), "t": T}, None),
    (
        b'{"d":1.5e2,"y":["2026-11-28","soon"]}',
        {"d": Decimal(150), "y": [T.date(), None]},
        '{"y":["2026-11-28","soon"]}',
    ),
    (b'{"d":0.005,"t":1764322200}', {}, '{"d":0.005,"t":1764322200}'),
    (b'{"d":"1.5","t":"2026-11-28T09:30Z soon"}', {"d": Decimal("1.5")}, '{"t":"2026-11-28T09:30Z soon"}'),
    (b'{"d":"1.5 ","f":0.10}', {"f": 0.1}, '{"d":"1.5 "}'),
    (b'{"f":0.10000000000000001}', {}, '{"f":0.10000000000000001}'),
    (b'{"d":-0,"t":"2026-11-28"}', {"d": Decimal(0), "t": at(2026, 11, 28)}, None),
    (b'{"d":1e999999999999999999999}', {}, '{"d":1e999999999999999999999}'),
    (None, None, None),
]
ODD_SCHEMA = (
    "a BIGINT, n BIGINT, f DOUBLE, s STRING, o STRUCT<x: BIGINT>, l ARRAY<BIGINT>,"
    " d DECIMAL(20, 2), t TIMESTAMP, y ARRAY<DATE>"
)


@pytest.mark.parametrize(("value", "document", "rest"), ODD)
@pytest.mark.parametrize("crowd", [0, 3 * CROWD])
def test_odd_values(value, document, rest, crowd):
    schema = from_ddl(ODD_SCHEMA)
    columns, left = parse(pa.array([*([b'{"n":1}'] * crowd), value], pa.binary()), schema)
    expected = None if document is None else dict.fromkeys(schema.names) | document
    assert columns[-1].as_py() == expected
    assert [columns.field(name)[-1].as_py() for name in schema.names] == [
        (expected or {}).get(name) for name in schema.names
    ]
    assert left[-1].as_py() == rest
    assert left.null_count >= crowd


def test_deep_and_large_values_are_read():
    deep = [opening * 100_000 + b"1" + closing * 100_000 for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"))]
    within = b'{"a":' + deep[0] + b"}"
    large = json.dumps({"s": "x" * 17_000_000, "n": 1}).encode()
    many = json.dumps({"l": list(range(100_000)), "unknown": [{}] * 5000}).encode()
    values = pa.array([*deep, within, large, many] + [b'{"n":1}'] * 200, pa.binary())
    columns, rest = parse(values, from_ddl(ODD_SCHEMA))
    assert rest.to_pylist()[:4] == [*(each.decode() for each in (*deep, within)), None]
    assert columns[3]["n"].as_py() == 1
    assert len(columns[4]["l"].as_py()) == 100_000
    assert len(json.loads(rest[4].as_py())["unknown"]) == 5000
    assert rest.null_count == 201
    assert to_ddl(infer(values)) == "`s` STRING, `n` BIGINT, `l` ARRAY<BIGINT>"


@pytest.mark.parametrize(("levels", "is_read"), [(998, True), (999, False)])
@pytest.mark.parametrize("crowd", [0, 3 * CROWD])
def test_the_number_of_levels_is_fixed(levels, is_read, crowd):
    """The limit is 1000 in every batch and every stack; two of these levels are objects."""
    value = b'{"o":{"x":1,"y":' + b"[" * levels + b'"[\\"{"' + b"]" * levels + b"}}"
    values = pa.array([b'{"n":1}'] * crowd + [value], pa.binary())

    def parse_below(frames: int) -> list[Any]:
        if frames:
            return parse_below(frames - 1)
        columns, rest = parse(values, from_ddl(ODD_SCHEMA))
        return [columns.field("o")[-1].as_py(), rest[-1].as_py()]

    rest = value.decode().replace('"x":1,', "") if is_read else value.decode()
    for frames in (0, 700):
        assert parse_below(frames) == [{"x": 1} if is_read else None, rest]


@given(st.lists(DOCUMENTS, max_size=5), st.integers(1, 3))
@settings(max_examples=scaled(100))
def test_inferred_schemas_depend_on_the_objects_alone(documents, times):
    values: list[bytes | None] = [json.dumps(each).encode() for each in documents]
    known = infer(pa.array(values, pa.binary()))
    assert infer(pa.array([None, b"17", *values * times, b"{", b"[{}]"], pa.binary())) == known
    assert from_ddl(to_ddl(known)) == known if len(known) else not to_ddl(known)


INFERRED = [
    ([b'{"a":1}', b'{"a":1.5}'], "`a` DOUBLE"),
    ([b'{"a":1}', b'{"a":"x"}'], "`a` STRING"),
    ([b'{"a":{"x":1}}', b'{"a":{"y":true}}'], "`a` STRUCT<x: BIGINT, y: BOOLEAN>"),
    ([b'{"a":[]}', b'{"a":[{"x":null}]}', b'{"a":[{"x":"2026-01-01"}]}'], "`a` ARRAY<STRUCT<x: STRING>>"),
    ([b'{"a":[1]}', b'{"a":{"x":1}}'], "`a` STRUCT<x: BIGINT>"),
    ([b'{"a":1}', b'{"a":"x"}', b'{"a":2}'], "`a` BIGINT"),
    ([b'{"a":9223372036854775808}'], "`a` DECIMAL(38, 0)"),
    ([b'{"a":1,"A":1}', b'{"A":"x"}', b'{"A":"y","o":{"n":1,"N":"x"}}'], "`A` STRING, `o` STRUCT<n: BIGINT>"),
    ([b'{"b":null,"c":{},"d":[]}', b"17", b"{", None], ""),
    ([], ""),
]


@pytest.mark.parametrize(("values", "ddl"), INFERRED)
@pytest.mark.parametrize("times", [1, CROWD])
def test_schemas_are_inferred(values, ddl, times):
    assert to_ddl(infer(pa.array(values * times, pa.binary()))) == ddl


def test_evolution_lists_new_fields_and_conflicts():
    known = from_ddl(
        "name STRING, abv DOUBLE, n INT, o STRUCT<x: BIGINT>, l ARRAY<STRUCT<p: BIGINT>>,"
        " t ARRAY<BIGINT>, m ARRAY<STRING>, at TIMESTAMP, on DATE, price DECIMAL(4, 2)"
    )
    values = pa.array(
        [
            b'{"name":"a","abv":5,"o":{"x":1,"y":"new"},"l":[{"p":1,"q":2.5}],"tags":["x"]}',
            b'{"name":17,"abv":"strong","n":3000000000,"t":[1,"2"],"m":["a",1],"o":null,"void":null,'
            b'"at":"soon","on":7,"price":0.125}',
            b"no document",
            None,
        ],
        pa.binary(),
    )
    found = evolution(known, values)
    assert set(found.new_fields) == {"o.y STRING", "l[].q DOUBLE", "tags ARRAY<STRING>"}
    assert set(found.conflicts) == {
        "name is STRING, found BIGINT",
        "abv is DOUBLE, found STRING",
        "n is INT, found BIGINT",
        "t[] is BIGINT, found STRING",
        "m is ARRAY<STRING>, found values that it cannot hold",
        "at is TIMESTAMP, found values that it cannot hold",
        "on is DATE, found BIGINT",
        "price is DECIMAL(4, 2), found values that it cannot hold",
    }
    assert set(differences(known, found.schema)) == {
        "o.y STRING is new",
        "l[].q DOUBLE is new",
        "tags ARRAY<STRING> is new",
    }
    _, rest = parse(values, known)
    assert evolution(known, rest) == found
    again = evolution(found.schema, values)
    assert not again.new_fields
    assert set(again.conflicts) == set(found.conflicts)
    assert evolution(known, pa.array([b'{"name":"b","n":1}', None])) == (type(found)(known))


@given(SCHEMAS, SCHEMAS)
def test_differences_are_empty_only_for_equal_schemas(a, b):
    old, new = pa.schema(a), pa.schema(b)
    assert differences(old, old) == []
    same = sorted(str(field) for field in old) == sorted(str(field) for field in new)
    if same and not any(pa.types.is_nested(field.type) for field in old):
        assert differences(old, new) == []
    if {field.name for field in old} != {field.name for field in new}:
        assert differences(old, new)


def test_differences_are_described_in_words():
    old = from_ddl("a BIGINT, b STRING, o STRUCT<x: BIGINT, y: STRING>, l ARRAY<BIGINT>")
    new = from_ddl("b STRING, a DOUBLE, o STRUCT<x: STRING>, l ARRAY<STRING>, n BOOLEAN")
    assert differences(old, new) == [
        "a was BIGINT and is DOUBLE",
        "o.x was BIGINT and is STRING",
        "o.y was removed",
        "l[] was BIGINT and is STRING",
        "n BOOLEAN is new",
    ]


@given(SCHEMAS)
def test_ddl_round_trips(of):
    schema = pa.schema(of)
    if len(of) and "" not in names_in(of):
        assert from_ddl(to_ddl(schema)) == schema


def names_in(of: Any) -> list[str]:
    if isinstance(of, pa.ListType):
        return names_in(of.value_type)
    return [name for field in of for name in (field.name, *names_in(field.type))] if pa.types.is_struct(of) else []


def test_ddl_is_read_as_people_write_it():
    text = "`odd ``name` long COMMENT 'it''s', b: Array<struct<`x y`:int,\n z STRING>>, c real,"
    text += "d dec(5 ,2), e decimal, f timestamp,"
    with pytest.raises(UsageError, match="name"):
        from_ddl(text)
    expected = pa.schema(
        [
            ("odd `name", pa.int64()),
            ("b", pa.list_(pa.struct([("x y", pa.int32()), ("z", pa.string())]))),
            ("c", pa.float32()),
            ("d", pa.decimal128(5, 2)),
            ("e", pa.decimal128(10, 0)),
            ("f", TIMESTAMP),
        ]
    )
    assert from_ddl(text.removesuffix(",").replace("''", "")) == expected


BAD_DDL = [
    ("", "empty"),
    ("a", "the end"),
    ("a BIGINT NOT NULL", "'NOT'"),
    ("a DECIMAL(39)", "has '39' where 1 to 38 digits of a decimal was expected"),
    ("a DECIMAL(5,6)", "has '6' where 0 to 5 digits behind the point was expected"),
    ("a DECIMAL(5,-1)", "has '-' where 0 to 5 digits"),
    ("a DECIMAL(5,2", "the end"),
    ("a TIMESTAMP_NTZ", "has 'TIMESTAMP_NTZ' where BOOLEAN, .*, TIMESTAMP, DATE, DECIMAL"),
    ("a MAP<STRING,STRING>", "MAP"),
    ("a ARRAY<BIGINT", "the end"),
    ("a STRUCT<x BIGINT> >", "'>'"),
    ("a BIGINT, a STRING", "once"),
    ("a BIGINT b STRING", "'b'"),
    ("; DROP", "';'"),
]


@pytest.mark.parametrize(("ddl", "message"), BAD_DDL)
def test_bad_ddl_is_refused(ddl, message):
    with pytest.raises(UsageError, match=message):
        from_ddl(ddl)


def test_type_that_json_does_not_have_is_refused():
    with pytest.raises(UsageError, match=r"when\.at\[\] is timestamp"):
        parse(pa.array([b"{}"]), pa.schema([("when", pa.struct([("at", pa.list_(pa.timestamp("s")))]))]))


def test_floats_of_32_bits():
    columns, rest = parse(
        pa.array([b'{"f":0.1}', b'{"f":16777217}', b'{"f":1e39}', b'{"f":16777218}'] * CROWD),
        from_ddl("f FLOAT"),
    )
    found = columns.field("f").to_pylist()[:4]
    assert math.isclose(found[0], 0.1, rel_tol=1e-6)
    assert found[1:] == [None, None, 16777218.0]
    assert rest.to_pylist()[:4] == [None, '{"f":16777217}', '{"f":1e39}', None]
