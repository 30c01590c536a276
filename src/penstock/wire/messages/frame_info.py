"""Elements in the framing extras of requests and responses.

Source: kv_engine docs/BinaryProtocol.md, "Request header with flexible framing extras", and docs/Durability.md. For the
form of an element see penstock.wire.messages.dcp_values.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.constants import DurabilityLevel, FrameInfoId, ResponseFrameInfo
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import pack_framing, pack_stream_id, unpack_framing, unpack_stream_id

_U16 = Struct(">H")
_NO_TIMEOUTS = (0, 0xFFFF)
_REPEATABLE = frozenset((FrameInfoId.BARRIER, FrameInfoId.DURABILITY, FrameInfoId.PRESERVE_TTL))
"""Elements that may stand several times; the first one counts. Couchbase's C++ core, on which SDKs are built, appends
an element again whenever it repeats a request, such as after NOT_MY_VBUCKET. Source: kv_engine mcbp_validators.cc."""


class Durability(NamedTuple):
    """The replication and persistence that a write must reach before it is answered.

    Attributes:
        level: how many copies, in memory or on disk.
        timeout_ms: milliseconds, 1 to 65534; None: the server's default.
    """

    level: DurabilityLevel
    timeout_ms: int | None = None


class RequestInfos(NamedTuple):
    """Contents of a request's framing extras.

    Attributes:
        durability: the level that a write must reach before it is answered.
        stream_id: the id of a change stream.
        preserve_ttl: the document keeps its expiry.
        barrier: the request is not executed beside others.
        impersonate: the request is executed with this user's rights.
        privileges: privileges that the request has beside the impersonated user's.
        token_id: the token that identifies the user.
    """

    durability: Durability | None = None
    stream_id: int | None = None
    preserve_ttl: bool = False
    barrier: bool = False
    impersonate: str | None = None
    privileges: tuple[str, ...] = ()
    token_id: int | None = None


def pack_request_infos(infos: RequestInfos) -> bytes:
    """Return the framing extras of a request.

    Raises:
        LocalProtocolError: a number or text does not fit.
    """
    elements: list[tuple[int, bytes]] = []
    if infos.barrier:
        elements.append((FrameInfoId.BARRIER, b""))
    if infos.durability is not None:
        elements.append((FrameInfoId.DURABILITY, _pack_durability(infos.durability)))
    if infos.stream_id is not None:
        elements += unpack_framing(pack_stream_id(infos.stream_id))
    if infos.impersonate is not None:
        elements.append((FrameInfoId.IMPERSONATE, infos.impersonate.encode()))
    if infos.preserve_ttl:
        elements.append((FrameInfoId.PRESERVE_TTL, b""))
    elements += [(FrameInfoId.EXTRA_PRIVILEGE, name.encode()) for name in infos.privileges]
    if infos.token_id is not None:
        elements.append((FrameInfoId.TOKEN_AUTH, _pack_u16("token id", infos.token_id)))
    return pack_framing(elements)


def unpack_request_infos(framing: bytes) -> RequestInfos:
    """Return the contents of a request's framing extras.

    Raises:
        RemoteProtocolError: an element is not well formed, is unknown, or is a user, token or stream for the second
            time; not fatal. The status is UNKNOWN_FRAME_INFO, DURABILITY_INVALID_LEVEL, DCP_STREAMID_INVALID or EINVAL.
    """
    infos: dict[str, Any] = {}
    privileges = []
    for number, data in unpack_framing(framing):
        if number not in _READERS:
            raise _make_error(f"element {number} is not known", Status.UNKNOWN_FRAME_INFO)
        name, read = _READERS[number]
        if number == FrameInfoId.EXTRA_PRIVILEGE:
            privileges.append(_unpack_text(data))
        elif name in infos and number not in (*_REPEATABLE, FrameInfoId.STREAM_ID):
            raise _make_error(f"{FrameInfoId(number).name} twice")
        else:
            infos.setdefault(name, read(data))
    if "stream_id" in infos:
        infos["stream_id"] = unpack_stream_id(framing)
    return RequestInfos(**infos, privileges=(*privileges,))


def _pack_durability(wanted: Durability) -> bytes:
    level, timeout_ms = wanted
    if timeout_ms is None:
        return bytes([level])
    if timeout_ms in _NO_TIMEOUTS:
        raise LocalProtocolError(f"durability: timeout of {timeout_ms} ms, expected 1 to 65534")
    return bytes([level]) + _pack_u16("durability: timeout", timeout_ms)


def _unpack_durability(data: bytes) -> Durability:
    if len(data) not in (1, 1 + _U16.size):
        raise _make_error(f"DURABILITY of {len(data)} bytes, expected 1 or 3")
    if data[0] not in DurabilityLevel._value2member_map_:
        raise _make_error(f"durability level {data[0]}, expected 1 to 3", Status.DURABILITY_INVALID_LEVEL)
    timeout_ms = int.from_bytes(data[1:], "big") if len(data) > 1 else None
    if timeout_ms in _NO_TIMEOUTS:
        text = f"durability timeout of {timeout_ms} ms, expected 1 to 65534"
        raise _make_error(text, Status.DURABILITY_INVALID_LEVEL)  # kv_engine has one status for level and timeout
    return Durability(DurabilityLevel(data[0]), timeout_ms)


def _unpack_flag(data: bytes) -> bool:
    if data:
        raise _make_error(f"{len(data)} bytes in an element that has none")
    return True


def _unpack_text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise _make_error(f"{data[:40]!r} is not UTF-8") from None
    if not text:
        raise _make_error("a name of no bytes")
    return text


def _unpack_u16(data: bytes) -> int:
    if len(data) != _U16.size:
        raise _make_error(f"number of {len(data)} bytes, expected {_U16.size}")
    return int.from_bytes(data, "big")


_READERS: dict[int, tuple[str, Callable[[bytes], Any]]] = {
    FrameInfoId.BARRIER: ("barrier", _unpack_flag),
    FrameInfoId.DURABILITY: ("durability", _unpack_durability),
    FrameInfoId.STREAM_ID: ("stream_id", bytes),  # which penstock.wire.messages.dcp_values reads
    FrameInfoId.IMPERSONATE: ("impersonate", _unpack_text),
    FrameInfoId.PRESERVE_TTL: ("preserve_ttl", _unpack_flag),
    FrameInfoId.EXTRA_PRIVILEGE: ("privileges", _unpack_text),
    FrameInfoId.TOKEN_AUTH: ("token_id", _unpack_u16),
}


# Responses


class ResponseInfos(NamedTuple):
    """Contents of a response's framing extras.

    Attributes:
        server_us: microseconds that the server needed, with an error of up to half a percent.
        read_units, write_units: units that the request cost.
        throttle_us: microseconds for which the server delayed the request, as exact as server_us.
    """

    server_us: float | None = None
    read_units: int | None = None
    write_units: int | None = None
    throttle_us: float | None = None


_EXPONENT = 1.74
_LONGEST_US: Final = 0xFFFF**_EXPONENT / 2


def encode_duration(microseconds: float) -> int:
    """Return a duration as a u16. Durations above 120 seconds or so are encoded as the longest one."""
    encoded: int = round((2 * min(max(microseconds, 0.0), _LONGEST_US)) ** (1 / _EXPONENT))
    return encoded


def decode_duration(encoded: int) -> float:
    """Return a duration in microseconds."""
    return float(encoded**_EXPONENT / 2)


def pack_duration(microseconds: float) -> bytes:
    """Return framing extras with nothing but the server's duration."""
    return _DURATION + _U16.pack(encode_duration(microseconds))


_DURATION = bytes([ResponseFrameInfo.SERVER_DURATION << 4 | _U16.size])


def pack_response_infos(infos: ResponseInfos) -> bytes:
    """Return the framing extras of a response.

    Raises:
        LocalProtocolError: a number does not fit.
    """
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
    """Return the contents of a response's framing extras; unknown elements are ignored.

    Raises:
        RemoteProtocolError: an element is not well formed or stands twice; not fatal.
    """
    numbers: dict[int, int] = {}
    for number, data in unpack_framing(framing):
        if number not in ResponseFrameInfo._value2member_map_:
            continue
        if number in numbers:
            raise _make_error(f"{ResponseFrameInfo(number).name} twice")
        numbers[number] = _unpack_u16(data)
    server, throttle = (
        numbers.get(kind) for kind in (ResponseFrameInfo.SERVER_DURATION, ResponseFrameInfo.THROTTLE_DURATION)
    )
    return ResponseInfos(
        server_us=None if server is None else decode_duration(server),
        read_units=numbers.get(ResponseFrameInfo.READ_UNITS),
        write_units=numbers.get(ResponseFrameInfo.WRITE_UNITS),
        throttle_us=None if throttle is None else decode_duration(throttle),
    )


def _pack_u16(name: str, number: int) -> bytes:
    try:
        return _U16.pack(number)
    except StructError as error:
        raise LocalProtocolError(f"{name} {number}: {error}") from error


def _make_error(fault: str, status: int = Status.EINVAL) -> RemoteProtocolError:
    return RemoteProtocolError(f"framing extras: {fault}", status=status, fatal=False)
