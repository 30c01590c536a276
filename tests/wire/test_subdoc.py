"""The values of sub-document commands. The frames themselves are in tests/golden/subdoc.py."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.frame import Frame, cut_frame
from penstock.wire.codec.layout import Part, decode_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.subdoc import (
    LOOKUPS,
    MUTATIONS,
    LookupResult,
    LookupSpec,
    MutationResult,
    MutationSpec,
    SubdocLookup,
    SubdocMutation,
    find_unmet_need,
    pack_lookup_results,
    pack_lookup_specs,
    pack_mutation_results,
    pack_mutation_specs,
    unpack_lookup_results,
    unpack_lookup_specs,
    unpack_mutation_results,
    unpack_mutation_specs,
)
from tests.strategies import unsigned


def part(which: Part, most: int) -> st.SearchStrategy[bytes]:
    sizes = {Part.ABSENT: (0, 0), Part.PRESENT: (1, most), Part.MAYBE: (0, most)}[which]
    return st.binary(min_size=sizes[0], max_size=sizes[1])


LOOKUP_SPECS = st.sampled_from(sorted(LOOKUPS)).flatmap(
    lambda opcode: st.builds(LookupSpec, st.just(opcode), unsigned("B"), part(LOOKUPS[opcode].path, 40))
)
MUTATION_SPECS = st.sampled_from(sorted(MUTATIONS)).flatmap(
    lambda opcode: st.builds(
        MutationSpec,
        st.just(opcode),
        unsigned("B"),
        part(MUTATIONS[opcode].path, 40),
        part(MUTATIONS[opcode].value, 300),
    )
)
SOME_BYTES = st.binary(max_size=300)
FAILED = st.builds(MutationResult, unsigned("B"), unsigned("H").filter(bool), st.just(b""))

KINDS: list[tuple[Any, Any, st.SearchStrategy[Any]]] = [
    (pack_lookup_specs, unpack_lookup_specs, st.lists(LOOKUP_SPECS, min_size=1, max_size=16)),
    (pack_mutation_specs, unpack_mutation_specs, st.lists(MUTATION_SPECS, min_size=1, max_size=16)),
    (
        pack_lookup_results,
        unpack_lookup_results,
        st.lists(st.builds(LookupResult, unsigned("H"), SOME_BYTES), max_size=16),
    ),
    (
        pack_mutation_results,
        unpack_mutation_results,
        st.lists(st.builds(MutationResult, unsigned("B"), st.just(0), SOME_BYTES) | FAILED, max_size=16),
    ),
]


@pytest.mark.parametrize(("pack", "unpack", "strategy"), KINDS, ids=[unpack.__name__ for _, unpack, _ in KINDS])
@given(data=st.data())
def test_packed_values_round_trip(pack, unpack, strategy, data):
    found = data.draw(strategy)
    assert unpack(pack(found)) == found


@pytest.mark.parametrize(("pack", "unpack", "strategy"), KINDS, ids=[unpack.__name__ for _, unpack, _ in KINDS])
@given(data=st.data())
def test_any_bytes_are_read_or_refused(pack, unpack, strategy, data):
    """Bytes are random, or valid with a few changes. Values that can be read pack to the same bytes again."""
    anything = bytearray(data.draw(st.binary(max_size=100) | strategy.map(pack)))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 400), unsigned("B")), max_size=3)):
        if at < len(anything):
            anything[at] = byte
    with contextlib.suppress(RemoteProtocolError):
        assert pack(unpack(bytes(anything))) == anything


BAD = [
    ("no lookup", unpack_lookup_specs, "", "no operation", Status.SUBDOC_INVALID_COMBO),
    ("half a lookup", unpack_lookup_specs, "c50000", "lookup: 3 bytes at 0, expected 4", Status.EINVAL),
    ("half a path", unpack_lookup_specs, "c5000002 61", "SUBDOC_GET: 1 bytes longer", Status.EINVAL),
    ("no path", unpack_lookup_specs, "c5000000", "path must be present, found 0 bytes", Status.EINVAL),
    ("a path to the whole", unpack_lookup_specs, "00000001 61", "GET: path must be absent", Status.EINVAL),
    ("a change", unpack_lookup_specs, "c8000001 61", "SUBDOC_DICT_UPSERT: not allowed", Status.SUBDOC_INVALID_COMBO),
    (
        "no operation at all",
        unpack_lookup_specs,
        "ee000001 61",
        "opcode 0xee: not allowed",
        Status.SUBDOC_INVALID_COMBO,
    ),
    ("17 lookups", unpack_lookup_specs, "c500000161" * 17, "more than 16", Status.SUBDOC_INVALID_COMBO),
    ("no change", unpack_mutation_specs, "", "no operation", Status.SUBDOC_INVALID_COMBO),
    ("half a change", unpack_mutation_specs, "c8000001000000", "change: 7 bytes at 0, expected 8", Status.EINVAL),
    ("half a value", unpack_mutation_specs, "c8000001 00000002 6131", "1 bytes longer", Status.EINVAL),
    ("4 GiB", unpack_mutation_specs, "c800ffff ffffffff 61", "4295032829 bytes longer", Status.EINVAL),
    ("no value", unpack_mutation_specs, "c8000001 00000000 61", "value must be present", Status.EINVAL),
    ("a deletion of a value", unpack_mutation_specs, "c9000001 00000001 6131", "value must be absent", Status.EINVAL),
    ("a lookup", unpack_mutation_specs, "c5000001 00000000 61", "not allowed", Status.SUBDOC_INVALID_COMBO),
    ("17 changes", unpack_mutation_specs, "c90000010000000061" * 17, "more than 16", Status.SUBDOC_INVALID_COMBO),
    ("half a result", unpack_lookup_results, "0000 000000", "result: 5 bytes at 0", Status.EINVAL),
    ("half a finding", unpack_lookup_results, "0000 00000002 61", "result 0 of 2 bytes in 1", Status.EINVAL),
    ("half a number", unpack_mutation_results, "00 0000 0000", "result: 2 bytes at 3", Status.EINVAL),
    ("a number cut short", unpack_mutation_results, "00 0000 00000002 31", "result 0 of 2 bytes in 1", Status.EINVAL),
    ("half a failure", unpack_mutation_results, "00 00", "result: 2 bytes at 0, expected 3", Status.EINVAL),
]


@pytest.mark.parametrize(("case", "unpack", "value", "match", "status"), BAD, ids=[row[0] for row in BAD])
def test_malformed_values_are_refused(case, unpack, value, match, status):
    with pytest.raises(RemoteProtocolError, match=match) as caught:
        unpack(bytes.fromhex(value))
    assert (caught.value.status, caught.value.fatal) == (status, False)


def test_largest_number_of_operations_is_accepted():
    assert len(unpack_lookup_specs(bytes.fromhex("c500000161" * 16))) == 16


@pytest.mark.parametrize(
    ("pack", "found"),
    [
        (pack_lookup_specs, [(0x100, 0, b"")]),
        (pack_lookup_specs, [(0xC5, 0, bytes(1 << 16))]),
        (pack_mutation_specs, [(0xC8, -1, b"", b"")]),
        (pack_lookup_results, [(1 << 16, b"")]),
        (pack_mutation_results, [(256, 0, b"")]),
    ],
)
def test_invalid_values_are_not_packed(pack, found):
    with pytest.raises(LocalProtocolError, match="sub-document value"):
        pack(found)


def test_path_and_content_of_one_change():
    change = SubdocMutation.for_path(b"a.b", b'"c"', key=b"k", flags=1)
    assert (change.path_length, change.path, change.content) == (3, b"a.b", b'"c"')
    assert decode_frame(cut_frame(memoryview(change.encode(Opcode.SUBDOC_REPLACE)), 0)) == change


LONG = Frame(0x80, Opcode.SUBDOC_DICT_ADD, extras=b"\0\4\0", key=b"k", value=b"abc")


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (LONG, "SUBDOC_DICT_ADD: path of 4 bytes in 3"),
        (LONG._replace(opcode=Opcode.SUBDOC_GET), "SUBDOC_GET: path of 4 bytes in 3"),
        (LONG._replace(opcode=Opcode.SUBDOC_GET, extras=b"\0\2\0"), "expected nothing behind it"),
        (LONG._replace(opcode=Opcode.SUBDOC_GET, extras=bytes(7)), "extras of 7 bytes, expected 3 or 4"),
        (LONG._replace(extras=bytes(5)), "extras of 5 bytes, expected 3 or 4 or 7 or 8"),
        (LONG._replace(key=b""), "key must be present"),
    ],
)
def test_too_long_path_is_refused(frame, match):
    with pytest.raises(RemoteProtocolError, match=match) as caught:
        decode_frame(frame)
    assert (caught.value.status, caught.value.fatal) == (Status.EINVAL, False)


@pytest.mark.parametrize("length", [1, 250, 251])
def test_keys_with_a_collection_are_up_to_251_bytes(length):
    lookup = SubdocLookup.for_path(b"a", key=bytes(length), framing=b"\x11\x01")
    assert decode_frame(cut_frame(memoryview(lookup.encode()), 0)) == lookup


NEEDS = [
    (Opcode.SUBDOC_GET_COUNT, b"", b"", None),
    (Opcode.SUBDOC_GET, b"", b"", "path must be present, found 0 bytes"),
    (Opcode.SUBDOC_ARRAY_PUSH_LAST, b"", b"1", None),
    (Opcode.SUBDOC_ARRAY_PUSH_LAST, b"", b"", "value must be present, found 0 bytes"),
    (Opcode.SUBDOC_DELETE, b"a", b"1", "value must be absent, found 1 bytes"),
    (Opcode.SET, b"", b"", None),
]


@pytest.mark.parametrize(("opcode", "path", "value", "expected"), NEEDS)
def test_operations_have_needs(opcode, path, value, expected):
    assert find_unmet_need((LOOKUPS | MUTATIONS)[opcode], path, value) == expected
