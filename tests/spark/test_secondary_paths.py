"""Values by a JSON path: whole chunks give what one document at a time gives."""

import json
import math
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.spark.dependents import json_paths as paths
from penstock.spark.dependents.json_paths import extract, parse_path, reached, read_json
from penstock.spark.dependents.value_types import KINDS, value_type_of

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
            document = read_json(text.replace(b"\n", b" "))
        except (ValueError, AttributeError):
            continue
        found += [(row, kind.fit(value)) for value in reached(document, names)]
    return found


@given(st.lists(TEXTS | st.none(), max_size=60), st.sampled_from(["a", "a.b", "b.a.a"]), st.sampled_from(sorted(KINDS)))
def test_chunks_give_what_single_documents_give(documents, path, name):
    names, kind = parse_path(path), KINDS[name]
    found = extract(pa.array(documents, pa.binary()), names, kind)
    assert list(zip(found.rows.tolist(), found.values.to_pylist(), strict=True)) == one_by_one(documents, names, kind)
    assert found.misfits.is_valid().equals(found.values.is_null())


@given(st.lists(DOCUMENTS, min_size=1, max_size=10), st.sampled_from(sorted(KINDS)), st.data())
def test_rows_that_are_alike_are_read_together_to_the_same_end(samples, name, data):
    rows = data.draw(st.lists(st.sampled_from(samples), min_size=20, max_size=200))
    documents = [json.dumps(document).encode() for document in rows]
    found = extract(pa.chunked_array([documents[:7], documents[7:]], pa.binary()), ("a",), KINDS[name])
    pairs = list(zip(found.rows.tolist(), found.values.to_pylist(), strict=True))
    assert pairs == one_by_one(documents, ("a",), KINDS[name])


def test_what_is_alike_is_read_by_arrow(monkeypatch):
    monkeypatch.setattr(paths._Chunk, "_single", None)
    documents = [json.dumps({"n": n, "tags": [{"name": f"t{n}"}, {"name": "all"}]}).encode() for n in range(500)]
    found = extract(pa.array(documents), ("tags", "name"), KINDS["string"])
    assert len(found.values) == 1000
    assert found.rows.tolist()[:4] == [0, 0, 1, 1]


KIND_TABLE = [
    ("string", "x", "x"),
    ("string", "", ""),
    ("string", 5, None),
    ("double", 7, 7.0),
    pytest.param("double", 10**400, None, id="huge"),
    ("double", True, None),
    ("long", 7.0, None),
    ("long", BEYOND_LONG, None),
    ("long", False, None),
    ("boolean", False, False),
    ("boolean", 0, None),
    ("timestamp", "2010-07-22 20:00:20", datetime(2010, 7, 22, 20, 0, 20, tzinfo=UTC)),
    ("timestamp", "2010-07-22T20:00:20+02:00", datetime(2010, 7, 22, 18, 0, 20, tzinfo=UTC)),
    ("timestamp", "yesterday", None),
    ("timestamp", 5, None),
]


@pytest.mark.parametrize(("name", "value", "wanted"), KIND_TABLE)
def test_what_fits_a_type(name, value, wanted):
    found = extract(pa.array([json.dumps({"a": [value]}).encode()] * 40), ("a",), KINDS[name])
    assert found.values.to_pylist() == [wanted] * 40
    assert found.misfits.to_pylist() == [None if wanted is not None else json.dumps(value)[:100]] * 40


def test_zero_has_no_sign():
    found = extract(pa.array([b'{"a":-0.0}'] * 40), ("a",), KINDS["double"])
    assert {math.copysign(1, value) for value in found.values.to_pylist()} == {1.0}


@pytest.mark.parametrize(
    ("text", "names"), [("a", ("a",)), ("a.b c.d", ("a", "b c", "d")), ("`a.b`.c", ("a.b", "c")), ("_.ä", ("_", "ä"))]
)
def test_paths(text, names):
    assert parse_path(text) == names


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a[0]", "`a", "``", "a`b`"])
def test_bad_paths(text):
    with pytest.raises(UsageError, match="expected names joined by dots"):
        parse_path(text)


def test_bad_type():
    with pytest.raises(UsageError, match="the type is 'number'; expected one of string, double"):
        value_type_of("number")
