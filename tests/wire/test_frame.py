"""Cutting and joining frames."""

from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.frame import HEADER_BYTES, MAGICS, Frame, cut_frame, join_frame, name_opcode, read_frame_length
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.frame_offsets import find_offsets
from tests.golden import GOLDEN, frame_of
from tests.strategies import frames, unsigned


@given(frames())
def test_joined_frame_round_trips(frame: Frame) -> None:
    data = join_frame(frame)
    assert len(data) == frame.size == read_frame_length(data, 0)
    assert cut_frame(memoryview(data), 0) == frame
    assert cut_frame(memoryview(b"before" + data + b"behind"), 6) == frame


TOO_LONG = [
    ("key", Frame(0x80, 0, key=bytes(0x10000))),
    ("key beside framing extras", Frame(0x08, 0, key=bytes(0x100))),
    ("framing extras", Frame(0x08, 0, framing=bytes(0x100))),
    ("framing extras where there is no room", Frame(0x80, 0, framing=b"\x22\0\0")),
]


@pytest.mark.parametrize(("case", "frame"), TOO_LONG)
def test_too_long_part_is_not_joined(case: str, frame: Frame) -> None:
    with pytest.raises(ValueError, match=r"0x|limit 65535"):
        join_frame(frame)


PARTS_TOO_LONG = [
    ("extras", "80570000 1f000000 0000001e 00000000 0000000000000000" + "00" * 30),
    ("key", "80000006 00000000 00000005 00000000 0000000000000000 68656c6c6f"),
    ("extras and key", "80010002 08000000 00000009 00000000 0000000000000000" + "00" * 9),
    ("framing extras", "08000300 00000000 00000002 00000000 0000000000000000 2200"),
    ("framing extras, extras and key", "08010302 08000000 0000000c 00000000 0000000000000000" + "00" * 12),
]


@pytest.mark.parametrize(("case", "hexadecimal"), PARTS_TOO_LONG)
def test_parts_longer_than_body_are_refused(case: str, hexadecimal: str) -> None:
    with pytest.raises(RemoteProtocolError, match="in a body of") as caught:
        cut_frame(memoryview(frame_of(hexadecimal)), 0)
    assert (caught.value.status, caught.value.fatal) == (Status.EINVAL, False)


def test_framing_extras_are_cut() -> None:
    data = frame_of("08570301 1f000007 00000023 00000009 0000000000000000 22000d" + "00" * 31 + "6b")
    frame = cut_frame(memoryview(data), 0)
    assert (frame.framing, frame.extras, frame.key, frame.value) == (b"\x22\x00\x0d", bytes(31), b"k", b"")
    assert join_frame(frame) == data


def test_frame_over_limit_is_refused() -> None:
    data = frame_of("80010000 00000000 00000064 00000000 0000000000000000")
    assert read_frame_length(data, 0, limit=124) == 124
    with pytest.raises(RemoteProtocolError, match=r"124 bytes \(SET\), limit 123") as caught:
        read_frame_length(data, 0, limit=123)
    assert (caught.value.status, caught.value.fatal) == (Status.E2BIG, True)


def test_unknown_magics_are_refused() -> None:
    for magic in sorted(set(range(256)) - MAGICS):
        with pytest.raises(RemoteProtocolError) as caught:
            read_frame_length(bytes([magic]) + bytes(23), 0)
        assert (f"0x{magic:02x}" in str(caught.value), caught.value.fatal) == (True, True), magic


def test_names_of_opcodes() -> None:
    assert name_opcode(Opcode.DCP_MUTATION) == "DCP_MUTATION"
    assert name_opcode(0xEE) == "opcode 0xee"


@given(st.lists(frames(), max_size=20), st.binary(max_size=60), st.integers(0, 100))
def test_every_whole_frame_is_found(messages: list[Frame], before: bytes, missing: int) -> None:
    data = before + b"".join(map(join_frame, messages))
    bounds = list(accumulate((message.size for message in messages), initial=len(before)))
    end = max(len(before), len(data) - missing)
    whole = bisect_right(bounds, end) - 1
    assert find_offsets(data, len(before), end) == (bounds[:whole], bounds[whole])


@given(st.binary(max_size=300), unsigned("H"))
def test_any_bytes_are_searched(data: bytes, start: int) -> None:
    start = min(start, len(data))
    offsets, position = find_offsets(data, start, len(data))
    assert all(start <= offset <= len(data) - HEADER_BYTES for offset in offsets)
    assert (offsets[-1] if offsets else start) <= position <= len(data)


def test_golden_frames_are_whole() -> None:
    for case, _, hexadecimal in GOLDEN:
        data = frame_of(hexadecimal)
        assert read_frame_length(data, 0) == len(data), case
        assert join_frame(cut_frame(memoryview(data), 0)) == data, case
