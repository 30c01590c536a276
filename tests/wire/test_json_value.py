"""Which values count as JSON. tests/store/subdoc/test_text.py holds it to the standard library's decoder as well."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.codec.flags import Datatype
from penstock.wire.values.json_value import detect_json

JSON_TEXTS = [
    *(
        b"1",
        b" 1",
        b"1 ",
        b"\n\t 1\r\n",
        b"-0",
        b"1e5",
        b"1E+5",
        b"1e400",
        b"-1e-400",
        b"9" * 5000,
        b"0." + b"9" * 5000,
    ),
    *(b'"x"', b'""', b"true", b"false", b"null", b"{}", b"[]", b'{"a":1,"a":2}', b'["\\u0000\\/\\b", "\x7f"]'),
    *('"é"'.encode(), '"😀"'.encode(), b'"\\ud83d\\ude00"', '"\u2028"'.encode()),
    # Half a pair, also escaped in capitals, twice, as a name, and behind an escaped backslash.
    *(b'"\\ud800"', b'"\\uDFFF"', b'"\\udc00\\ud800"', b'{"\\ud800":1}', b'"\\\\\\ud800"', b'"\\\\ud800"'),
    *(b"[" * 500 + b"]" * 500, b'{"a":' * 500 + b"1" + b"}" * 500),
]
OTHER_VALUES = [
    *(
        b"",
        b" ",
        b"text",
        b"nul",
        b"nullx",
        b"True",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"-",
        b"+1",
        b"01",
        b"1.",
        b".5",
    ),
    *(
        b"1e",
        b"0x1",
        b"1x",
        b"1 2",
        b"1,2",
        b"{}{}",
        b"[1]]",
        b"[1,]",
        b'{"a":1,}',
        b"{a:1}",
        b"{'a':1}",
        b"[",
        b'{"a"',
    ),
    *(b'"', b'"a', b'"\n"', b'"\x1f"', b'"\\x41"', b'"\\u12"', b'"\\ud80"', b'"\\ud800', b"/*c*/1", b"[1//\n]"),
    *(
        b"\x00",
        b"\x001",
        b"1\x00",
        b'"a\x00b"',
        b"{}\x00",
        b"\x0c1",
        b"\xa01",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
    ),
    # Not UTF-8: lone bytes, overlong forms, halves of a pair, above the last code point, and cut.
    *(b'"\xff"', b'"\x80"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xc3"', b'"\\ud800\xff"'),
    # Deeper than the interpreter allows, closed or not; and behind half a pair.
    *(b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000, b'["\\ud800",' + b"[" * 100_000 + b"]" * 100_001),
]


@pytest.mark.parametrize("value", JSON_TEXTS)
def test_json_texts(value: bytes) -> None:
    assert detect_json(value) == Datatype.JSON


@pytest.mark.parametrize("value", OTHER_VALUES)
def test_other_values(value: bytes) -> None:
    assert detect_json(value) == 0


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(ANYTHING, st.booleans(), st.sampled_from([None, 1]), st.data())
def test_json_without_its_last_bracket_is_not_json(
    thing: object, escaped: bool, indent: int | None, data: st.DataObject
) -> None:
    value = json.dumps(thing, ensure_ascii=escaped, indent=indent).encode("utf-8", "replace")
    assert detect_json(value) == Datatype.JSON
    if value[-1] in b'"]}':
        end = data.draw(st.integers(0, len(value) - 1))
        assert detect_json(value[:end]) == 0
