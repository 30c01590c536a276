"""How a line of a file becomes a document, byte for byte, and the errors of lines without a document."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.base.json_lines import BadLine, LoadedDocument, open_input, read_documents, read_keys
from penstock.errors import UsageError
from penstock.text_files import LineReader

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def stored(lines, key="id", value=None) -> list[LoadedDocument]:
    """Return the documents of lines that all have one."""
    found = list(read_documents(lines, key, value))
    assert not [bad for bad in found if isinstance(bad, BadLine)]
    return [document for document in found if isinstance(document, LoadedDocument)]


@given(VALUES, st.booleans(), st.sampled_from([None, (",", ":"), (" , ", " : ")]))
def test_a_value_is_stored_as_compact_json_in_utf8(value, ascii_only, separators):
    line = json.dumps({"id": "k", "doc": value}, ensure_ascii=ascii_only, separators=separators).encode()
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    assert stored([line + b"\n"], "id", "doc") == [LoadedDocument(b"k", compact, 1)]


EXACT = [
    (b"7.2", b"7.2"),
    (b"0.0", b"0.0"),
    (b"-0.0", b"-0.0"),
    (b"-0", b"-0"),
    (b"1E5", b"1E5"),
    (b"1e2", b"1e2"),
    (b"100.10", b"100.10"),
    (b"1e-400", b"1e-400"),
    (b"1e400", b"1e400"),
    (b"12345678901234567.89", b"12345678901234567.89"),
    (b"123456789012345678901234567890", b"123456789012345678901234567890"),
    (b"9" * 5000, b"9" * 5000),
    (b'[ 1.10 , {"a\\u0031": 0.12345678901234567 }]', b'[1.10,{"a1":0.12345678901234567}]'),
    (b'[ "1.10 \\"  2.0" ]', b'["1.10 \\"  2.0"]'),
    (b'"K\\u00f6lsch"', "\"Kölsch\"".encode()),
    (b'"\\ud83c\\udf7a"', "\"🍺\"".encode()),
    (b'"a\\/b\\u007f\\u2028"', '"a/b\x7f\u2028"'.encode()),
    (b'"\\u0000\\n\\"\\\\"', b'"\\u0000\\n\\"\\\\"'),
    (b'{"b": 1, "a": 2, "b": 3}', b'{"b":1,"a":2,"b":3}'),
    (b'{ "a" : "\\udc7a \\u0041" , "\\ud800" : "\\u0041 b" }', b'{"a":"\\udc7a \\u0041","\\ud800":"A b"}'),
    (b"[" * 999 + b" 1 " + b"]" * 999, b"[" * 999 + b"1" + b"]" * 999),
]  # fmt: skip


@pytest.mark.parametrize(("written", "kept"), EXACT)
def test_values_keep_their_meaning(written, kept):
    (document,) = stored([b'{"id": "k", "doc": ' + written + b"}"], "id", "doc")
    assert document.value == kept


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?", fullmatch=True)


@given(st.lists(st.tuples(TEXT, NUMBERS), max_size=5), st.booleans(), st.sampled_from(["", " ", "\t "]))
def test_numbers_and_repeated_fields_stay_as_they_are_written(members, ascii_only, space):
    written = [f"{json.dumps(name, ensure_ascii=ascii_only)}{space}:{space}{number}" for name, number in members]
    kept = [f"{json.dumps(name, ensure_ascii=False)}:{number}" for name, number in members]
    line = f'{{"the key":"k",{space}"doc":{{{f"{space},".join(written)}}}{space}}}'.encode()
    (document,) = stored([line], "the key", "doc")
    assert document.value.decode() == f"{{{','.join(kept)}}}"
    (whole,) = stored([line], "the key")
    assert whole.value.decode() == f'{{"the key":"k","doc":{{{",".join(kept)}}}}}'


def test_half_a_surrogate_pair_in_a_field_that_is_not_stored_is_no_error():
    line = b'{"id": "k", "doc": 1.50, "other": "\\ud800"}'
    assert stored([line], "id", "doc") == [LoadedDocument(b"k", b"1.50", 1)]


def test_whole_numbers_as_keys_keep_their_digits():
    lines = [b'{"id": 12345678901234567890123}', b'{"id": -5}']
    assert [each.key for each in stored(lines)] == [b"12345678901234567890123", b"-5"]
    assert list(read_keys([b'{"key": 7, "value": 1.0}'], "key")) == [b"7"]


def test_whole_object_is_the_value_if_no_field_is_named():
    assert stored([b'{"n": 1, "id": "k"}']) == [LoadedDocument(b"k", b'{"n":1,"id":"k"}', 1)]


def test_blank_lines_are_counted_but_skipped():
    lines = [b"\n", b'{"id": "a"}\r\n', b"  \t\n", b'{"id": 7}']
    assert [(d.key, d.line) for d in stored(lines)] == [(b"a", 2), (b"7", 4)]


BAD = [
    (b"nonsense", "not JSON: Expecting value at column 1"),
    (b'{"id": "k"', "not JSON"),
    (b'{"id": "k"} {}', "not JSON: Extra data"),
    (b'"text"', "a string, expected an object with the field 'id'"),
    (b"[1]", "an array, expected an object"),
    (b"null", "null, expected an object"),
    (b"{}", "no field 'id'; there is none at all"),
    (b'{"key": "k"}', "no field 'id'; there is 'key'"),
    (b'{"id": "k"}', "no field 'doc'"),
    (b'{"id": null, "doc": 1}', "the key in 'id' is null, expected a string or a whole number"),
    (b'{"id": true, "doc": 1}', "the key in 'id' is true or false"),
    (b'{"id": 1.5, "doc": 1}', "the key in 'id' is a fraction"),
    (b'{"id": [], "doc": 1}', "the key in 'id' is an array"),
    (b'{"id": "", "doc": 1}', "a key of 0 bytes, expected 1 to 250"),
    (b'{"id": "%s", "doc": 1}' % (b"k" * 251), "a key of 251 bytes"),
    (b'{"id": "' + "ö".encode() * 126 + b'", "doc": 1}', "a key of 252 bytes"),
    (b'{"id": "\\ud800", "doc": 1}', "the key has half a surrogate pair (\\ud800), which UTF-8 cannot encode"),
    (b'{"id": "k", "doc": NaN}', "NaN is not JSON"),
    (b'{"id": "k", "doc": -Infinity}', "-Infinity is not JSON"),
    (b'{"id": "k", "doc": 1, "id": "j"}', "2 fields 'id', expected one"),
    (b'{"id": "k", "doc": 1, "i\\u0064": "j"}', "2 fields 'id', expected one"),
    (b'{"id": "k", "doc": 1, "doc": 1}', "2 fields 'doc', expected one"),
    (b'{"id": 1e2, "doc": 1}', "the key in 'id' is a fraction"),
    (b'{"id": %s, "doc": 1}' % (b"9" * 5000), "a key of 5000 bytes"),
    (b'{"id": "k", "doc": 01}', "not JSON: Expecting ',' delimiter at column 21"),
    (b'  {"id": "k", "doc"\n', "not JSON: Expecting ':' delimiter at column 20"),
    (b'{"id": "k", "doc": 1\r\n', "not JSON: Expecting ',' delimiter at column 21"),
    ('{"id": "ö", "doc": 1,}'.encode(), "at column 22"),
    (b'{"id": "k", "doc": 1}\xc2\xa0', "not JSON: Extra data at column 22"),
    (b'{"id": "k", "doc": "\xff"}', "byte 21 is not UTF-8"),
    (b'{"id": "k", "doc": ' + b"[" * 100_000, "nested too deeply"),
    (b'{"id": "k", "doc": ' + b"[" * 1001 + b"]" * 1001 + b"}", "nested too deeply"),
    (b'{"id": "k", "doc": "%s"}' % (b"x" * 20 * 1024 * 1024), "a document of 20971522 bytes, limit 20971520"),
]


@pytest.mark.parametrize(("line", "reason"), BAD, ids=[reason[:40] for _, reason in BAD])
def test_line_without_a_document_is_reported_with_its_number(line, reason):
    first, last = b'{"id": 1, "doc": 1}\n', b'{"id": 3, "doc": 3}\n'
    before, bad, behind = read_documents([first, line, last], "id", "doc")
    assert (before, behind) == (LoadedDocument(b"1", b"1", 1), LoadedDocument(b"3", b"3", 3))
    assert isinstance(bad, BadLine)
    assert bad.line == 2
    assert reason in bad.reason


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_are_a_document_or_a_bad_line(lines):
    for found in read_documents(lines, "id"):
        assert isinstance(found, LoadedDocument | BadLine)


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xef\xbb\xbf" * 2])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_byte_order_marks_of_joined_files_are_skipped(mark, end):
    files = [mark + b'{"id": "a"}' + end, mark, mark + b'{"id": "b\xe2\x80\xa8"}' + end + end + b'{"id": "c\xc2\x85"}']
    found = [*read_documents(LineReader(io.BytesIO(b"".join(files)), "file"), "id")]
    keys = [(each.key.decode(), each.line) for each in found if isinstance(each, LoadedDocument)]
    assert keys == [("a", 1), ("b\u2028", 2), ("c\x85", 4)]


def test_keys_are_strings_or_fields_of_objects():
    lines = [b'"a"', b'{"event": "mutation", "key": "b"}', b"", b"3"]
    *keys, bad = read_keys(lines, "key")
    assert keys == [b"a", b"b"]
    assert isinstance(bad, BadLine)


@pytest.mark.parametrize("name", ["", ".", "missing.jsonl", "a\0b", "x" * 300])
def test_name_of_no_file_is_wrong_usage(name, tmp_path):
    with pytest.raises(UsageError, match="expected a file of JSON lines"), open_input(str(tmp_path / name)):
        pass
