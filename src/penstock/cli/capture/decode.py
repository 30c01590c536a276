"""`penstock decode`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from penstock.cli.base.app import AsJson, Panel, app, examples
from penstock.cli.base.json_lines import open_input
from penstock.cli.base.show import as_object, json_line, one_line
from penstock.cli.capture.frame_text import (
    CapturedBytes,
    Cut,
    Splitter,
    format_of,
    lines_of,
    peekable,
    read_hex,
    read_json,
    read_raw,
)
from penstock.errors import Error, UsageError

if TYPE_CHECKING:
    from penstock.wire.codec.constants import Dialect
    from penstock.wire.codec.frame import Frame
    from penstock.wire.messages.describe import Description

Format = Literal["auto", "hex", "json", "raw", "pcap"]
Chosen = Literal["auto", "tap", "upr-draft", "upr", "dcp"]

_HEX = re.compile(r"\s*[0-9a-fA-F][0-9a-fA-FxX,:\s]*")
_ARROWS = {"C": ">", "S": "<"}
_KEY_WIDTH = 250
_VALUE_WIDTH = 60
_LISTED = 8
"""Elements of a list that are shown as text."""


@app.command(
    rich_help_panel=Panel.DATA,
    epilog=examples(
        "penstock decode 80 0a 0000 00 00 0000 00000000 00000007 0000000000000000",
        "penstock decode capture.json --json | jq -r 'select(.error).error'",
        "sudo tcpdump -i lo -U -w - port 11210 | penstock decode -",
    ),
)
def decode(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|HEX", help="A file, - or nothing for standard input, or frames in hex.", show_default=False
        ),
    ] = None,
    *,
    shape: Annotated[
        Format, typer.Option("--format", help="What the input is; auto looks at its first bytes.")
    ] = "auto",
    dialect: Annotated[
        Chosen, typer.Option(help="What is spoken; auto goes by each connection's first change-stream request.")
    ] = "auto",
    port: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=65535,
            metavar="N",
            help="Of packets: only connections to this port; may be given again.",
            show_default="connections that look right",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain the bytes of change streams, one message a line.

    Reads hex text (also as hexdump -C and xxd print it), a recorded conversation
    as JSON, bytes as they are, and packets as tcpdump and Wireshark save them
    (pcap, pcapng; they need the package's extra pcap).

    A line has the direction (> to the server, < from it), the offset in that
    direction, the message, its vbucket or status, the opaque, and what is not 0.
    A command of which nothing is declared shows its parts; that is no error.
    What breaks the protocol is an error, and the exit code is 1. Then it goes on
    with the next message, where that is known.

    With --json a line is an object with every field. cas and vbuuid are strings,
    flags lists of names; what is not UTF-8 is in base64, as key_base64.
    """
    from penstock.wire.codec.constants import Dialect

    line = _as_json if as_json else _as_text
    messages = faults = 0
    with ExitStack() as files:
        chunks = _chunks(source or ["-"], shape, port or (), files)
        for found in _lines(chunks, None if dialect == "auto" else Dialect(dialect), line):
            # One write for what came together; flushed, since whoever reads wants to see it now.
            print("\n".join(text for text, _ in found), flush=True)
            messages += len(found)
            faults += sum(fault for _, fault in found)
    if not messages:
        raise Error("there is no message to decode")
    if faults:
        raise Error(f"{faults} of {messages} messages could not be decoded")


def _chunks(
    source: list[str], shape: Format, ports: list[int] | tuple[()], files: ExitStack
) -> Iterator[CapturedBytes]:
    if len(source) > 1 or not (source[0] == "-" or os.path.exists(source[0])):
        if not all(map(_HEX.fullmatch, source)):
            wrong = next(word for word in source if not _HEX.fullmatch(word))
            raise UsageError(f"{wrong!r} is neither a file nor bytes in hex")
        return read_hex([" ".join(source).encode()], "the command line")
    name = "standard input" if source[0] == "-" else source[0]
    stream = peekable(files.enter_context(open_input(source[0], "a file of frames")))
    match format_of(stream) if shape == "auto" else shape:
        case "hex":
            return read_hex(lines_of(stream), name)
        case "json":
            return read_json(stream, name)
        case "pcap":
            from penstock.cli.capture.packets import read_packets

            return read_packets(stream, name, frozenset(ports))
        case _:
            return read_raw(stream)


Line = Callable[["CapturedBytes", "Cut", "Dialect | None", "Description | None"], str]


def _lines(chunks: Iterator[CapturedBytes], chosen: Dialect | None, line: Line) -> Iterator[list[tuple[str, bool]]]:
    """Give the lines of what came together: one for each frame, fault and remark, and whether it is a fault."""
    from penstock.wire.messages.describe import describe, fitting
    from penstock.wire.protocol.dialect_detection import detect

    splitters: dict[tuple[str, str], Splitter] = {}
    dialects: dict[str, Dialect] = {}

    def of(chunk: CapturedBytes, cut: Cut) -> tuple[str, bool]:
        if cut.frame is None:
            return line(chunk, cut, None, None), True
        spoken = chosen or dialects.get(chunk.connection) or detect(cut.frame)
        if spoken is not None:
            dialects[chunk.connection] = spoken
        said = describe(cut.frame, spoken or fitting(cut.frame))
        return line(chunk, cut, spoken, said), said.fault is not None

    for chunk in chunks:
        if chunk.remark:
            yield [(line(chunk, Cut(0), None, None), False)]
            continue
        way = chunk.connection, chunk.sender
        if found := [of(chunk, cut) for cut in splitters.setdefault(way, Splitter()).feed(chunk)]:
            yield found
        if chunk.closed:
            del splitters[way]
            if not any(connection == chunk.connection for connection, _ in splitters):
                dialects.pop(chunk.connection, None)
    for (connection, sender), splitter in splitters.items():
        if found := [of(CapturedBytes(b"", sender, connection), cut) for cut in splitter.end()]:
            yield found


# As text


def _as_text(chunk: CapturedBytes, cut: Cut, dialect: Dialect | None, said: Description | None) -> str:
    start = f"{chunk.connection} " if chunk.connection else ""
    if chunk.remark:
        return f"{start}- {_printable(chunk.remark)}"
    start += f"{_ARROWS.get(chunk.sender, ' ')} {cut.offset:8}"
    frame = cut.frame
    if frame is None or said is None:
        return f"{start} byte {cut.offset}: {_printable(cut.fault)}"
    name = f"{said.name} reply" if said.reply else said.name
    where = f"vb {said.vbucket}" if said.status is None else said.status
    words = [f"{start} {name:28} {where:11} opaque 0x{frame.opaque:x}"]
    words += [f"{field}={_text(content)}" for field, content in _not_zero(frame, said)]
    words += [f"{part}={_key(content)}" for part, content in said.parts.items() if part != "value"]
    if value := said.parts.get("value"):
        words.append(f"value={len(value)} bytes: {one_line(value, _VALUE_WIDTH)}")
    if said.fault is not None:
        words.append(f"byte {cut.offset}: {_printable(said.fault)}")
    return " ".join(words)


def _not_zero(frame: Frame, said: Description) -> Iterator[tuple[str, Any]]:
    if frame.cas:
        yield "cas", frame.cas
    if said.datatype:
        yield "datatype", said.datatype
    yield from ((field, content) for field, content in said.fields.items() if content)


def _text(content: Any) -> str:
    match content:
        case bool() | None:
            return str(content).lower()
        case int():
            return "2^64-1" if content == 2**64 - 1 else str(content)
        case bytes():
            return _key(content)
        case Mapping():
            return " ".join(f"{name} {_text(each)}" for name, each in content.items() if each not in (None, (), b""))
        case tuple() if all(isinstance(each, str) for each in content):
            return "|".join(content)
        case list() | tuple():
            shown = [_text(each) for each in content[:_LISTED]]
            more = len(content) - len(shown)
            return f"[{', '.join(shown)}{f', … {more} more' if more else ''}]"
        case _:
            return _printable(str(content))


def _key(content: bytes) -> str:
    """Return bytes as text where they are UTF-8, otherwise in hex."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return f"0x{content[:_KEY_WIDTH].hex()}" + ("…" if len(content) > _KEY_WIDTH else "")
    return one_line(content, _KEY_WIDTH)


def _printable(text: str) -> str:
    return one_line(text.encode(errors="backslashreplace"), 4 * _KEY_WIDTH)


# As JSON


def _as_json(chunk: CapturedBytes, cut: Cut, dialect: Dialect | None, said: Description | None) -> str:
    start = {"conn": chunk.connection or None, "dir": chunk.sender or None, "t": chunk.time}
    if chunk.remark:
        return json_line(as_object(start | {"remark": chunk.remark}))
    start["offset"] = cut.offset
    frame = cut.frame
    if frame is None or said is None:
        return json_line(as_object(start | {"error": f"byte {cut.offset}: {cut.fault}"}))
    row = start | {
        "dialect": dialect,
        "name": said.name,
        "reply": said.reply,
        "bytes": frame.size,
        "magic": frame.magic,
        "opcode": frame.opcode,
        "vbucket": said.vbucket,
        "status": said.status,
        "opaque": frame.opaque,
        "cas": frame.cas,
        "datatype": said.datatype,
        "fields": _plain(said.fields),
        **said.parts,
        "error": None if said.fault is None else f"byte {cut.offset}: {said.fault}",
    }
    return json_line(as_object(row))


def _plain(content: Any) -> Any:
    """Return fields as JSON can say them, lists and objects included."""
    match content:
        case Mapping():
            return as_object({name: _plain(each) for name, each in content.items()})
        case list() | tuple():
            return [_plain(each) for each in content]
        case _:
            return content
