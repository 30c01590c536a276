"""Parses HTTP/1.1 requests strictly: a request that two programs could read differently is refused.

h11 parses; this module decides which bytes reach it. h11 is lenient where RFC 9112 permits it: it accepts a bare LF as
a line end, joins folded lines, and lets Transfer-Encoding override Content-Length. A proxy in front of the node may
read such a request in another way. The rest of one user's request would then count as the next user's ("request
smuggling").
"""

from __future__ import annotations

import re
from typing import Final

import h11

MAX_HEAD_BYTES: Final = 16 * 1024
MAX_FIELD_LINES: Final = 100
MAX_BODY: Final = 1024 * 1024

RequestEvent = h11.Request | h11.Data | h11.EndOfMessage

_END_OF_HEAD = b"\r\n\r\n"
_INVALID_BYTES = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?=[^\n])")
_VERSIONS = (b"1.0", b"1.1")


class RequestRefused(Exception):
    """A request that is not served. Its connection ends.

    Attributes:
        status: status of the HTTP response.
    """

    def __init__(self, status: int, reason: str) -> None:
        """Make the exception; the reason is shown to the client."""
        super().__init__(reason)
        self.status = status


class RequestReader:
    """Parses the bytes of one connection into requests, one after the other.

    Attributes:
        exchange: h11's state of the current request and its response; None between two requests.
    """

    exchange: h11.Connection | None

    def __init__(self) -> None:
        self.exchange = None
        self._buffer = bytearray()
        self._checked = 0  # bytes at the start of the buffer that are known to be valid in a head

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait for a later `next_event`."""
        return len(self._buffer)

    def feed(self, data: bytes | memoryview) -> None:
        """Add received bytes."""
        self._buffer += data

    def next_event(self) -> RequestEvent | None:
        """Return the next part of a request; None until more bytes arrive.

        After EndOfMessage, the next request is parsed once `finish` was called.

        Raises:
            RequestRefused: the request is invalid or too long.
        """
        if self.exchange is None:
            return self._read_head()
        if self.exchange.their_state is not h11.SEND_BODY:
            return None
        return self._read_body(self.exchange)

    def finish(self) -> None:
        """Prepare for the next request, after the current one was answered."""
        self.exchange = None

    def _read_head(self) -> RequestEvent | None:
        buffer = self._buffer
        if not buffer:
            return None
        found = buffer.find(_END_OF_HEAD, max(0, self._checked - len(_END_OF_HEAD)), MAX_HEAD_BYTES)
        end = len(buffer) if found < 0 else found + len(_END_OF_HEAD)
        _check_bytes(buffer, self._checked, end)
        if found < 0:
            if end >= MAX_HEAD_BYTES:
                raise RequestRefused(431, f"the head of a request is longer than {MAX_HEAD_BYTES} bytes")
            self._checked = end - 1  # a CR at the end may get its LF with the next read
            return None
        head = bytes(buffer[:end])
        del buffer[:end]
        self._checked = 0
        _check_lines(head)
        self.exchange = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.exchange.receive_data(head.removeprefix(b"\r\n"))  # old clients send a CRLF after a body
        request = _read_event(self.exchange)
        assert isinstance(request, h11.Request), request
        _check_framing(request)
        return request

    def _read_body(self, exchange: h11.Connection) -> RequestEvent | None:
        if self._buffer:
            exchange.receive_data(bytes(self._buffer))
            self._buffer.clear()
        event = _read_event(exchange)
        if isinstance(event, h11.EndOfMessage):
            self._buffer += exchange.trailing_data[0]
            return event
        return event if isinstance(event, h11.Data) else None


def _read_event(exchange: h11.Connection) -> object:
    try:
        return exchange.next_event()
    except h11.RemoteProtocolError as error:
        raise RequestRefused(error.error_status_hint, f"invalid HTTP request: {error}") from None


def _check_bytes(buffer: bytearray, start: int, end: int) -> None:
    """Refuse bytes at once that cannot become a head, such as a TLS handshake."""
    found = _INVALID_BYTES.search(buffer, start, end)
    if found is None and (buffer[0] < 0x80 or start):
        return
    value = buffer[0] if found is None else found[0][0]
    if value in b"\r\n":
        raise RequestRefused(400, "invalid HTTP request: CR without LF, or LF without CR")
    raise RequestRefused(400, f"invalid HTTP request: byte 0x{value:02x} in its head")


def _check_lines(head: bytes) -> None:
    lines = head.split(b"\r\n")
    if len(lines) - 3 > MAX_FIELD_LINES:  # without the request line and two empty strings at the end
        raise RequestRefused(431, f"a request with more than {MAX_FIELD_LINES} header lines")
    if any(line.startswith((b" ", b"\t")) for line in lines):
        raise RequestRefused(400, "invalid HTTP request: folded header line")


def _check_framing(request: h11.Request) -> None:
    """Refuse a body whose end is ambiguous or too far away. h11 has refused contradictory and invalid lengths."""
    if request.http_version not in _VERSIONS:
        raise RequestRefused(505, "HTTP/1.0 and HTTP/1.1 are supported")
    fields = dict(request.headers)
    length = int(fields.get(b"content-length", b"0"))
    if b"transfer-encoding" in fields:
        if b"content-length" in fields:
            raise RequestRefused(400, "invalid HTTP request: both Content-Length and Transfer-Encoding")
        if request.http_version == b"1.0":
            raise RequestRefused(400, "invalid HTTP request: Transfer-Encoding in HTTP/1.0")
    if length > MAX_BODY:
        raise RequestRefused(413, f"a body over {MAX_BODY} bytes")


def split_target(request: h11.Request) -> tuple[bytes, bytes]:
    """Return the path, still percent-encoded, and the query of a request. Raises RequestRefused.

    An absolute target, as clients send it to a proxy, has to name the same host as the Host header.
    """
    target = request.target
    if not target.startswith(b"/") and not (target == b"*" and request.method == b"OPTIONS"):
        scheme, _, rest = target.partition(b"://")
        host, slash, path = rest.partition(b"/")
        if scheme.lower() not in (b"http", b"https") or host != dict(request.headers).get(b"host"):
            raise RequestRefused(400, "invalid HTTP request: expected a path, or the URL of a path on the Host")
        target = slash + path or b"/"
    path, _, query = target.partition(b"?")
    return path, query
