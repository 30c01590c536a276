"""Values with the datatype SNAPPY: round trips, garbage, and values that would be too long."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.statuses import Status
from penstock.wire.values.snappy import MAX_INFLATED, deflate, inflate, read_inflated_length

VALUES = st.binary(max_size=300) | st.builds(
    lambda piece, times: piece * times, st.binary(max_size=9), st.integers(0, 99)
)


@given(VALUES)
def test_compressed_value_round_trips(value):
    compressed = deflate(value)
    assert read_inflated_length(compressed) == len(value)
    assert inflate(compressed) == value
    assert inflate(compressed, len(value)) == value


def test_hand_made_block_is_inflated():
    """A literal of 5 bytes, then a copy of 10 from 5 behind."""
    assert inflate(bytes.fromhex("0f 10 68656c6c6f 19 05")) == b"hello" * 3
    assert inflate(b"\0") == b""


@pytest.mark.parametrize(
    "value", [b"", b"\x80", b"\xff\xff\xff\xff\xff\x01", b"\x05\x10abc", b"\x05abc", b"\0\0", b"\1"]
)
def test_garbage_is_refused(value):
    with pytest.raises(RemoteProtocolError, match=f"compressed value of {len(value)} bytes: ") as caught:
        inflate(value)
    assert (caught.value.status, caught.value.fatal) == (Status.EINVAL, False)


@given(st.binary(max_size=100))
def test_anything_is_inflated_or_refused(value):
    with contextlib.suppress(RemoteProtocolError):
        assert len(inflate(value)) == read_inflated_length(value)


def test_value_over_limit_is_refused():
    with pytest.raises(RemoteProtocolError, match="1001 inflated, limit 1000") as caught:
        inflate(deflate(bytes(1001)), 1000)
    assert (caught.value.status, caught.value.fatal) == (Status.EINVAL, False)
    with pytest.raises(RemoteProtocolError, match=f"limit {MAX_INFLATED}"):
        inflate(deflate(bytes(MAX_INFLATED + 1)))


def test_densest_value_is_inflated():
    dense = deflate(bytes(1 << 20))
    assert read_inflated_length(dense) == 1 << 20
    assert inflate(dense) == bytes(1 << 20)


@pytest.mark.parametrize("length", [b"\x80\x80\x80\x0a", b"\xff\xff\xff\xff\x0f"], ids=["20 MiB", "4 GiB"])
def test_length_without_data_is_refused(length):
    with pytest.raises(RemoteProtocolError, match="cannot become") as caught:
        inflate(length + bytes(50))
    assert (caught.value.status, caught.value.fatal) == (Status.EINVAL, False)
