"""One notion of a document in all readers: each reads the same documents, and finds the same field in them.

A new reader is a row of READERS, a new document a row of a table.
"""

import io
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.cli.base.json_lines import LoadedDocument, read_documents
from penstock.client.dumps.json_changes import read_json_lines, write_json_rows
from penstock.client.filters.value_filter import FilterDocument, ValueFilter
from penstock.errors import UsageError
from penstock.spark import Lake
from penstock.spark.dependents.dependent import catch_up
from penstock.spark.dependents.json_paths import extract_values
from penstock.spark.dependents.kafka.document_events import DocumentEvent, DocumentVersion, EventOperation
from penstock.spark.dependents.kafka.envelope import EventEncoder
from penstock.spark.dependents.kinds.fulltext import FullText, extract_text
from penstock.spark.dependents.kinds.secondary_index import SecondaryIndex
from penstock.spark.dependents.value_types import VALUE_TYPES
from penstock.spark.lake.current.document_table import LoadStamp
from penstock.spark.lake.current.table_shape import TableShape
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.pipeline.run.changelog_rows import select_matches
from penstock.spark.tables.inference import collect_values
from penstock.spark.tables.json_columns import from_ddl, infer, parse, to_ddl
from penstock.spark.values.typed_documents import ColumnRule, DocumentParser
from penstock.store.subdoc import scan
from penstock.store.subdoc.text import count_levels
from penstock.wire.codec import native
from penstock.wire.columns.run_decoder import make_batch
from penstock.wire.columns.schema import Change
from penstock.wire.values.json_value import (
    MAX_LEVELS,
    detect_json,
    parse_json,
    parse_written_json,
    read_members,
)
from tests.spark.lakes import append, row


def keep(field: str) -> bytes:
    """Return a document with the field s, and another field in JSON."""
    return b'{"a":0,%s,"s":"keep"}' % field.encode("utf-8", "surrogatepass")


def nest(levels: int, opening: str = "[", closing: str = "]") -> str:
    """Return text that makes the document of `keep` so many levels deep."""
    return '"x":' + opening * (levels - 1) + "1" + closing * (levels - 1)


DOCUMENTS = {
    "plain": keep('"x":1'),
    "beyond a double": keep('"x":1e400'),
    "beyond a double, negative": keep('"x":-1E+999'),
    "near zero": keep('"x":1e-400'),
    "huge exponent": keep('"x":1e99999999999999999999'),
    "integer beyond 64 bits": keep('"x":123456789012345678901234567890'),
    "integer of 400 digits": keep('"x":1' + "0" * 400),
    "integer of 5,000 digits": keep('"x":-' + "9" * 5000),
    "fraction of 5,000 digits": keep('"x":0.' + "9" * 5000),
    "minus zero": keep('"x":[-0,-0.0,-0e1]'),
    "capital exponent": keep('"x":1E5'),
    "numbers in text": keep('"x":["NaN","Infinity",": NaN",",-Inf"]'),
    "half a pair": keep('"x":"\\ud800"'),
    "half a pair, capitals": keep('"x":["\\uDFFF \\udc00\\ud800"]'),
    "half a pair in a name": keep('"\\ud800":1'),
    "escaped pair": keep('"x":"\\ud83d\\ude00"'),
    "zero in text": keep('"x":"a\\u0000b"'),
    "zero in a name": keep('"s\\u0000t":1'),
    "names that a zero makes equal": keep('"x":1,"x\\u0000y":2'),
    "empty name": keep('"":1'),
    "empty name within": keep('"o":{"":{"":1}}'),
    "names in two cases": keep('"S":1,"A":2,"o":{"n":1,"N":"x"}'),
    "names with signs": keep('"a.b":1,"`":2,"a b":3,"\\n":4,"\\"":5,"s`":6,"s,":7'),
    "names of the reader": keep('"_rest":1,"_change":2,"key":3,"d":4,"c0":5'),
    "long name": keep('"' + "n" * 70_000 + '":1'),
    "repeated other name": keep('"x":1,"x":"text","x":null'),
    "repeated name": b'{"s":"other","s":1,"s":"keep"}',
    "escaped name": b'{"\\u0073":"keep"}',
    "repeated name, once escaped": b'{"s":"other","\\u0073":"keep"}',
    "null beside": keep('"x":null'),
    "line separators": keep('"x":"\u2028\u2029\x7f\ufeff"'),
    "not characters": keep('"x":"\ufffe\U0010ffff"'),
    "escapes": keep('"x":"\\/\\b\\f\\n\\r\\t\\\\"'),
    "huge text": keep('"x":"' + "é" * 100_000 + '"'),
    "brackets in text": keep('"x":"' + "[" * 2000 + '"'),
    "many elements": keep('"x":[' + ",".join(['{"y":[]}'] * 2000) + "]"),
    "500 levels": keep(nest(500)),
    "most levels": keep(nest(MAX_LEVELS)),
    "most levels, objects": keep(nest(MAX_LEVELS, '{"y":', "}")),
    "most levels, text in it": keep('"y":"' + "]" * 2000 + '",' + nest(MAX_LEVELS)),
    "white space": b' \t\r\n{ "s" \n:\r"keep"\t}\n ',
    "line ends": b'{\n"a":[\n1,\n2],\n"s":\n"keep"\n}\n',
}
"""Documents whose field s is "keep"."""

OTHER_JSON = {
    "number": b"1",
    "number beyond a double": b"-1e999",
    "integer of 5,000 digits": b"7" * 5000,
    "text": b'"keep"',
    "half a pair": b'"\\ud800"',
    "true": b" true ",
    "null": b"null",
    "no field": b"{}",
    "no element": b"[]",
    "array": b'["keep",["s","keep"]]',
    "other field": b'{"S":"keep"}',
    "field with a zero": b'{"s\\u0000":"keep"}',
    "field null": b'{"s":"keep","s":null}',
    "within": b'{"o":{"s":"keep"}}',
}
"""JSON whose field s is not "keep"."""

NOT_JSON = {
    "empty": b"",
    "blank": b" \n",
    "words": b"no document",
    "bytes": bytes(range(256)),
    "brackets in bytes": b"\x89" + b"[" * 5000,
    "byte order mark": b"\xef\xbb\xbf" + keep('"x":1'),
    "UTF-16": keep('"x":1').decode().encode("utf-16"),
    "not UTF-8": b'{"s":"keep","x":"\xff"}',
    "not UTF-8, name": b'{"s":"keep","\xc3":1}',
    "surrogate in UTF-8": b'{"s":"keep","x":"\xed\xa0\x80"}',
    "overlong UTF-8": b'{"s":"keep","x":"\xc0\x80"}',
    "not UTF-8, beside half a pair": b'{"s":"keep","y":"\\ud800","x":"\xff"}',
    **{
        field: keep(field)
        for field in (
            *('"x":NaN', '"x":Infinity', '"x":-Infinity', '"x":[-Inf]', '"x":nan', '"x":+1', '"x":01', '"x":-01'),
            *('"x":1.', '"x":.5', '"x":1e', '"x":1e+', '"x":-', '"x":0x1', '"x":1_0', '"x":\uff11', '"x":1 2'),
            *('"x":nul', '"x":True', '"x":"\t"', '"x":"\0"', '"x":"\\x41"', '"x":"\\u12"', '"x":"\\ud80"', "\"x\":'y'"),
            *(
                '"x":"\\ud800\\u"',
                '"x":[1,]',
                '"x":[,1]',
                '"x":{"y"}',
                '"x":{y:1}',
                '"x":[1}',
                '"x":',
                '"x"',
                ",",
                "x:1",
            ),
            *('"x":1 /*y*/', '"x":1//y\n', '"x":\u00a01', '"x":\x0c1', '"x"::1'),
        )
    },
    "comma at the end": b'{"s":"keep",}',
    "string without an end": b"[" * 2000 + b'"' + b'\\"' * 200_000,
    "not closed": b'{"s":"keep"',
    "closed twice": b'{"s":"keep"}}',
    "two documents": b'{"s":"keep"}{"s":"keep"}',
    "two lines": b'{"s":"keep"}\n{"s":"keep"}',
    "zero at the end": b'{"s":"keep"}\0',
    "comma behind": b'{"s":"keep"},',
    "line of a batch": b'1}{"d":{"s":"keep"}',
}
"""Values that are not JSON."""

TOO_DEEP = {
    "one level more": keep(nest(MAX_LEVELS + 1)),
    "one level more, objects": keep(nest(MAX_LEVELS + 1, '{"y":', "}")),
    "one level more, text in it": keep('"y":"' + "]" * 2000 + '",' + nest(MAX_LEVELS + 1)),
    "10,000 levels": keep(nest(10_000)),
    "100,000 levels": keep(nest(100_000)),
    "array": b"[" * 100_000 + b"]" * 100_000,
    "half a pair": keep('"y":"\\ud800",' + nest(MAX_LEVELS + 1)),
}
"""JSON with more levels than any reader reads."""


# The readers: which of some values are JSON, or have "keep" in the field s


def to_array(values: Sequence[bytes]) -> pa.Array:
    return pa.array(values, pa.binary())


def find_in_columns(values: Sequence[bytes]) -> list[bool]:
    columns, rest = parse(to_array(values), from_ddl("s STRING"))
    for value, is_object, left in zip(values, columns.is_valid().to_pylist(), rest.to_pylist(), strict=True):
        if not is_object and detect_json(value):  # a value without fields is in the rest
            assert left.encode() == value
    return [found == "keep" for found in columns.field("s").to_pylist()]


def find_in_documents(values: Sequence[bytes]) -> list[bool]:
    found = DocumentParser([ColumnRule("s", pa.string())]).parse(to_array(values))
    for value, is_object in zip(values, found.objects.to_pylist(), strict=True):
        assert is_object == (read_members(value) is not None)
    return [each == "keep" for each in found.columns["s"].to_pylist()]


def detect_objects_by_members(values: Sequence[bytes]) -> list[bool]:
    return [read_members(value) is not None for value in values]


def detect_objects_by_columns(values: Sequence[bytes]) -> list[bool]:
    columns, _ = parse(to_array(values), from_ddl("x BIGINT"))
    return list(columns.is_valid().to_pylist())


def detect_objects_by_inference(values: Sequence[bytes]) -> list[bool]:
    return [collect_values([value]).counts["object"] == 1 for value in values]


def find_in_document_rows(values: Sequence[bytes]) -> list[bool]:
    """Find the field without the extension module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "extension", None)
        return find_in_documents(values)


def find_in_inferred(values: Sequence[bytes]) -> list[bool]:
    """Find the field in columns whose schema is inferred from these values, and goes through DDL."""
    schema = infer(to_array([b'{"s":"text"}', *values]))
    assert from_ddl(to_ddl(schema)) == schema
    columns, _ = parse(to_array(values), schema)
    return [found == "keep" for found in columns.field("s").to_pylist()]


def find_in_index(values: Sequence[bytes]) -> list[bool]:
    found = extract_values(to_array(values), ("s",), VALUE_TYPES["string"])
    kept = {row for row, value in zip(found.rows.tolist(), found.values.to_pylist(), strict=True) if value == "keep"}
    return [row in kept for row in range(len(values))]


def find_in_filter(values: Sequence[bytes]) -> list[bool]:
    found = ValueFilter("s = 'keep'").match_documents([FilterDocument(value) for value in values])
    return list(found.matches.tolist())


def find_in_text(values: Sequence[bytes]) -> list[bool]:
    return [extract_text(value, [("s",)]) == "keep" for value in values]


def find_in_members(values: Sequence[bytes]) -> list[bool]:
    found = [read_members(value) for value in values]
    return [{each.name: each.value for each in members or ()}.get("s") == "keep" for members in found]


def find_after_load(values: Sequence[bytes]) -> list[bool]:
    """Find the field in the documents that `penstock load` stores. A line that is refused has none."""
    lines = [b'{"id":"k","doc":%s}' % value.replace(b"\n", b" ") for value in values]
    read = read_documents(lines, "id", "doc")
    return find_in_members([each.value if isinstance(each, LoadedDocument) else b"" for each in read])


def detect_as_loader(values: Sequence[bytes]) -> list[bool]:
    lines = [b'{"id":"k","doc":%s}' % value.replace(b"\n", b" ") for value in values]
    return [isinstance(each, LoadedDocument) for each in read_documents(lines, "id", "doc")]


STAMP = LoadStamp(at=0, batch=1)


def find_in_typed_table(values: Sequence[bytes]) -> list[bool]:
    """Find the field in the rows of a typed table, whose `_rest` has all other values."""
    shape = TableShape(name="t", fields=from_ddl("s STRING"))
    changes = [row(1, seqno + 1, b"k%d" % seqno, value) for seqno, value in enumerate(values)]
    rows = shape.to_rows(pa.Table.from_pylist(changes, MERGE_SCHEMA), STAMP).sort_by("_seqno").to_pylist()
    for value, each in zip(values, rows, strict=True):
        assert each["_rest"] is not None or read_members(value) is not None
    return [each["s"] == "keep" for each in rows]


def find_in_attributes(values: Sequence[bytes]) -> list[bool]:
    """Find the field in an extended attribute by a filter."""
    documents = [FilterDocument(b"{}", xattrs=[("x", value)]) for value in values]
    return list(ValueFilter("META().xattrs.x.s = 'keep'").match_documents(documents).matches.tolist())


def find_in_dump(values: Sequence[bytes]) -> list[bool]:
    """Find the field in documents that were dumped to JSON lines and restored."""
    changes = [Change(1, 1, seqno + 1, key=b"k%d" % seqno, value=value) for seqno, value in enumerate(values)]
    written = io.BytesIO(write_json_rows(make_batch(changes)))
    return find_in_members(
        [value for batch, _ in read_json_lines(written, "dump") for value in batch["value"].to_pylist()]
    )


def detect_as_sub_document(values: Sequence[bytes]) -> list[bool]:
    """Return which values have levels for a sub-document command, which then refuses more than 32 of them."""
    return [0 <= count_levels(value) <= MAX_LEVELS for value in values]


def detect_as_sub_document_in_python(values: Sequence[bytes]) -> list[bool]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(7 * MAX_LEVELS)  # with that of Python, the levels of a deep document are not measured
    try:
        return [0 <= scan.locate(value, ())[0] <= MAX_LEVELS for value in values]
    finally:
        sys.setrecursionlimit(limit)


def detect_as_node(values: Sequence[bytes]) -> list[bool]:
    return [bool(detect_json(value)) for value in values]


def detect_as_parser(values: Sequence[bytes]) -> list[bool]:
    return [parses(parse_json, value) for value in values]


def detect_as_exact_parser(values: Sequence[bytes]) -> list[bool]:
    return [parses(parse_written_json, value) for value in values]


def parses(parser: Callable[[bytes], Any], value: bytes) -> bool:
    try:
        parser(value)
    except ValueError:
        return False
    return True


def detect_as_kafka(values: Sequence[bytes]) -> list[bool]:
    """Return which values are JSON in the record of a Kafka sink; others are base64."""
    found = []
    for value in values:
        nothing: dict[str, Any] = dict.fromkeys(DocumentVersion._fields)
        known = {"vbucket": 0, "event": "mutation", "key": b"k", "value": value, "collection_id": 0, "history": 0}
        event = DocumentEvent(EventOperation.CREATE, DocumentVersion(**{**nothing, **known}))
        record = EventEncoder("sink", "beer").encode(event, 0)
        after = record.partition(b'"after":{"key":"k",')[2]
        found.append(after.startswith(b'"value":' + value))
        assert found[-1] or after.startswith(b'"value_base64":')
    return found


class Reader(NamedTuple):
    """A reader.

    Attributes:
        read: returns the answer for each value.
        question: whether the value is JSON, whether it is an object, or whether its field s is "keep".
    """

    read: Callable[[Sequence[bytes]], list[bool]]
    question: Literal["JSON", "object", "field"]


READERS = {
    "node": Reader(detect_as_node, "JSON"),
    "parser": Reader(detect_as_parser, "JSON"),
    "exact parser": Reader(detect_as_exact_parser, "JSON"),
    "kafka": Reader(detect_as_kafka, "JSON"),
    "loader": Reader(detect_as_loader, "JSON"),
    "sub-document": Reader(detect_as_sub_document, "JSON"),
    "sub-document, Python": Reader(detect_as_sub_document_in_python, "JSON"),
    "members of objects": Reader(detect_objects_by_members, "object"),
    "objects of columns": Reader(detect_objects_by_columns, "object"),
    "objects of inference": Reader(detect_objects_by_inference, "object"),
    "members": Reader(find_in_members, "field"),
    "filter": Reader(find_in_filter, "field"),
    "columns": Reader(find_in_columns, "field"),
    "documents": Reader(find_in_documents, "field"),
    "document rows": Reader(find_in_document_rows, "field"),
    "inferred columns": Reader(find_in_inferred, "field"),
    "index": Reader(find_in_index, "field"),
    "full text": Reader(find_in_text, "field"),
    "loaded document": Reader(find_after_load, "field"),
    "restored document": Reader(find_in_dump, "field"),
    "attribute": Reader(find_in_attributes, "field"),
    "typed table": Reader(find_in_typed_table, "field"),
}

TABLES = {"documents": DOCUMENTS, "other JSON": OTHER_JSON, "not JSON": NOT_JSON, "too deep": TOO_DEEP}
PLAIN = [b'{"s":"keep","n":%d}' % number for number in range(100)]

each_reader = pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())


def expect(table: str, value: bytes, reader: Reader) -> bool:
    """Return the right answer of a reader for a value of a table."""
    if table != "other JSON" or reader.question == "field":
        return table == "documents"
    return reader.question == "JSON" or value.startswith(b"{")


@each_reader
@pytest.mark.parametrize("table", TABLES)
def test_readers_agree_on_each_document(table: str, reader: Reader) -> None:
    wrong = [name for name, value in TABLES[table].items() if reader.read([value]) != [expect(table, value, reader)]]
    assert wrong == []


@each_reader
@pytest.mark.parametrize("table", TABLES)
def test_odd_documents_change_nothing_for_others(table: str, reader: Reader) -> None:
    """Among many plain documents, which whole batches are made of."""
    odd = list(TABLES[table].values())
    found = reader.read([*PLAIN, *odd, *PLAIN])
    assert found[: len(PLAIN)] == found[-len(PLAIN) :] == [True] * len(PLAIN)
    assert found[len(PLAIN) : -len(PLAIN)] == [expect(table, value, reader) for value in odd]


@each_reader
def test_levels_do_not_depend_on_the_stack(reader: Reader) -> None:
    def call(frames: int) -> list[bool]:
        return call(frames - 1) if frames else reader.read([DOCUMENTS["most levels"], TOO_DEEP["one level more"]])

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        assert call(700) == [True, False]
    finally:
        sys.setrecursionlimit(limit)


# One odd field


class OddField(NamedTuple):
    """A field that is odd.

    Attributes:
        written: its JSON.
        kind: the type of its column.
        reason: the reason of a filter.
    """

    written: str
    kind: str
    reason: str


ODD_FIELDS = [
    *(
        OddField(written, "double", "n is a number beyond the range of a double")
        for written in ("1e400", "-1e999", "9" * 400, "1" + "0" * 5000, "1e99999999999999999999")
    ),
    *(
        OddField(written, "string", "n is a text with half a surrogate pair")
        for written in ('"\\ud800"', '"a \\uDC00 b"', '"\\udc00\\ud800"')
    ),
]
each_odd_field = pytest.mark.parametrize("odd", ODD_FIELDS, ids=lambda odd: odd.written[:20])
crowds = pytest.mark.parametrize("crowd", [0, 100])


def write_odd(odd: OddField) -> bytes:
    return b'{"s":"keep","n":%s}' % odd.written.encode()


@crowds
@each_odd_field
def test_odd_field_is_null_in_its_column_and_in_the_rest(odd: OddField, crowd: int) -> None:
    values = [*PLAIN[:crowd], write_odd(odd), *PLAIN[:crowd]]
    columns, rest = parse(to_array(values), from_ddl(f"s STRING, n {odd.kind.upper()}"))
    assert columns[crowd].as_py() == {"s": "keep", "n": None}
    assert rest[crowd].as_py() == f'{{"n":{odd.written}}}'


TYPES = [
    "BOOLEAN",
    "TINYINT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "STRING",
    "DATE",
    "TIMESTAMP",
    "DECIMAL(38, 2)",
    "DECIMAL(1, 1)",
]


@crowds
@pytest.mark.parametrize("kind", [*TYPES, "ARRAY<DECIMAL(38, 10)>", "STRUCT<y: STRING>", "ARRAY<STRUCT<y: DOUBLE>>"])
def test_columns_of_any_type_leave_other_fields_alone(kind: str, crowd: int) -> None:
    values = [*PLAIN[:crowd], *DOCUMENTS.values(), *PLAIN[:crowd]]
    columns, rest = parse(to_array(values), from_ddl(f"x {kind}, s STRING"))
    assert set(columns.field("s").to_pylist()) == {"keep"}
    for value, found, left in zip(values, columns.field("x").to_pylist(), rest.to_pylist(), strict=True):
        last = {each.name: each for each in read_members(value) or ()}
        if "x" in last and last["x"].value is not None and found is None:
            assert last["x"].written in left


@crowds
@each_odd_field
def test_odd_field_is_a_misfit_of_its_index(odd: OddField, crowd: int) -> None:
    values = [*PLAIN[:crowd], write_odd(odd), *PLAIN[:crowd]]
    found = extract_values(to_array(values), ("n",), VALUE_TYPES[odd.kind])
    place = found.rows.tolist().index(crowd)
    assert found.values[place].as_py() is None
    if odd.kind == "double":
        assert found.misfits[place].as_py() == odd.written[:100]


@crowds
def test_document_that_is_too_deep_is_a_misfit_of_an_index(crowd: int) -> None:
    deep = TOO_DEEP["one level more"]
    found = extract_values(to_array([*PLAIN[:crowd], deep]), ("s",), VALUE_TYPES["string"])
    assert (found.rows[-1], found.values[-1].as_py(), found.misfits[-1].as_py()) == (crowd, None, deep[:100].decode())


@each_odd_field
def test_filter_that_names_an_odd_field_cannot_read_the_document(odd: OddField) -> None:
    documents = [FilterDocument(write_odd(odd)), FilterDocument(b'{"s":"keep","n":null}')]
    for text in (
        "n = 1",
        "n != 'x'",
        "NOT n > 1",
        "s = 'keep' AND n = 1",
        "REGEXP_CONTAINS(n, 'a')",
        "s = 'x' OR n = 1",
    ):
        found = ValueFilter(text).match_documents(documents)
        assert (found.matches[0], found.unreadable) == (False, {0: odd.reason}), text
    for text in ("s = 'keep'", "s = 'keep' OR n = 1", "EXISTS(n)", "n IS NOT MISSING", "NOT (s = 'x' AND n = 1)"):
        found = ValueFilter(text).match_documents(documents)
        assert (found.matches[0], found.unreadable) == (True, {}), text
    for text in ("s = 'x'", "s = 'x' AND n = 1", "NOT (s = 'keep' OR n = 1)"):
        found = ValueFilter(text).match_documents(documents)
        assert (found.matches[0], found.unreadable) == (False, {}), text


def test_filter_cannot_read_a_document_that_is_too_deep() -> None:
    deep = FilterDocument(TOO_DEEP["one level more"], b"k")
    found = ValueFilter("EXISTS(s)").match_documents([deep])
    assert (found.matches.tolist(), found.unreadable) == ([False], {0: "it has more than 1000 levels"})
    found = ValueFilter("s = 'keep' OR META().id = 'k'").match_documents([deep])
    assert (found.matches.tolist(), found.unreadable) == ([True], {})
    attribute = FilterDocument(b"{}", xattrs=[("owner", TOO_DEEP["array"])])
    found = ValueFilter("META().xattrs.owner.name = 'me'").match_documents([attribute])
    assert found.unreadable == {0: "it has more than 1000 levels"}


def test_text_beside_half_a_pair_is_found() -> None:
    assert extract_text(b'{"a":"one \\ud800 two","b":[["three"]]}', [()]).split() == [
        *("one", "?", "two"),
        *("\ue000", "three"),
    ]


# Names


@pytest.mark.parametrize("crowd", [1, 100])
def test_names_that_no_column_can_have_stay_in_the_rest(crowd: int) -> None:
    odd = [
        b'{"a":1,"a\\u0000b":2}',
        b'{"a":2,"":{"b":1}}',
        b'{"a":3,"\\udc00":1}',
        b'{"a":4,"A":"other type","o":{"N":1,"n":2,"":3}}',
    ]
    values = to_array(odd * crowd)
    schema = infer(values)
    assert to_ddl(schema) == "`a` BIGINT, `o` STRUCT<N: BIGINT>"
    assert from_ddl(to_ddl(schema)) == schema
    columns, rest = parse(values, schema)
    assert columns.field("a").to_pylist() == [1, 2, 3, 4] * crowd
    assert (
        rest.to_pylist()
        == [*('{"a\\u0000b":2}', '{"":{"b":1}}', '{"\\udc00":1}', '{"A":"other type","o":{"n":2,"":3}}')] * crowd
    )


@pytest.mark.parametrize("times", [1, 100])
def test_most_frequent_of_names_that_differ_in_case_is_the_column(times: int) -> None:
    """One odd document does not take the column of all others."""
    odd = b'{"Name":1,"o":[{"N":"x"}],"x":1e400}'
    usual = [b'{"name":"x","o":[{"n":1}]}', b'{"name":"y","o":[{"n":2},{"n":3}]}']
    for values in ([odd, *usual * times], [*usual * times, odd], [*usual * times, odd, *usual * times]):
        schema = infer(to_array(values))
        assert {"`name` STRING", "`o` ARRAY<STRUCT<n: BIGINT>>"} <= set(to_ddl(schema).split(", "))
        _, rest = parse(to_array([odd]), schema)
        assert json.loads(rest[0].as_py()).keys() >= {"Name", "o"}


NAMES = ["a.b", "`", "``x`", "a b", " ", "\n", '"', "ä\u2028", "n" * 70_000, ":", "STRUCT<", "1"]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:10]))
def test_names_survive_ddl(name: str) -> None:
    document = json.dumps({name: 1, "o": {name: ["x"]}}).encode()
    schema = infer(to_array([document]))
    assert from_ddl(to_ddl(schema)) == schema
    columns, rest = parse(to_array([document]), schema)
    assert (columns.to_pylist(), rest.to_pylist()) == ([json.loads(document)], [None])


@pytest.mark.parametrize("ddl", ["`` INT", "`a\0b` INT", "a STRUCT<`\ud800`: INT>"])
def test_schema_with_a_name_that_no_column_can_have_is_refused(ddl: str) -> None:
    with pytest.raises(UsageError, match="was expected"):
        from_ddl(ddl)


@pytest.mark.spark
def test_condition_of_a_pipeline_reads_each_document(spark: SparkSession) -> None:
    """With fields that are inferred from all values, odd ones included."""
    values = [value for table in TABLES.values() for value in table.values()]
    changes = [Change(1, 1, seqno + 1, key=b"k%d" % seqno, value=value) for seqno, value in enumerate(values)]
    frame = spark.createDataFrame(pa.Table.from_batches([make_batch(changes)]))
    fields = to_ddl(infer(to_array(values)))
    found = select_matches(frame, "s = 'keep' AND _change.key IS NOT NULL AND _change_ IS DISTINCT FROM 3", fields)
    assert sorted(row["value"] for row in found.collect()) == sorted(DOCUMENTS.values())


@pytest.mark.spark
def test_odd_documents_end_neither_views_nor_indexes_of_a_lake(lake: Lake, spark: SparkSession) -> None:
    values = {f"{table} {name}": value for table in TABLES for name, value in TABLES[table].items()}
    append(
        lake,
        0,
        [row(number % 8, number + 1, name.encode(), value) for number, (name, value) in enumerate(values.items())],
    )
    expected = {f"documents {name}" for name in DOCUMENTS}

    def find_kept(rows: pa.Table) -> set[str]:
        assert rows.num_rows == len(values)
        return {
            name for name, kept in zip(rows["key"].to_pylist(), rows["s"].to_pylist(), strict=True) if kept == "keep"
        }

    assert find_kept(lake.json_view()) == expected
    assert find_kept(lake.json_frame(spark).toArrow()) == expected
    lake.create_tables(spark, "odd")
    assert find_kept(spark.sql("SELECT * FROM odd_json").toArrow()) == expected
    index, words = SecondaryIndex(lake, "by_s", "s", "string"), FullText(lake, "words", ["s"])
    for each in (index, words):
        catch_up(each, lake)
    assert set(index.lookup("keep")["key"].to_pylist()) == expected
    assert set(words.search("keep", limit=1000)["key"].to_pylist()) == expected
    misfits = {name for name in index.misfits()["key"].to_pylist() if name.startswith("too deep")}
    assert misfits == {f"too deep {name}" for name in TOO_DEEP}


# Any values

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("so\0.", max_size=2), inner, max_size=3),
    max_leaves=8,
)
WRITTEN = st.builds(
    lambda value, escaped, edits: edit(json.dumps(value, ensure_ascii=escaped).encode("utf-8", "replace"), edits),
    JSON_VALUES | st.fixed_dictionaries({"s": JSON_VALUES | st.just("keep")}),
    st.booleans(),
    st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from([b"", b",", b"}", b"[", b"e999", b"\\ud800", b"\xff", b'"'])),
        max_size=2,
    ),
)


def edit(text: bytes, edits: list[tuple[int, bytes]]) -> bytes:
    for at, inserted in edits:
        text = text[:at] + inserted + text[at + (not inserted) :]
    return text


@given(st.lists(WRITTEN, max_size=4))
def test_readers_agree_on_any_values(values: list[bytes]) -> None:
    for question in ("JSON", "object", "field"):
        found = {name: each.read([*PLAIN, *values]) for name, each in READERS.items() if each.question == question}
        if question == "field":  # at an array, the paths of indexes and full text continue in its elements
            values = [value for value in values if not value.lstrip().startswith(b"[")]
            texts = [found.pop("full text"), found.pop("index")]
            assert len(texts) == 2
        assert len({tuple(each) for each in found.values()}) == 1, found
