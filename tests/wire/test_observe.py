"""The values of OBSERVE and its replies."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.layout import decode_frame
from penstock.wire.messages.observe import (
    CompactDb,
    Observe,
    ObservedKey,
    pack_keys,
    pack_observed_keys,
    unpack_keys,
    unpack_observed_keys,
)
from tests.strategies import unsigned
from tests.wire.test_layout import frame

KEYS = st.binary(max_size=300)


@given(st.lists(st.tuples(unsigned("H"), KEYS), max_size=10))
def test_keys(keys: list[tuple[int, bytes]]) -> None:
    assert unpack_keys(pack_keys(keys)) == keys


@given(st.lists(st.tuples(unsigned("H"), KEYS, unsigned("B"), unsigned("Q")), max_size=10))
def test_observed_keys(observed: list[tuple[int, bytes, int, int]]) -> None:
    assert unpack_observed_keys(pack_observed_keys(observed)) == [ObservedKey(*each) for each in observed]


CUT_OFF = [
    (unpack_keys, "00"),
    (unpack_keys, "0007 00"),
    (unpack_keys, "0007 0001"),
    (unpack_keys, "0007 0003 6b65"),
    (unpack_keys, "0007 0001 6b 0007 0002 6b"),
    (unpack_observed_keys, "0007 0001 6b"),
    (unpack_observed_keys, "0007 0001 6b 01 00000000000000"),
    (unpack_observed_keys, "0007 0001 6b 01 0000000000000001 00"),
]


@pytest.mark.parametrize(("unpack", "value"), CUT_OFF)
def test_partial_entry_is_refused_and_not_fatal(unpack, value: str) -> None:
    with pytest.raises(RemoteProtocolError, match="a part of an entry") as raised:
        unpack(bytes.fromhex(value))
    assert not raised.value.fatal


@given(st.binary(max_size=64))
def test_any_value_unpacks_or_is_refused(value: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert pack_keys(unpack_keys(value)) == value
    with contextlib.suppress(RemoteProtocolError):
        assert pack_observed_keys(unpack_observed_keys(value)) == value


@pytest.mark.parametrize("extras", ["00 01 0000 00000000", "00 00 0000 00000001", "02 00 0000 00000000"])
def test_compaction_with_invalid_extras_is_refused(extras: str) -> None:
    compact = "80b30000 18000007 00000018 00000002 0000000000000000" + "00" * 16 + extras
    with pytest.raises(RemoteProtocolError, match="expected 0"):
        decode_frame(frame(compact))


def test_empty_list_is_refused() -> None:
    empty = Observe().encode()
    with pytest.raises(RemoteProtocolError, match="value must be present"):
        decode_frame(frame(empty.hex()))
    assert decode_frame(frame(CompactDb(drop_deletes=1).encode().hex())) == CompactDb(drop_deletes=1)
