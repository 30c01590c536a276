"""One frame that did not come over a stream, with lengths that may be wrong.

A stream needs the length in the header to find the next frame. Bytes that are known to be one frame, such as a diagram
in a specification, can be read without it. The body then has all the bytes after the header, and the extras have a
length that the dialect knows.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import HEADER, HEADER_BYTES, MAGICS, Frame, cut_frame, name_opcode
from penstock.wire.codec.layout import Layout, find_forms, find_layout

_EXTRAS_LENGTH_AT = 4
_BODY_LENGTH_AT = 8


class Datagram(NamedTuple):
    """A frame that was cut without trust in its lengths.

    Attributes:
        frame: the frame.
        declared: bytes of the body, as its header declares.
        actual: the bytes after the header.
    """

    frame: Frame
    declared: int
    actual: int


def cut_datagram(data: bytes, dialect: Dialect) -> Datagram:
    """Return the one frame that `data` is, all of it.

    The lengths of the header are used if the body's is right and the extras have a length that the dialect knows.
    Otherwise the length of the key is used, and the extras have the length of the one form that fits the bytes.

    Raises:
        RemoteProtocolError: the data is shorter than a header, the magic or opcode is unknown, or not exactly one form
            fits; not fatal.
    """
    if len(data) < HEADER_BYTES:
        raise RemoteProtocolError(f"frame of {len(data)} bytes, shorter than a header ({HEADER_BYTES})", fatal=False)
    magic, opcode, _, extras_length, datatype, _, declared, *_ = HEADER.unpack_from(data)
    if magic not in MAGICS:
        raise RemoteProtocolError(f"first byte of a frame is 0x{magic:02x}, not a known magic", fatal=False)
    actual = len(data) - HEADER_BYTES
    extras = data[HEADER_BYTES : HEADER_BYTES + extras_length]
    head = Frame(magic, opcode, datatype=datatype, extras=extras)
    forms = find_forms(head, dialect)
    if forms is None or (declared == actual and extras_length in forms):
        find_layout(head, dialect)
        return Datagram(cut_frame(memoryview(data), 0), declared, actual)
    fitting = [frame for size, layout in forms.items() if (frame := _fitted(data, size, actual, layout)) is not None]
    if len(fitting) != 1:
        lengths = " or ".join(map(str, sorted(forms)))
        raise RemoteProtocolError(
            f"{name_opcode(opcode)}: body of {actual} bytes where {declared} are declared, extras of {extras_length}: "
            f"{len(fitting)} of the forms with extras of {lengths} fit",
            fatal=False,
        )
    return Datagram(fitting[0], declared, actual)


def _fitted(data: bytes, extras_length: int, actual: int, layout: Layout) -> Frame | None:
    """Return the frame as it would be with these lengths, None if a part is not as the layout declares it."""
    right = bytearray(data)
    right[_EXTRAS_LENGTH_AT] = extras_length
    right[_BODY_LENGTH_AT : _BODY_LENGTH_AT + 4] = actual.to_bytes(4, "big")
    try:
        frame = cut_frame(memoryview(right), 0)
        layout.check(frame)
    except RemoteProtocolError:
        return None
    return frame
