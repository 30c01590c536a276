"""The input of `penstock decode`: hex text, JSON captures and raw bytes; and the frames in it."""

from __future__ import annotations

import io
import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from penstock.cli.capture.capture_files import PCAP_MAGICS, PCAPNG_MAGIC
from penstock.errors import RemoteProtocolError, UsageError
from penstock.text_files import decode_text, find_other_encoding
from penstock.wire.codec.constants import MAX_FRAME
from penstock.wire.codec.frame import HEADER, HEADER_BYTES, MAGICS, Frame, cut_frame, read_frame_length

CHUNK_BYTES = 64 * 1024
MAX_JSON = 256 * 1024 * 1024
MAX_LINE = 1024 * 1024
"""Bytes of a line of text that are read at once."""
_TEXT = frozenset(b"\t\n\r\f\v" + bytes(range(0x20, 0x7F)))
_BOM = BOM_UTF8
_GZIP = b"\x1f\x8b"


class CapturedBytes(NamedTuple):
    """Consecutive bytes of one direction of a connection.

    Attributes:
        sender: C for the client, S for the server, or empty if unknown.
        connection: address and port of the client, or the capture's name for the connection.
        time: capture time in seconds, or None.
        whole: the chunk is exactly one frame.
        may_begin: a frame may begin with the chunk, even if bytes before it were lost.
        missing: bytes before the chunk that were not captured.
        closed: no chunk follows in this direction.
        remark: a comment of the capture, instead of bytes.
    """

    data: bytes
    sender: str = ""
    connection: str = ""
    time: float | None = None
    whole: bool = False
    may_begin: bool = False
    missing: int = 0
    closed: bool = False
    remark: str = ""


class FrameSlice(NamedTuple):
    """A frame of one direction of a connection, or an error in it.

    Attributes:
        offset: the first byte of the frame in its direction, from 0.
        frame: None for an error.
        fault: the error; empty for a frame.
    """

    offset: int
    frame: Frame | None = None
    fault: str = ""


class FrameSplitter:
    """Divides the bytes of one direction of a connection into frames; buffers at most one frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._offset = 0
        self._lost = False

    def feed(self, chunk: CapturedBytes) -> Iterator[FrameSlice]:
        """Yield the frames that a chunk completes."""
        if chunk.missing:
            yield FrameSlice(self._offset, fault=f"{chunk.missing} bytes are missing from {self._end} on")
            self._lost, self._offset = True, self._end + chunk.missing
            self._buffer.clear()
        if self._lost and chunk.data:
            self._lost = not (chunk.whole or (chunk.may_begin and is_probably_frame(chunk.data)))
            if self._lost:
                self._offset += len(chunk.data)
        if not self._lost:
            self._buffer += chunk.data
            yield from self._cut_frames()
        if chunk.whole or chunk.closed:
            yield from self.end()

    def end(self) -> Iterator[FrameSlice]:
        """Yield an error if the last frame is incomplete."""
        if self._buffer:
            found = len(self._buffer)
            expected = read_frame_length(self._buffer, 0) if found >= HEADER_BYTES else f"at least {HEADER_BYTES}"
            yield FrameSlice(self._offset, fault=f"frame of {found} bytes, expected {expected}")
        self._offset = self._end
        self._buffer.clear()

    @property
    def _end(self) -> int:
        return self._offset + len(self._buffer)

    def _cut_frames(self) -> Iterator[FrameSlice]:
        found, begin = [], 0
        with memoryview(self._buffer) as view:
            # The first byte alone may show that no frame begins here.
            while len(view) - begin >= HEADER_BYTES or (begin < len(view) and view[begin] not in MAGICS):
                try:
                    size = read_frame_length(view, begin)
                    if size > len(view) - begin:
                        break
                    found.append(FrameSlice(self._offset + begin, cut_frame(view, begin)))
                except RemoteProtocolError as error:
                    found.append(FrameSlice(self._offset + begin, fault=str(error)))
                    if error.fatal:
                        self._lost, size = True, len(view) - begin
                begin += size
        del self._buffer[:begin]
        self._offset += begin
        return iter(found)


def is_probably_frame(data: bytes) -> bool:
    """Return whether bytes look like the beginning of a frame."""
    if not data or data[0] not in MAGICS:
        return False
    if len(data) < HEADER_BYTES:
        return True
    _, _, key_length, extras_length, _, _, body, _, _ = HEADER.unpack_from(data)
    return bool(extras_length + (key_length & 0xFF) <= body <= MAX_FRAME)


def make_peekable(source: BinaryIO) -> io.BufferedReader:
    """Return a reader whose first bytes can be read without consuming them."""
    if isinstance(source, io.BufferedReader):
        return source
    assert isinstance(source, io.BufferedIOBase)  # as every binary file but a raw one
    return io.BufferedReader(source)


def detect_format(source: io.BufferedReader, name: str) -> str:
    """Return the format of a source, detected from its first bytes: hex, json, raw or pcap.

    Args:
        source: the source.
        name: its name, for errors.

    Raises:
        UsageError: it is compressed, or text in another encoding than UTF-8.
    """
    begin = source.peek(CHUNK_BYTES)[:CHUNK_BYTES]
    if begin[:4] in {*PCAP_MAGICS, PCAPNG_MAGIC}:
        return "pcap"
    if begin.startswith(_GZIP):
        raise UsageError(f"{name} is compressed with gzip, expected frames; decompress it first, for example with zcat")
    if begin.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise UsageError(f"{name}: {find_other_encoding(begin)}; expected frames, or text in UTF-8")
    text = begin.removeprefix(_BOM)
    if text.lstrip()[:1] in (b"{", b"["):
        return "json"
    return "hex" if set(text) <= _TEXT else "raw"


def read_lines(source: BinaryIO) -> Iterator[bytes]:
    """Return an iterator over the lines of a source. Lines longer than MAX_LINE are divided."""
    return iter(lambda: source.readline(MAX_LINE), b"")


def read_raw(source: io.BufferedReader) -> Iterator[CapturedBytes]:
    """Yield the bytes of a source as one direction of one connection."""
    while data := source.read1(CHUNK_BYTES):
        yield CapturedBytes(data)


# Captures: an object with frames, or the frames alone


def read_json(source: io.BufferedReader, name: str) -> Iterator[CapturedBytes]:
    """Yield the frames of a capture: `{"frames": [{"dir": "C", "hex": "8050...", "t": 0.1, "conn": 1}, ...]}`.

    `dir` is C, S, or - for a remark, which is in `text`.

    Raises:
        UsageError: the source is not such a capture.
    """
    text = source.read(MAX_JSON + 1)
    if len(text) > MAX_JSON:
        raise UsageError(f"{name}: a capture of more than {MAX_JSON} bytes of JSON, the limit")
    try:
        found = json.loads(decode_text(text, name, "JSON"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: not JSON: {error}") from error
    frames = found.get("frames") if isinstance(found, dict) else found
    if not isinstance(frames, list):
        raise UsageError(f"{name}: expected an object with a list of frames, or that list")
    for number, frame in enumerate(frames, 1):
        yield _read_captured_frame(frame, f"{name}: frame {number}")


def _read_captured_frame(frame: Any, where: str) -> CapturedBytes:
    if not isinstance(frame, dict) or not isinstance(frame.get("hex"), str):
        raise UsageError(f"{where} is not an object with bytes in hex")
    try:
        data = bytes.fromhex(frame["hex"])
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    sender, time, connection = frame.get("dir"), frame.get("t"), frame.get("conn")
    return CapturedBytes(
        data,
        sender if sender in ("C", "S") else "",
        "" if connection is None else str(connection),
        time if isinstance(time, int | float) else None,
        whole=True,
        remark="" if data else str(frame.get("text") or frame.get("remark") or ""),
    )


# Hex text

_PAIRS = r"(?:[0-9a-fA-F]{2} {1,2}){1,16}"
_DUMPS = (
    re.compile(r"(?P<offset>[0-9a-fA-F]{4,16}):\s(?P<bytes>[0-9a-fA-F]+(?: [0-9a-fA-F]+)*)(?: {2}.*)?"),  # xxd
    re.compile(rf"(?P<offset>[0-9a-fA-F]{{4,16}})\s+(?P<bytes>{_PAIRS})(?:.*)"),  # hexdump -C, Wireshark
)
_LAST_OFFSET = re.compile(r"(?P<offset>[0-9a-fA-F]{4,16})(?P<bytes>)")
_BETWEEN = re.compile(r"0[xX]|\\x|[\s,:;]+")


def read_hex(lines: Iterable[bytes], name: str) -> Iterator[CapturedBytes]:
    """Yield the bytes of hex text. Spaces, commas, colons and 0x between digits are ignored.

    A text whose first line begins with offset 0 is a dump of hexdump -C, xxd or Wireshark. Its lines have an offset
    before the bytes, and may have characters after them. After an empty line a new frame may begin.

    Raises:
        UsageError: the text is neither hex digits nor such a dump.
    """
    dump: bool | None = None
    count, rest, may_begin = 0, "", True
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(_BOM).decode("ascii", "replace").strip()
        if not text:
            may_begin = True
            continue
        where = f"{name}: line {number}"
        if dump is None:
            dump = _parse_dump_line(text, 0) is not None
        if dump:
            found = _parse_dump_line(text, count)
            if found is None and (found := _parse_dump_line(text, 0)) is not None:
                count = 0
            if found is None:
                raise UsageError(f"{where}: {text[:60]!r}, expected offset {count:08x} and bytes in hex")
        else:
            found = rest + _BETWEEN.sub("", text)
            found, rest = (found[:-1], found[-1]) if len(found) % 2 else (found, "")
        try:
            data = bytes.fromhex(found)
        except ValueError:
            raise UsageError(f"{where}: {_find_non_hex(text)} is no hex digit") from None
        count += len(data)
        yield CapturedBytes(data, may_begin=may_begin)
        may_begin = False
    if rest:
        raise UsageError(f"{name}: an odd number of hex digits, the last one is {rest!r}")


def _parse_dump_line(text: str, offset: int) -> str | None:
    """Return the hex digits of a dump line that begins at an offset; None if the line does not."""
    for shape in (*_DUMPS, _LAST_OFFSET):
        found = shape.fullmatch(f"{text} " if shape is _DUMPS[1] else text)
        if found is not None and int(found["offset"], 16) == offset:
            return found["bytes"]
    return None


def _find_non_hex(text: str) -> str:
    """Return the first character that is no hex digit, quoted for an error."""
    left = _BETWEEN.sub("", text)
    return next((repr(character) for character in left if character not in "0123456789abcdefABCDEF"), repr(text[:60]))
