"""The framing extras of requests and responses."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import (
    Durability,
    RequestInfos,
    ResponseInfos,
    decode_duration,
    encode_duration,
    pack_duration,
    pack_request_infos,
    pack_response_infos,
    unpack_request_infos,
    unpack_response_infos,
)
from tests.strategies import unsigned

REQUESTS = [
    ("nothing", RequestInfos(), ""),
    ("a barrier", RequestInfos(barrier=True), "00"),
    ("a majority", RequestInfos(durability=Durability(DurabilityLevel.MAJORITY)), "11 01"),
    (
        "a majority within 9 s",
        RequestInfos(durability=Durability(DurabilityLevel.MAJORITY, 9000)),
        "13 01 2328",
    ),
    (
        "on the disks of a majority, the longest timeout",
        RequestInfos(durability=Durability(DurabilityLevel.PERSIST_TO_MAJORITY, 65534)),
        "13 03 fffe",
    ),
    ("a stream", RequestInfos(stream_id=0x1234), "22 1234"),
    ("another user", RequestInfos(impersonate="joe"), "43 6a6f65"),
    ("another user with a long name", RequestInfos(impersonate="a" * 16), "4f 01" + "61" * 16),
    ("the expiry that is there", RequestInfos(preserve_ttl=True), "50"),
    ("two privileges", RequestInfos(privileges=("Read", "x")), "64 52656164 61 78"),
    ("a token", RequestInfos(token_id=7), "72 0007"),
    (
        "several at a time",
        RequestInfos(durability=Durability(DurabilityLevel.MAJORITY_AND_PERSIST_ON_MASTER), preserve_ttl=True),
        "11 02 50",
    ),
]


@pytest.mark.parametrize(("case", "infos", "hexadecimal"), REQUESTS, ids=[row[0] for row in REQUESTS])
def test_requests(case, infos, hexadecimal):
    framing = bytes.fromhex(hexadecimal)
    assert pack_request_infos(infos) == framing
    assert unpack_request_infos(framing) == infos


REFUSED = [
    ("an element that is not known", "30", Status.UNKNOWN_FRAME_INFO),
    ("another one, behind one that is", "50 80", Status.UNKNOWN_FRAME_INFO),
    ("one with a high number", "f0 00", Status.UNKNOWN_FRAME_INFO),
    ("less than it says", "13 01", Status.EINVAL),
    ("a barrier of something", "01 00", Status.EINVAL),
    ("no level", "10", Status.EINVAL),
    ("half a timeout", "12 01 01", Status.EINVAL),
    ("more than a timeout", "14 01 0001 00", Status.EINVAL),
    ("no time at all", "13 01 0000", Status.DURABILITY_INVALID_LEVEL),
    ("no end", "13 01 ffff", Status.DURABILITY_INVALID_LEVEL),
    ("level 0", "11 00", Status.DURABILITY_INVALID_LEVEL),
    ("level 4", "13 04 0001", Status.DURABILITY_INVALID_LEVEL),
    ("two durabilities, one without a level", "11 01 11 00", Status.DURABILITY_INVALID_LEVEL),
    ("stream 0", "22 0000", Status.DCP_STREAMID_INVALID),
    ("half a stream", "21 01", Status.DCP_STREAMID_INVALID),
    ("two streams", "22 0001 22 0001", Status.DCP_STREAMID_INVALID),
    ("nobody", "40", Status.EINVAL),
    ("a user that is no text", "41 ff", Status.EINVAL),
    ("two users", "41 61 41 62", Status.EINVAL),
    ("a kept expiry of something", "51 01", Status.EINVAL),
    ("no privilege", "60", Status.EINVAL),
    ("half a token", "71 01", Status.EINVAL),
    ("two tokens", "72 0001 72 0001", Status.EINVAL),
]


def test_first_of_repeated_elements_counts():
    found = unpack_request_infos(bytes.fromhex("13 01 fde8 50 00 13 02 0064 50 00 11 03"))
    assert found == RequestInfos(Durability(DurabilityLevel.MAJORITY, 65_000), preserve_ttl=True, barrier=True)


@pytest.mark.parametrize(("case", "hexadecimal", "status"), REFUSED, ids=[row[0] for row in REFUSED])
def test_malformed_request_infos_are_refused(case, hexadecimal, status):
    with pytest.raises(RemoteProtocolError) as caught:
        unpack_request_infos(bytes.fromhex(hexadecimal))
    assert (caught.value.status, caught.value.fatal) == (status, False)


TIMEOUTS = st.none() | st.integers(1, 65534)
INFOS = st.builds(
    RequestInfos,
    st.none() | st.builds(Durability, st.sampled_from(DurabilityLevel), TIMEOUTS),
    st.none() | st.integers(1, 0xFFFF),
    st.booleans(),
    st.booleans(),
    st.none() | st.text(min_size=1, max_size=60),
    st.lists(st.text(min_size=1, max_size=20), max_size=3).map(tuple),
    st.none() | unsigned("H"),
)


@given(INFOS)
def test_request_infos_round_trip(infos):
    assert unpack_request_infos(pack_request_infos(infos)) == infos


@given(st.binary(max_size=60))
def test_any_framing_is_read_or_refused(framing):
    for unpack in (unpack_request_infos, unpack_response_infos):
        with contextlib.suppress(RemoteProtocolError):
            unpack(framing)


UNFIT = [
    RequestInfos(durability=Durability(DurabilityLevel.MAJORITY, 0)),
    RequestInfos(durability=Durability(DurabilityLevel.MAJORITY, 0xFFFF)),
    RequestInfos(durability=Durability(DurabilityLevel.MAJORITY, 0x10000)),
    RequestInfos(stream_id=0),
    RequestInfos(token_id=0x10000),
    RequestInfos(impersonate="a" * 271),
]


@pytest.mark.parametrize("infos", UNFIT)
def test_too_large_request_infos_are_not_packed(infos):
    with pytest.raises(LocalProtocolError):
        pack_request_infos(infos)


DURATIONS = [(0, 0), (0.5, 1), (1, 1), (2, 2), (100, 21), (1000, 79), (1_000_000, 4181), (120_000_000, 65496)]
"""Microseconds, and their encoding: (2 us) ^ (1 / 1.74)."""


@pytest.mark.parametrize(("microseconds", "encoded"), DURATIONS)
def test_durations(microseconds, encoded):
    assert encode_duration(microseconds) == encoded
    assert pack_duration(microseconds) == b"\x02" + encoded.to_bytes(2, "big")


def test_out_of_range_durations_are_clamped():
    assert encode_duration(-1) == 0
    assert encode_duration(10**12) == 0xFFFF


@given(unsigned("H"))
def test_durations_round_trip(encoded):
    assert encode_duration(decode_duration(encoded)) == encoded


@given(st.floats(100, 120_000_000))
def test_durations_are_nearly_exact(microseconds):
    assert decode_duration(encode_duration(microseconds)) == pytest.approx(microseconds, rel=0.05)


def test_responses():
    framing = bytes.fromhex("02 0001 12 0003 22 ffff 32 0000")
    infos = ResponseInfos(server_us=0.5, read_units=3, write_units=0xFFFF, throttle_us=0.0)
    assert unpack_response_infos(framing) == infos
    assert pack_response_infos(infos) == framing
    assert unpack_response_infos(b"") == ResponseInfos()


def test_unknown_response_elements_are_ignored():
    assert unpack_response_infos(bytes.fromhex("40 51 07 40 02 0001")) == ResponseInfos(server_us=0.5)


@pytest.mark.parametrize("hexadecimal", ["01 00", "00", "03 000000", "02 0001 02 0001", "02 00"])
def test_malformed_response_infos_are_refused(hexadecimal):
    with pytest.raises(RemoteProtocolError):
        unpack_response_infos(bytes.fromhex(hexadecimal))


def test_too_large_response_infos_are_not_packed():
    with pytest.raises(LocalProtocolError, match="READ_UNITS 65536"):
        pack_response_infos(ResponseInfos(read_units=1 << 16))
