"""`penstock decode`: print captured frames as text or JSON."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.cli.base.app import AsJson, Panel, app, format_examples
from penstock.cli.base.json_lines import open_input
from penstock.cli.base.show import format_json_line, format_one_line, print_text, warn
from penstock.cli.capture.frame_text import (
    CapturedBytes,
    FrameSlice,
    FrameSplitter,
    detect_format,
    make_peekable,
    read_hex,
    read_json,
    read_lines,
    read_raw,
)
from penstock.client.dumps.json_objects import make_json_object
from penstock.errors import Error, UsageError

if TYPE_CHECKING:
    from penstock.wire.codec.constants import Dialect
    from penstock.wire.codec.frame import Frame
    from penstock.wire.messages.describe import Description

InputFormat = Literal["auto", "hex", "json", "raw", "pcap"]
DialectChoice = Literal["auto", "tap", "upr-draft", "upr", "dcp"]

_HEX = re.compile(r"\s*[0-9a-fA-F][0-9a-fA-FxX,:\s]*")
_ARROWS = {"C": ">", "S": "<"}
_KEY_WIDTH = 250
_VALUE_WIDTH = 60
_LISTED = 8
"""Elements of a list that are printed as text."""


@app.command(
    rich_help_panel=Panel.DATA,
    epilog=format_examples(
        "penstock decode 80 0a 0000 00 00 0000 00000000 00000007 0000000000000000",
        "penstock decode capture.json --json | jq -r 'select(.error).error'",
        "sudo tcpdump -i lo -U -w - port 11210 | penstock decode -",
    ),
)
def decode(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|HEX", help="File to read, or bytes in hex. Default: standard input (-).", show_default=False
        ),
    ] = None,
    *,
    input_format: Annotated[
        InputFormat, typer.Option("--format", help="Format of the input; auto detects it from the first bytes.")
    ] = "auto",
    dialect: Annotated[
        DialectChoice, typer.Option(help="Dialect; auto detects it from each connection's first change-stream request.")
    ] = "auto",
    port: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=65535,
            metavar="N",
            help="Packet captures: decode only connections to this port; can be repeated.",
            show_default="connections that start with a frame",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decode captured frames, one message per line.

    Reads hex text (plain, or as printed by hexdump -C and xxd), JSON captures and
    raw bytes. Also reads packet captures of tcpdump and Wireshark (pcap, pcapng).
    Packets that are left out are counted on standard error, with the reason.

    A line has the direction (> to the server, < from it), the offset in that
    direction, the message, its vbucket or status, and the opaque. Fields that are
    not 0 follow. Unknown commands are printed with their key, extras and value;
    they are no error. Protocol violations are errors: the exit code is 1, and
    decoding continues with the next message where it can be found.

    With --json, each line is an object with all fields. cas and vbuuid are
    strings, flags are lists of names, and bytes that are not UTF-8 are printed in
    base64, for example as key_base64.
    """
    from penstock.wire.codec.constants import Dialect

    line = _format_json if as_json else _format_text
    messages = faults = 0
    left_out: Counter[str] = Counter()
    with ExitStack() as files:
        files.callback(_report_left_out, left_out)
        chunks = _read_chunks(source or ["-"], input_format, port or (), files, left_out)
        for found in _format_messages(chunks, None if dialect == "auto" else Dialect(dialect), line):
            # One write for each chunk; flushed, because a reader of the pipe waits for it.
            print_text("\n".join(text for text, _ in found))
            messages += len(found)
            faults += sum(fault for _, fault in found)
    if not messages:
        raise Error("the input has no message")
    if faults:
        raise Error(f"{faults} of {messages} messages could not be decoded")


def _report_left_out(left_out: Counter[str]) -> None:
    for reason, count in left_out.items():
        warn(f"{reason}: {count:,} left out")


def _read_chunks(
    source: list[str],
    input_format: InputFormat,
    ports: list[int] | tuple[()],
    files: ExitStack,
    left_out: Counter[str],
) -> Iterator[CapturedBytes]:
    if len(source) > 1 or not (source[0] == "-" or os.path.exists(source[0])):
        if not all(map(_HEX.fullmatch, source)):
            wrong = next(word for word in source if not _HEX.fullmatch(word))
            raise UsageError(f"{wrong!r} is neither an existing file nor bytes in hex")
        return read_hex([" ".join(source).encode()], "the command line")
    name = "standard input" if source[0] == "-" else source[0]
    stream = make_peekable(files.enter_context(open_input(source[0], "a file of frames")))
    match detect_format(stream, name) if input_format == "auto" else input_format:
        case "hex":
            return read_hex(read_lines(stream), name)
        case "json":
            return read_json(stream, name)
        case "pcap":
            from penstock.cli.capture.packets import read_packets

            return read_packets(stream, name, left_out, frozenset(ports))
        case _:
            return read_raw(stream)


LineFormatter = Callable[["CapturedBytes", "FrameSlice", "Dialect | None", "Description | None"], str]


def _format_messages(
    chunks: Iterator[CapturedBytes], chosen: Dialect | None, line: LineFormatter
) -> Iterator[list[tuple[str, bool]]]:
    """Yield the lines of each chunk: one line for each frame, fault and remark, and whether it is a fault."""
    from penstock.wire.messages.describe import describe_frame, guess_dialect
    from penstock.wire.protocol.dialect_detection import detect_dialect

    splitters: dict[tuple[str, str], FrameSplitter] = {}
    dialects: dict[str, Dialect] = {}

    def of(chunk: CapturedBytes, cut: FrameSlice) -> tuple[str, bool]:
        if cut.frame is None:
            return line(chunk, cut, None, None), True
        spoken = chosen or dialects.get(chunk.connection) or detect_dialect(cut.frame)
        if spoken is not None:
            dialects[chunk.connection] = spoken
        description = describe_frame(cut.frame, spoken or guess_dialect(cut.frame))
        return line(chunk, cut, spoken, description), description.fault is not None

    for chunk in chunks:
        if chunk.remark:
            yield [(line(chunk, FrameSlice(0), None, None), False)]
            continue
        way = chunk.connection, chunk.sender
        if found := [of(chunk, cut) for cut in splitters.setdefault(way, FrameSplitter()).feed(chunk)]:
            yield found
        if chunk.closed:
            del splitters[way]
            if not any(connection == chunk.connection for connection, _ in splitters):
                dialects.pop(chunk.connection, None)
    for (connection, sender), splitter in splitters.items():
        if found := [of(CapturedBytes(b"", sender, connection), cut) for cut in splitter.end()]:
            yield found


# As text


def _format_text(
    chunk: CapturedBytes, cut: FrameSlice, dialect: Dialect | None, description: Description | None
) -> str:
    start = f"{chunk.connection} " if chunk.connection else ""
    if chunk.remark:
        return f"{start}- {_escape(chunk.remark)}"
    start += f"{_ARROWS.get(chunk.sender, ' ')} {cut.offset:8}"
    frame = cut.frame
    if frame is None or description is None:
        return f"{start} byte {cut.offset}: {_escape(cut.fault)}"
    name = f"{description.name} reply" if description.reply else description.name
    where = f"vb {description.vbucket}" if description.status is None else description.status
    words = [f"{start} {name:28} {where:11} opaque 0x{frame.opaque:x}"]
    words += [f"{field}={_format_value(content)}" for field, content in _list_nonzero_fields(frame, description)]
    words += [f"{part}={_key(content)}" for part, content in description.parts.items() if part != "value"]
    if value := description.parts.get("value"):
        words.append(f"value={len(value)} bytes: {format_one_line(value, _VALUE_WIDTH)}")
    if description.fault is not None:
        words.append(f"byte {cut.offset}: {_escape(description.fault)}")
    return " ".join(words)


def _list_nonzero_fields(frame: Frame, description: Description) -> Iterator[tuple[str, Any]]:
    if frame.cas:
        yield "cas", frame.cas
    if description.datatype:
        yield "datatype", description.datatype
    yield from ((field, content) for field, content in description.fields.items() if content)


def _format_value(content: Any) -> str:
    match content:
        case bool() | None:
            return str(content).lower()
        case int():
            return "2^64-1" if content == 2**64 - 1 else str(content)
        case bytes():
            return _key(content)
        case Mapping():
            return " ".join(
                f"{name} {_format_value(each)}" for name, each in content.items() if each not in (None, (), b"")
            )
        case tuple() if all(isinstance(each, str) for each in content):
            return "|".join(content)
        case list() | tuple():
            shown = [_format_value(each) for each in content[:_LISTED]]
            more = len(content) - len(shown)
            return f"[{', '.join(shown)}{f', … {more} more' if more else ''}]"
        case _:
            return _escape(str(content))


def _key(content: bytes) -> str:
    """Return bytes as text if they are UTF-8, otherwise in hex."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return f"0x{content[:_KEY_WIDTH].hex()}" + ("…" if len(content) > _KEY_WIDTH else "")
    return format_one_line(content, _KEY_WIDTH)


def _escape(text: str) -> str:
    return format_one_line(text.encode(errors="backslashreplace"), 4 * _KEY_WIDTH)


# As JSON


def _format_json(
    chunk: CapturedBytes, cut: FrameSlice, dialect: Dialect | None, description: Description | None
) -> str:
    start = {"conn": chunk.connection or None, "dir": chunk.sender or None, "t": chunk.time}
    if chunk.remark:
        return format_json_line(make_json_object(start | {"remark": chunk.remark}))
    start["offset"] = cut.offset
    frame = cut.frame
    if frame is None or description is None:
        return format_json_line(make_json_object(start | {"error": f"byte {cut.offset}: {cut.fault}"}))
    row = start | {
        "dialect": dialect,
        "name": description.name,
        "reply": description.reply,
        "bytes": frame.size,
        "magic": frame.magic,
        "opcode": frame.opcode,
        "vbucket": description.vbucket,
        "status": description.status,
        "opaque": frame.opaque,
        "cas": frame.cas,
        "datatype": description.datatype,
        "fields": _make_json_value(description.fields),
        **description.parts,
        "error": None if description.fault is None else f"byte {cut.offset}: {description.fault}",
    }
    return format_json_line(make_json_object(row))


def _make_json_value(content: Any) -> Any:
    """Return fields as JSON values, lists and objects included."""
    match content:
        case Mapping():
            return make_json_object({name: _make_json_value(each) for name, each in content.items()})
        case list() | tuple():
            return [_make_json_value(each) for each in content]
        case _:
            return content
