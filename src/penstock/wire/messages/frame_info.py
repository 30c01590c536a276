"""What stands in the framing extras of requests and responses.

Source: kv_engine docs/BinaryProtocol.md, "Request header with flexible framing extras", and docs/Durability.md. How
elements are laid out: penstock.wire.messages.dcp_values.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.constants import DurabilityLevel, FrameInfoId, ResponseFrameInfo
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import framing_of, pack_framing, stream_id, unpack_framing

__all__ = [
    "Durability",
    "RequestInfos",
    "ResponseInfos",
    "decode_duration",
    "duration_framing",
    "encode_duration",
    "pack_request_infos",
    "pack_response_infos",
    "unpack_request_infos",
    "unpack_response_infos",
]

_U16 = Struct(">H")
_NO_TIMEOUTS = (0, 0xFFFF)


class Durability(NamedTuple):
    """How far a write must have got before it is answered. level: a DurabilityLevel. timeout_ms: 1 to 65534; None: as
    the server likes."""

    level: DurabilityLevel
    timeout_ms: int | None = None


class RequestInfos(NamedTuple):
    """What a request says in its framing extras.

    barrier: not to be done beside others. impersonate: the user in whose name it is done. privileges: those that the
    one who asks has beside the user's own. token_id: which token says who asks.
    """

    durability: Durability | None = None
    stream_id: int | None = None
    preserve_ttl: bool = False
    barrier: bool = False
    impersonate: str | None = None
    privileges: tuple[str, ...] = ()
    token_id: int | None = None


def pack_request_infos(infos: RequestInfos) -> bytes:
    """Raises LocalProtocolError for a number or text that does not fit."""
    elements: list[tuple[int, bytes]] = []
    if infos.barrier:
        elements.append((FrameInfoId.BARRIER, b""))
    if infos.durability is not None:
        elements.append((FrameInfoId.DURABILITY, _pack_durability(infos.durability)))
    if infos.stream_id is not None:
        elements += unpack_framing(framing_of(infos.stream_id))
    if infos.impersonate is not None:
        elements.append((FrameInfoId.IMPERSONATE, infos.impersonate.encode()))
    if infos.preserve_ttl:
        elements.append((FrameInfoId.PRESERVE_TTL, b""))
    elements += [(FrameInfoId.EXTRA_PRIVILEGE, name.encode()) for name in infos.privileges]
    if infos.token_id is not None:
        elements.append((FrameInfoId.TOKEN_AUTH, _pack_u16("token id", infos.token_id)))
    return pack_framing(elements)


def unpack_request_infos(framing: bytes) -> RequestInfos:
    """Return what framing extras say.

    Raises RemoteProtocolError, not fatal: status UNKNOWN_FRAME_INFO for an element that is not known,
    DURABILITY_INVALID_LEVEL, DCP_STREAMID_INVALID, and EINVAL for whatever else is not well formed or stands twice.
    """
    said: dict[str, Any] = {}
    privileges = []
    for number, data in unpack_framing(framing):
        if number not in _READERS:
            raise _bad(f"element {number} is not known", Status.UNKNOWN_FRAME_INFO)
        name, read = _READERS[number]
        if number == FrameInfoId.EXTRA_PRIVILEGE:
            privileges.append(_text(data))
        elif name in said and number != FrameInfoId.STREAM_ID:
            raise _bad(f"{FrameInfoId(number).name} twice")
        else:
            said[name] = read(data)
    if "stream_id" in said:
        said["stream_id"] = stream_id(framing)
    return RequestInfos(**said, privileges=(*privileges,))


def _pack_durability(wanted: Durability) -> bytes:
    level, timeout_ms = wanted
    if timeout_ms is None:
        return bytes([level])
    if timeout_ms in _NO_TIMEOUTS:
        raise LocalProtocolError(f"durability: timeout of {timeout_ms} ms, expected 1 to 65534")
    return bytes([level]) + _pack_u16("durability: timeout", timeout_ms)


def _durability(data: bytes) -> Durability:
    if len(data) not in (1, 1 + _U16.size):
        raise _bad(f"DURABILITY of {len(data)} bytes, expected 1 or 3")
    if data[0] not in DurabilityLevel._value2member_map_:
        raise _bad(f"durability level {data[0]}, expected 1 to 3", Status.DURABILITY_INVALID_LEVEL)
    timeout_ms = int.from_bytes(data[1:], "big") if len(data) > 1 else None
    if timeout_ms in _NO_TIMEOUTS:
        raise _bad(f"durability timeout of {timeout_ms} ms, expected 1 to 65534")
    return Durability(DurabilityLevel(data[0]), timeout_ms)


def _present(data: bytes) -> bool:
    if data:
        raise _bad(f"{len(data)} bytes in an element that has none")
    return True


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _bad(f"{data[:40]!r} is not UTF-8") from None
    if not text:
        raise _bad("a name of no bytes")
    return text


def _u16(data: bytes) -> int:
    if len(data) != _U16.size:
        raise _bad(f"number of {len(data)} bytes, expected {_U16.size}")
    return int.from_bytes(data, "big")


_READERS: dict[int, tuple[str, Callable[[bytes], Any]]] = {
    FrameInfoId.BARRIER: ("barrier", _present),
    FrameInfoId.DURABILITY: ("durability", _durability),
    FrameInfoId.STREAM_ID: ("stream_id", bytes),  # which penstock.wire.messages.dcp_values reads
    FrameInfoId.IMPERSONATE: ("impersonate", _text),
    FrameInfoId.PRESERVE_TTL: ("preserve_ttl", _present),
    FrameInfoId.EXTRA_PRIVILEGE: ("privileges", _text),
    FrameInfoId.TOKEN_AUTH: ("token_id", _u16),
}


# Of responses


class ResponseInfos(NamedTuple):
    """What a response says in its framing extras. server_us, throttle_us: microseconds that the server took, and that
    it made the request wait; about half a percent exact."""

    server_us: float | None = None
    read_units: int | None = None
    write_units: int | None = None
    throttle_us: float | None = None


_EXPONENT = 1.74
_LONGEST_US: Final = 0xFFFF**_EXPONENT / 2


def encode_duration(microseconds: float) -> int:
    """Return a duration as the u16 that says it; what is longer than about 120 seconds is said as that."""
    encoded: int = round((2 * min(max(microseconds, 0.0), _LONGEST_US)) ** (1 / _EXPONENT))
    return encoded


def decode_duration(encoded: int) -> float:
    """Return microseconds."""
    return float(encoded**_EXPONENT / 2)


def duration_framing(microseconds: float) -> bytes:
    """Return the framing extras that say nothing but how long the server took."""
    return _DURATION + _U16.pack(encode_duration(microseconds))


_DURATION = bytes([ResponseFrameInfo.SERVER_DURATION << 4 | _U16.size])


def pack_response_infos(infos: ResponseInfos) -> bytes:
    """Raises LocalProtocolError for a number that does not fit."""
    numbers = (
        (ResponseFrameInfo.SERVER_DURATION, None if infos.server_us is None else encode_duration(infos.server_us)),
        (ResponseFrameInfo.READ_UNITS, infos.read_units),
        (ResponseFrameInfo.WRITE_UNITS, infos.write_units),
        (
            ResponseFrameInfo.THROTTLE_DURATION,
            None if infos.throttle_us is None else encode_duration(infos.throttle_us),
        ),
    )
    return pack_framing((kind, _pack_u16(kind.name, number)) for kind, number in numbers if number is not None)


def unpack_response_infos(framing: bytes) -> ResponseInfos:
    """Return what framing extras say; elements that are not known are passed over.

    Raises RemoteProtocolError, not fatal, for what is not well formed or stands twice.
    """
    said: dict[int, int] = {}
    for number, data in unpack_framing(framing):
        if number not in ResponseFrameInfo._value2member_map_:
            continue
        if number in said:
            raise _bad(f"{ResponseFrameInfo(number).name} twice")
        said[number] = _u16(data)
    server, throttle = (
        said.get(kind) for kind in (ResponseFrameInfo.SERVER_DURATION, ResponseFrameInfo.THROTTLE_DURATION)
    )
    return ResponseInfos(
        server_us=None if server is None else decode_duration(server),
        read_units=said.get(ResponseFrameInfo.READ_UNITS),
        write_units=said.get(ResponseFrameInfo.WRITE_UNITS),
        throttle_us=None if throttle is None else decode_duration(throttle),
    )


def _pack_u16(what: str, number: int) -> bytes:
    try:
        return _U16.pack(number)
    except StructError as error:
        raise LocalProtocolError(f"{what} {number}: {error}") from error


def _bad(what: str, status: int = Status.EINVAL) -> RemoteProtocolError:
    return RemoteProtocolError(f"framing extras: {what}", status=status, fatal=False)
