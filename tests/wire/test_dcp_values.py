"""The values inside keys, values and framing extras of DCP messages."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import (
    CachedDocument,
    ExtendedMeta,
    FrameInfo,
    XattrValue,
    pack_cached_documents,
    pack_extended_meta,
    pack_framing,
    pack_stream_id,
    pack_xattrs,
    split_extended_meta,
    split_xattrs,
    unpack_cached_documents,
    unpack_extended_meta,
    unpack_framing,
    unpack_stream_id,
    unpack_xattrs,
)
from penstock.wire.values.collection_key import pack_collection_id, split_collection_key
from tests.strategies import unsigned

Unpack = Callable[[bytes], Any]

CACHED = CachedDocument(b"\0key", b"value", cas=1, by_seqno=2, rev_seqno=3, flags=4, expiry=5, datatype=1, cache_hint=6)

GOLDEN: list[tuple[str, Unpack, Any, str]] = [
    ("no attributes, no body", unpack_xattrs, XattrValue({}, b""), "00000000"),
    ("no attributes", unpack_xattrs, XattrValue({}, b"{}"), "00000000 7b7d"),
    (
        "an attribute and a body",
        unpack_xattrs,
        XattrValue({"_a": b"1"}, b"{}"),
        "00000009 00000005 5f61 00 31 00 7b7d",
    ),
    (
        "two attributes, one with an empty value",
        unpack_xattrs,
        XattrValue({"_a": b"1", "u": b""}, b""),
        "00000010 00000005 5f61 00 31 00 00000003 75 00 00",
    ),
    ("meta data of no elements", unpack_extended_meta, ExtendedMeta(), "01"),
    (
        "meta data of both known types",
        unpack_extended_meta,
        ExtendedMeta(adjusted_time=-2, conflict_mode=1),
        "01 01 0008 fffffffffffffffe 02 0001 01",
    ),
    ("meta data of another type", unpack_extended_meta, ExtendedMeta(others=((9, b"abc"),)), "01 09 0003 616263"),
    ("no cached document", unpack_cached_documents, [], ""),
    (
        "a cached document",
        unpack_cached_documents,
        [CACHED],
        "0000000000000001 0000000000000002 0000000000000003 00000005 00000004 00000005 0004 01 06 006b6579 76616c7565",
    ),
    (
        "a cached key, and the shortest of all",
        unpack_cached_documents,
        [CACHED._replace(value=b""), CachedDocument(b"\x08k")],
        "0000000000000001 0000000000000002 0000000000000003 00000000 00000004 00000005 0004 01 06 006b6579"
        "0000000000000000 0000000000000000 0000000000000000 00000000 00000000 00000000 0002 00 00 086b",
    ),
    ("no framing extras", unpack_framing, (), ""),
    ("a barrier", unpack_framing, (FrameInfo(0),), "00"),
    ("durability", unpack_framing, (FrameInfo(1, b"\1"),), "11 01"),
    ("a stream id", unpack_framing, (FrameInfo(2, b"\x01\x02"),), "22 0102"),
    (
        "a stream id behind a user",
        unpack_framing,
        (FrameInfo(4, b"me"), FrameInfo(2, b"\0\1")),
        "42 6d65 22 0001",
    ),
    ("the highest id that needs no escape", unpack_framing, (FrameInfo(14),), "e0"),
    ("the lowest id that does", unpack_framing, (FrameInfo(15),), "f0 00"),
    ("the highest id", unpack_framing, (FrameInfo(270),), "f0 ff"),
    ("a length that needs an escape", unpack_framing, (FrameInfo(4, bytes(15)),), "4f 00" + "00" * 15),
    ("both escaped", unpack_framing, (FrameInfo(16, bytes(17)),), "ff 01 02" + "00" * 17),
    ("the default collection", split_collection_key, (0, b"key"), "00 6b6579"),
    ("a collection of one byte", split_collection_key, (0x7F, b""), "7f"),
    ("a collection of two bytes", split_collection_key, (0x80, b"k"), "8001 6b"),
    ("collection 0x555", split_collection_key, (0x555, b"k"), "d50a 6b"),
    ("collection 0xcafef00d", split_collection_key, (0xCAFEF00D, b"k"), "8de0fbd70c 6b"),
    ("the highest collection", split_collection_key, (0xFFFFFFFF, b"\xff"), "ffffffff0f ff"),
]

PACK: dict[Unpack, Callable[[Any], bytes]] = {
    unpack_xattrs: lambda found: pack_xattrs(*found),
    unpack_extended_meta: pack_extended_meta,
    unpack_cached_documents: pack_cached_documents,
    unpack_framing: pack_framing,
    split_collection_key: lambda found: pack_collection_id(found[0]) + found[1],
}


@pytest.mark.parametrize(("case", "unpack", "found", "hexadecimal"), GOLDEN, ids=[row[0] for row in GOLDEN])
def test_golden(case: str, unpack: Unpack, found: Any, hexadecimal: str) -> None:
    data = bytes.fromhex(hexadecimal)
    assert unpack(data) == found
    assert PACK[unpack](found) == data


NAMES = st.text(min_size=1, max_size=20).filter(lambda name: "\0" not in name and name.isprintable())
META = st.builds(
    ExtendedMeta,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | unsigned("B"),
    st.lists(st.tuples(st.integers(3, 255), st.binary(max_size=300)), max_size=4).map(tuple),
)
DOCUMENTS = st.builds(
    CachedDocument,
    st.binary(min_size=2, max_size=251),
    st.binary(max_size=300),
    *(unsigned("Q") for _ in range(3)),
    *(unsigned("I") for _ in range(2)),
    *(unsigned("B") for _ in range(2)),
)
VALUES: list[tuple[Unpack, st.SearchStrategy[Any]]] = [
    (unpack_xattrs, st.builds(XattrValue, st.dictionaries(NAMES, st.binary(max_size=300)), st.binary(max_size=300))),
    (unpack_extended_meta, META),
    (unpack_cached_documents, st.lists(DOCUMENTS, max_size=5)),
    (
        unpack_framing,
        st.lists(st.builds(FrameInfo, st.integers(0, 270), st.binary(max_size=270)), max_size=5).map(tuple),
    ),
    (split_collection_key, st.tuples(unsigned("I"), st.binary(max_size=20))),
]
IDS = [unpack.__name__ for unpack, _ in VALUES]


@pytest.mark.parametrize(("unpack", "strategy"), VALUES, ids=IDS)
@given(data=st.data())
def test_round_trip(unpack: Unpack, strategy: st.SearchStrategy[Any], data: st.DataObject) -> None:
    found = data.draw(strategy)
    assert unpack(PACK[unpack](found)) == found


@pytest.mark.parametrize(("unpack", "strategy"), VALUES, ids=IDS)
@given(data=st.data())
def test_any_bytes_are_read_or_refused(unpack: Unpack, strategy: st.SearchStrategy[Any], data: st.DataObject) -> None:
    """Bytes are random, or valid with a few changes. Values that can be read pack to the same bytes again."""
    anything = bytearray(data.draw(st.binary(max_size=100) | strategy.map(PACK[unpack])))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 400), unsigned("B")), max_size=3)):
        if at < len(anything):
            anything[at] = byte
    error: RemoteProtocolError | None = None
    try:
        found = unpack(bytes(anything))
    except RemoteProtocolError as raised:
        error = raised
    if error is not None:
        assert not error.fatal
        return
    assert unpack(PACK[unpack](found)) == found
    if unpack is not unpack_extended_meta:  # there the order is free
        assert PACK[unpack](found) == anything


REFUSED: list[tuple[Unpack, str, str]] = [
    (unpack_xattrs, "", "length in 0 bytes, expected 4"),
    (unpack_xattrs, "000000", "length in 3 bytes"),
    (unpack_xattrs, "ffffffff", "attributes of 4294967295 bytes in 0"),
    (unpack_xattrs, "00000003 000000", "attribute: length in 3 bytes"),
    (unpack_xattrs, "00000004 00000005 5f61003100", "attribute of 5 bytes in 0"),
    (unpack_xattrs, "00000007 00000003 610041", "expected a name, NUL"),
    (unpack_xattrs, "00000007 00000003 616263", "expected a name, NUL"),
    (unpack_xattrs, "00000006 00000002 0000", "expected a name, NUL"),
    (unpack_xattrs, "00000006 00000002 6100", "expected a name, NUL"),
    (unpack_xattrs, "00000004 00000000", "expected a name, NUL"),
    (unpack_xattrs, "00000007 00000003 ff0000", "is not UTF-8"),
    (unpack_xattrs, "0000000e 00000003 610000 00000003 610000", "'a' twice"),
    (unpack_extended_meta, "", "of no bytes, expected version 1"),
    (unpack_extended_meta, "02", "02, expected version 1"),
    (unpack_extended_meta, "01 0100", "2 bytes at 1, expected 3"),
    (unpack_extended_meta, "01 01 0007 00000000000000", "type 1 of 7 bytes"),
    (unpack_extended_meta, "01 01 0008 00000000000000", "type 1 of 8 bytes, 7 there"),
    (unpack_extended_meta, "01 02 0001 00 02 0001 00", "the type twice"),
    (unpack_extended_meta, "01 09 ffff", "type 9 of 65535 bytes, 0 there"),
    (unpack_cached_documents, "00" * 39, "39 bytes, expected 40"),
    (unpack_cached_documents, "00" * 40, "key of 0"),
    (
        unpack_cached_documents,
        "00" * 24 + "ffffffff" + "00" * 8 + "0002" + "0000" + "086b",
        "value of 4294967295 bytes in 2",
    ),
    (unpack_cached_documents, "00" * 36 + "00fc" + "0000" + "00" * 252, "key of 252"),
    (unpack_framing, "22 01", "2 of 2 bytes in 1"),
    (unpack_framing, "f0", "ends where an id"),
    (unpack_framing, "0f", "ends where an id"),
    (unpack_framing, "ff 00", "ends where an id"),
    (split_collection_key, "", "key of no bytes"),
    (split_collection_key, "80", "key 80 does not begin"),
    (split_collection_key, "8000 6b", "key 80006b"),
    (split_collection_key, "ffffffff1f", "key ffffffff1f"),
    (split_collection_key, "ffffffffff01", "key ffffffffff"),
]


@pytest.mark.parametrize(("unpack", "hexadecimal", "error"), REFUSED)
def test_refused(unpack: Unpack, hexadecimal: str, error: str) -> None:
    with pytest.raises(RemoteProtocolError, match=error) as caught:
        unpack(bytes.fromhex(hexadecimal))
    status = Status.XATTR_EINVAL if unpack is unpack_xattrs else Status.EINVAL
    assert (caught.value.status, caught.value.fatal) == (status, False)


INVALID = [
    (lambda: pack_xattrs({"": b""}), "not empty"),
    (lambda: pack_xattrs({"a\0": b""}), "no NUL"),
    (lambda: pack_extended_meta(ExtendedMeta(others=((1, b""),))), "fields of their own"),
    (lambda: pack_extended_meta(ExtendedMeta(conflict_mode=256)), "extended meta data"),
    (lambda: pack_cached_documents([CachedDocument(b"k")]), "key of 1 bytes"),
    (lambda: pack_cached_documents([CachedDocument(bytes(252))]), "key of 252 bytes"),
    (lambda: pack_cached_documents([CachedDocument(b"\0k", cas=-1)]), "cached document"),
    (lambda: pack_framing([(271, b"")]), "frame info 271"),
    (lambda: pack_framing([(0, bytes(271))]), "of 271 bytes"),
    (lambda: pack_stream_id(0), "stream id 0"),
    (lambda: pack_stream_id(0x10000), "stream id 65536"),
    (lambda: pack_collection_id(-1), "collection id -1"),
    (lambda: pack_collection_id(2**32), "collection id 4294967296"),
]


@pytest.mark.parametrize(("pack", "error"), INVALID)
def test_invalid_values_are_not_packed(pack: Callable[[], bytes], error: str) -> None:
    with pytest.raises(LocalProtocolError, match=error):
        pack()


def test_stream_ids() -> None:
    assert pack_stream_id(0x0102) == b"\x22\x01\x02"
    assert unpack_stream_id(b"\x22\x01\x02") == 0x0102
    assert unpack_stream_id(b"") is None
    assert unpack_stream_id(b"\x11\x01") is None
    assert unpack_stream_id(b"\x42me\x22\x00\x05") == 5


@given(st.integers(1, 0xFFFF))
def test_stream_id_round_trips(number: int) -> None:
    assert unpack_stream_id(pack_stream_id(number)) == number


@pytest.mark.parametrize("framing", ["220000", "2101", "23000001", "220001220001", "20"])
def test_malformed_stream_ids_are_refused(framing: str) -> None:
    with pytest.raises(RemoteProtocolError, match="expected one stream id of 1 to 65535") as caught:
        unpack_stream_id(bytes.fromhex(framing))
    assert (caught.value.status, caught.value.fatal) == (Status.DCP_STREAMID_INVALID, False)


def test_metadata_is_split_from_value() -> None:
    assert split_extended_meta(b"value\1", 1) == (b"value", b"\1")
    assert split_extended_meta(b"value", 0) == (b"value", b"")
    with pytest.raises(RemoteProtocolError, match="400 bytes in a value of 3"):
        split_extended_meta(b"abc", 400)


@given(st.dictionaries(NAMES, st.binary(max_size=30)), st.binary(max_size=30))
def test_attribute_section_is_split_unchanged(xattrs: dict[str, bytes], body: bytes) -> None:
    assert split_xattrs(pack_xattrs(xattrs, body)) == (pack_xattrs(xattrs), body)


@pytest.mark.parametrize("value", [b"", b"\0\0\0", b"\0\0\0\1"])
def test_missing_attribute_section_is_refused(value: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="extended attributes"):
        split_xattrs(value)
