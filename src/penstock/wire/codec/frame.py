"""Frames and their 24-byte header: cuts frames out of bytes and joins them. The meaning of a frame is not known here.

Source: kv_engine docs/BinaryProtocol.md, "Packet structure". All integers are big-endian.

    byte  0      1       2-3         4           5         6-7             8-11         12-15   16-23
          magic  opcode  key length  extras len  datatype  vbucket/status  body length  opaque  cas

With an alternative magic (0x08, 0x18), byte 2 is the length of the framing extras and byte 3 that of the key.
The body is: framing extras, extras, key, value.
"""

from __future__ import annotations

from itertools import accumulate
from struct import Struct, calcsize
from typing import NamedTuple, cast

from penstock.errors import RemoteProtocolError
from penstock.wire.codec import native
from penstock.wire.codec.constants import MAX_FRAME
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status

HEADER = Struct(">BBHBBHIIQ")
HEADER_BYTES = HEADER.size
HEADER_NAMES = ("magic", "opcode", "key_length", "extras_length", "datatype", "specific", "body", "opaque", "cas")
_PLACES = dict(zip(HEADER_NAMES, accumulate(map(calcsize, HEADER.format[1:]), initial=0), strict=False))
MAGIC_AT, OPCODE_AT, KEY_LENGTH_AT, EXTRAS_LENGTH_AT, DATATYPE_AT, _SPECIFIC_AT, BODY_AT, OPAQUE_AT, _CAS_AT = (
    _PLACES[name] for name in HEADER_NAMES
)
"""Offsets in a frame. In the UPR draft the kind of message stands at DATATYPE_AT."""

U32 = Struct(">I")
"""Body length and opaque as they stand in a header."""

BODY_LENGTH = Struct(f">{BODY_AT}xI")
"""Reads the body length of the frame at an offset. The search for frames needs nothing else of a header."""

Buffer = bytes | bytearray | memoryview

MAGICS = frozenset(int(magic) for magic in Magic)
REQUEST_MAGICS = frozenset((int(Magic.REQUEST), int(Magic.ALT_REQUEST), int(Magic.SERVER_REQUEST)))
SERVER_MAGICS = frozenset((int(Magic.SERVER_REQUEST), int(Magic.SERVER_RESPONSE)))
_ALTERNATIVE = frozenset((int(Magic.ALT_REQUEST), int(Magic.ALT_RESPONSE)))
ALTERNATIVE_OF = {Magic.REQUEST: Magic.ALT_REQUEST, Magic.RESPONSE: Magic.ALT_RESPONSE}
NATIVE_TABLE = bytes(
    [HEADER_BYTES, *(_PLACES[name] for name in HEADER_NAMES[1:])]
    + [2 if magic in _ALTERNATIVE else int(magic in MAGICS) for magic in range(256)]
)
"""The places of the header's numbers, and the kind of each first byte, for the extension module."""
PLAIN_OF = {int(magic): Magic.REQUEST if int(magic) in REQUEST_MAGICS else Magic.RESPONSE for magic in Magic}
"""Magic -> its direction, as the magic of a plain request or a plain response."""


class Frame(NamedTuple):
    """One frame, cut into parts that are not decoded.

    Attributes:
        specific: the vbucket of a request, the status of a response.
        value: bytes; a long one is a view if its FrameReceiver was given the opcode in `viewed_opcodes`.
        framing: the framing extras.
    """

    magic: int
    opcode: int
    specific: int = 0
    datatype: int = 0
    opaque: int = 0
    cas: int = 0
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""
    framing: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of the frame, header included."""
        return HEADER_BYTES + len(self.framing) + len(self.extras) + len(self.key) + len(self.value)


def name_opcode(opcode: int) -> str:
    """Return the opcode's name, or its number in words if it has none."""
    return Opcode(opcode).name if opcode in Opcode._value2member_map_ else f"opcode 0x{opcode:02x}"


def name_status(status: int) -> str:
    """Return the status's name, or its number in words if it has none."""
    return Status(status).name if status in Status._value2member_map_ else f"status 0x{status:02x}"


def read_frame_length(buffer: Buffer, offset: int, limit: int = MAX_FRAME) -> int:
    """Return how many bytes the frame at `offset` has, header included.

    Raises:
        RemoteProtocolError: the magic is unknown, or the frame is longer than `limit`. Fatal: the next frame's place is
            unknown.
    """
    if buffer[offset] not in MAGICS:
        raise RemoteProtocolError(f"first byte of a frame is 0x{buffer[offset]:02x}, not a known magic")
    size: int = HEADER_BYTES + BODY_LENGTH.unpack_from(buffer, offset)[0]
    if size > limit:
        raise RemoteProtocolError(
            f"frame of {size} bytes ({name_opcode(buffer[offset + 1])}), limit {limit}", status=Status.E2BIG
        )
    return size


def cut_frame(view: memoryview, offset: int) -> Frame:
    """Return the frame at `offset`, whose bytes must all be there. Its parts are copies.

    Raises:
        RemoteProtocolError: the parts do not fit into the body. Not fatal: the next frame's place is known.
    """
    magic, opcode, key_length, extras_length, datatype, specific, body, opaque, cas = HEADER.unpack_from(view, offset)
    parts = view[offset + HEADER_BYTES : offset + HEADER_BYTES + body].tobytes()
    framing = b""
    if magic in _ALTERNATIVE:
        framing_length, key_length = key_length >> 8, key_length & 0xFF
        framing, parts = parts[:framing_length], parts[framing_length:]
        body -= framing_length
    value_at = extras_length + key_length
    if value_at > body:
        raise RemoteProtocolError(
            f"{name_opcode(opcode)}: extras of {extras_length} and key of {key_length} bytes in a body of {body}",
            fatal=False,
        )
    extras, key, value = parts[:extras_length], parts[extras_length:value_at], parts[value_at:]
    return _new_frame(Frame, (magic, opcode, specific, datatype, opaque, cas, extras, key, value, framing))


def cut_frames(view: memoryview, start: int, end: int) -> tuple[list[Frame], int]:
    """Return the frames in view[start:end] up to the first that is not whole or not sound, and its place.

    Their parts are copies.
    """
    frames: list[Frame] = []
    if native.extension is not None:
        frames, start = native.extension.cut(Frame, view, start, end, NATIVE_TABLE)
        return frames, start
    while start <= end - HEADER_BYTES and view[start] in MAGICS:
        (body,) = BODY_LENGTH.unpack_from(view, start)
        if start + HEADER_BYTES + body > end:
            break
        try:
            frames.append(cut_frame(view, start))
        except RemoteProtocolError:
            break
        start += HEADER_BYTES + body
    return frames, start


def view_frame(view: memoryview) -> Frame:
    """Return the frame that the view holds; its value is a view.

    The frame must be longer than VIEWED_FROM, and therefore long enough for any key.
    """
    magic, opcode, key_length, extras_length, datatype, specific, body, opaque, cas = HEADER.unpack_from(view)
    framing_length = 0
    if magic in _ALTERNATIVE:
        framing_length, key_length = key_length >> 8, key_length & 0xFF
    lengths = framing_length, extras_length, key_length
    framing_at, extras_at, key_at, value_at = accumulate(lengths, initial=HEADER_BYTES)
    framing, extras, key = (
        bytes(view[framing_at:extras_at]),
        bytes(view[extras_at:key_at]),
        bytes(view[key_at:value_at]),
    )
    value = cast(bytes, view[value_at : HEADER_BYTES + body])
    return Frame(magic, opcode, specific, datatype, opaque, cas, extras, key, value, framing)


_new_frame = tuple.__new__
"""Makes a Frame without its constructor's keyword handling: a third of the cost, and this runs for every command."""


def join_frame(frame: Frame) -> bytes:
    """Return the frame's bytes. Raises ValueError or struct.error for a part that does not fit into its field."""
    magic, opcode, specific, datatype, opaque, cas, extras, key, value, framing = frame
    key_length = len(key)
    if magic in _ALTERNATIVE:
        if key_length > 0xFF or len(framing) > 0xFF:
            raise ValueError(
                f"framing of {len(framing)} and key of {key_length} bytes; a frame 0x{magic:02x} holds 255"
            )
        key_length |= len(framing) << 8
    elif key_length > 0xFFFF or framing:
        raise ValueError(f"key of {key_length} bytes (limit 65535), framing extras need an alternative magic")
    body = len(framing) + len(extras) + len(key) + len(value)
    header = HEADER.pack(magic, opcode, key_length, len(extras), datatype, specific, body, opaque, cas)
    return b"".join((header, framing, extras, key, value))
