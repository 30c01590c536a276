import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StatusError
from penstock.store.subdoc.text import is_deeper, read_text
from penstock.wire.constants import Status
from penstock.wire.json_value import detect_json

JSON = [
    *(b"{}", b"[]", b" {} ", b"\t\n\r [ ]", b"1", b"-0", b"1e5", b"1.5E-3", b'"a"', b"null", b"true", b"false"),
    *(b'"\\ud800"', b'"\\u0000\\/"', '"ü𝄞"'.encode(), b"9" * 5000, b"1." + b"9" * 5000, b"1e99999", b'{"":[{}]}'),
    b'{"a":1,"a":2}',
]
NO_JSON = [
    *(b"", b" ", b"{", b"}", b"[1,]", b'{"a":1,}', b"[1 2]", b'{"a" 1}', b"{a:1}", b"{'a':1}", b"[,1]", b"{1:2}"),
    *(b"01", b"1.", b".5", b"1e", b"+1", b"--1", b"0x1", b"1_0", b"NaN", b"[Infinity]", b"-Infinity", b"[NaN]"),
    *(b"nul", b"True", b"tru", b'"', b'"a', b'"\n"', b'"\x00"', b'"\\x"', b'"\\u12"', b"{}{}", b"{} x", b"//\n{}"),
    *(b"\xff", b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf{}", b"\x00", b"{}\x00", b"\x0b1", b"\xa01"),
    *('"a"'.encode("utf-16"), "[\uff11]".encode(), "[1]\u2028".encode()),
]


@pytest.mark.parametrize("document", JSON)
def test_what_is_json(document: bytes) -> None:
    assert read_text(document).encode() == document
    assert detect_json(document)


@pytest.mark.parametrize("document", NO_JSON)
def test_what_is_no_json(document: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        read_text(document)
    assert caught.value.status == Status.SUBDOC_DOC_NOTJSON
    assert not detect_json(document)


@pytest.mark.parametrize(
    "document",
    [
        b"[" * 33 + b"]" * 33,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 33 + b"1" + b"}" * 33,
        b'[[[],{}],"]]\\"]",' + b"[" * 32 + b"]" * 33,
    ],
)
def test_a_document_that_is_too_deep(document: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        read_text(document)
    assert caught.value.status == Status.SUBDOC_DOC_E2DEEP


@pytest.mark.parametrize(
    "document", [b"[" * 32 + b"1" + b"]" * 32, b'["' + b"[" * 99 + b'"]', b'["\\"' + b"{" * 99 + b'","\\\\",[[]]]']
)
def test_a_document_that_is_not_too_deep(document: bytes) -> None:
    assert read_text(document).encode() == document


def levels(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(levels, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(levels, value), default=0)
    return 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{}\\"a', max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[{"\\', max_size=2), inner, max_size=3),
    max_leaves=30,
)


@given(VALUES, st.integers(0, 6))
def test_how_deep_it_is(value: object, limit: int) -> None:
    assert is_deeper(json.dumps(value), limit) == (levels(value) > limit)


@given(st.binary(max_size=20) | st.text('[]{}",:1 \\en-.', max_size=20).map(str.encode))
def test_any_bytes_are_json_as_for_the_standard_library(document: bytes) -> None:
    try:
        json.loads(document.decode(), parse_constant=int)  # which none of them is
        expected = True
    except ValueError:
        expected = False
    assert bool(detect_json(document)) == expected
