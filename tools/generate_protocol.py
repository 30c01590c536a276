"""Write docs/protocol.md from the declared layouts; with --check only say whether it would change."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from generated import publish, table

from penstock.wire.codec.constants import MAX_SEQNO, Dialect
from penstock.wire.codec.frame import HEADER, HEADER_BYTES, cut_frame
from penstock.wire.codec.layout import LAYOUTS, PRIVATE, Code, Layout, Message, Part, Response
from penstock.wire.codec.opcodes import DraftCode, Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages import cluster, collections, dcp, kv, observe, sasl, subdoc, tap, upr, upr_draft
from penstock.wire.messages.describe import ENUMS, Description, describe_frame, list_wire_fields
from penstock.wire.protocol.dialect_detection import FIRST_DRAFT_REQUESTS, FIRST_REQUESTS
from penstock.wire.protocol.stream_state import EVENTS, TRANSITIONS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.golden import GOLDEN_OF, frame_of  # noqa: E402 - the frames that the tests hold the layouts to

OPENING = """\
# The messages

<!-- Made by tools/generate_protocol.py from the layouts in src/penstock/wire; edit those. -->

This page has every message of the four change-stream dialects, and of the commands beside them, byte by byte.
`penstock decode` prints messages in the same words.

## The frame

All messages are frames of the memcached binary protocol: a header of 24 bytes, then the body. Integers are big-endian.

| offset | size | field | meaning |
| --- | --- | --- | --- |
| 0 | 1 | magic | 0x80 request, 0x81 response; with framing extras 0x08 and 0x18; 0x82 a server's request, 0x83 its \
response |
| 1 | 1 | opcode | the command; in a response, the command of its request |
| 2 | 2 | key length | with framing extras: 1 byte their length, 1 byte the key's |
| 4 | 1 | extras length | |
| 5 | 1 | datatype | the form of the value, a [Datatype](#datatype); in the UPR draft the kind of the message |
| 6 | 2 | vbucket or status | a request's vbucket; a response's [Status](#status), in the UPR draft its vbucket |
| 8 | 4 | body length | length of the bytes behind the header |
| 12 | 4 | opaque | chosen by the sender; responses and messages of a stream repeat that of the request |
| 16 | 8 | cas | a document's version; 0 elsewhere |

The body is: framing extras, extras, engine-private data (TAP only), key, value.

## The dialect of a connection

Opcodes overlap between the dialects, so the first change-stream request of a connection decides:
"""

NOTE = """\
An offset counts from the beginning of the frame. Extras of several lengths are several forms of one message. In the
examples the bytes are on the left and their meaning is on the right.
"""


class Chapter(NamedTuple):
    """A module of messages: its heading, and the dialect in which they are looked up."""

    title: str
    dialect: Dialect
    module: ModuleType
    streams: bool = True


CHAPTERS = (
    Chapter("TAP", Dialect.TAP, tap),
    Chapter("UPR draft", Dialect.UPR_DRAFT, upr_draft),
    Chapter("UPR", Dialect.UPR, upr),
    Chapter("DCP", Dialect.DCP, dcp),
    Chapter("Key-value and bucket commands", Dialect.DCP, kv, streams=False),
    Chapter("Parts of documents", Dialect.DCP, subdoc, streams=False),
    Chapter("Collections", Dialect.DCP, collections, streams=False),
    Chapter("Logging in", Dialect.DCP, sasl, streams=False),
    Chapter("The node, and what it says unasked", Dialect.DCP, cluster, streams=False),
    Chapter("Commands about the disk", Dialect.DCP, observe, streams=False),
)

MANY = 3
"""Opcodes that a heading can hold."""

LONGEST = 100
"""Bytes of an example, where there is one as short."""

SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8}


@dataclass
class Entry:
    """A message: its class, its codes and its forms."""

    cls: type[Message]
    codes: list[Code]
    layouts: list[Layout]

    @property
    def name(self) -> str:
        return ", ".join(code.name for code in self.codes)

    @property
    def title(self) -> str:
        """The heading: the message's name; of one of many commands, and of a reply to many, the class's."""
        if len(self.codes) > (MANY if self.is_reply else 2 * MANY):
            return self.cls.__name__
        return f"{self.name} reply" if self.is_reply else self.name

    @property
    def is_reply(self) -> bool:
        return issubclass(self.cls, Response) and not isinstance(self.codes[0], DraftCode)


def list_entries(chapter: Chapter) -> list[Entry]:
    """Return the messages of a module, in the order of their opcodes, each before its reply."""
    found: dict[type[Message], Entry] = {}
    for directions in LAYOUTS.values():
        for by_number in directions.values():
            for number, forms in by_number.items():
                for layout in forms.values():
                    if layout.cls.__module__ != chapter.module.__name__:
                        continue
                    code = type(layout.cls.opcode)(number)
                    entry = found.setdefault(layout.cls, Entry(layout.cls, [], []))
                    if code not in entry.codes:
                        entry.codes.append(code)
                    if layout not in entry.layouts:
                        entry.layouts.append(layout)
    return sorted(
        found.values(), key=lambda each: (len(each.codes) > 3 and each.is_reply, min(each.codes), each.is_reply)
    )


def make_page() -> str:
    parts = [OPENING, list_first_requests(), NOTE]
    for chapter in CHAPTERS:
        parts += list(list_chapter_parts(chapter))
    parts += ["## Numbers with names", *list_enums()]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def list_first_requests() -> str:
    rows = [(f"0x{Opcode.TAP_CONNECT:02x}", "any", Dialect.TAP)]
    rows += [(f"0x{opcode:02x}", str(extras), dialect) for (opcode, extras), dialect in FIRST_REQUESTS.items()]
    rows += [
        (f"0x{kind >> 8:02x}, byte 5 is {kind & 0xFF}", str(extras), Dialect.UPR_DRAFT)
        for kind, extras in sorted(FIRST_DRAFT_REQUESTS)
    ]
    return table(("opcode", "bytes of extras", "dialect"), rows)


def list_chapter_parts(chapter: Chapter) -> Iterator[str]:
    yield f"## {chapter.title}"
    yield format_prose(chapter.module.__doc__ or "")
    found = list_entries(chapter)
    rows = [
        (
            format_codes(entry),
            f"[{entry.title}](#{make_anchor(make_heading(entry, found))})",
            *summarize_entry(entry, found),
        )
        for entry in found
    ]
    yield table(("opcode", "message", "from, to", "is"), rows)
    if chapter.streams:
        yield f"### A stream of {chapter.title}"
        yield draw_states(chapter.dialect)
    for entry in found:
        yield from list_message_parts(entry, found, chapter)


def make_heading(entry: Entry, found: list[Entry]) -> str:
    """Return a heading that distinguishes messages of one name: by the length of the extras, or by the dialect."""
    same = [each for each in found if each.title == entry.title]
    if len(same) == 1:
        return entry.title
    return f"{entry.title}, {count_extras(entry)} of extras"


def count_extras(entry: Entry) -> str:
    """Return how many bytes of extras a message has, in words."""
    sizes = sorted(layout.extras.size for layout in entry.layouts)
    return f"{' or '.join(map(str, sizes))} {'byte' if sizes == [1] else 'bytes'}"


def list_message_parts(entry: Entry, found: list[Entry], chapter: Chapter) -> Iterator[str]:
    yield f"### {make_heading(entry, found)}"
    yield link_enums(read_documentation(entry))
    yield describe_header(entry)
    yield from make_body_tables(entry)
    yield make_example(entry, chapter.dialect)


def read_documentation(entry: Entry) -> str:
    """Return the docstring of the class of a message."""
    own = entry.cls.__doc__ or ""
    if own.startswith(f"{entry.cls.__name__}("):
        return "Says nothing but its fields."

    def name(found: re.Match[str]) -> str:
        other = getattr(sys.modules[entry.cls.__module__], found[2], None)
        if not (isinstance(other, type) and issubclass(other, Message)):
            return found[0]
        return f"{found[1]} {'the form above' if other.opcode in entry.codes else other.opcode.name}"

    return format_prose(re.sub(r"\b([Aa]s(?: of)?) ([A-Z]\w+)", name, own))


def summarize_entry(entry: Entry, found: list[Entry]) -> tuple[str, str]:
    """Return the direction of a message, and the first sentence about it."""
    first = read_documentation(entry).split(". ")[0].split("\n")[0].rstrip(".:")
    way, separator, rest = first.partition(": ")
    if separator and re.fullmatch(r"\w+ to \w+", way):
        return way.lower().replace(" to ", " → "), format_cell(rest)
    namesake = next(each for each in found if each.title == entry.title)
    if namesake is not entry:
        return summarize_entry(namesake, found)[0], format_cell(first)
    if isinstance(entry.codes[0], DraftCode) and entry.cls.magic is Magic.RESPONSE:
        return "producer → consumer", format_cell(first)
    return "answer" if entry.is_reply else "client → server", format_cell(first)


def format_codes(entry: Entry) -> str:
    if len(entry.codes) > 2 * MANY:
        return "several"
    if isinstance(entry.codes[0], DraftCode):
        return ", ".join(f"0x{code >> 8:02x}, byte 5 is {code & 0xFF}" for code in entry.codes)
    return ", ".join(f"0x{code:02x}" for code in entry.codes)


def describe_header(entry: Entry) -> str:
    """Return one line about the parts of the frame that are no fields."""
    uses = dict(entry.layouts[0].parts)
    if entry.layouts[0].tails:
        uses["value"] = Part.PRESENT
    by_use: dict[Part, list[str]] = {}
    for name, part in uses.items():
        by_use.setdefault(part, []).append(name)
    words = {
        Part.PRESENT: "always there: {}",
        Part.MAYBE: "may be there: {}",
        Part.ABSENT: "not there: {}",
    }
    line = "; ".join(words[part].format(", ".join(by_use[part])) for part in words if part in by_use)
    opcodes = f"Opcodes {entry.name}. " if len(entry.codes) > 1 else f"Opcode {format_codes(entry)}. "
    magic = f"Magic 0x{entry.cls.magic:02x}. "
    return f"{opcodes}{magic}Extras of {count_extras(entry)}. {line[0].upper()}{line[1:]}."


def make_body_tables(entry: Entry) -> Iterator[str]:
    longest = max(entry.layouts, key=lambda layout: layout.extras.size)
    shortest = min(entry.layouts, key=lambda layout: layout.extras.size)
    docs = {field.name: field.metadata["doc"] for field in list_wire_fields(entry.cls)}
    rows = []
    at = HEADER_BYTES
    if longest.private:
        rows.append((at, 2, "engine-private length", "bytes of engine-private data, which stand before the key"))
        at += 2
    for name, code in zip(longest.names, longest.extras.format[1 + longest.private :], strict=True):
        optional = " (may be missing)" if name not in shortest.names else ""
        rows.append((at, SIZES[code], f"`{name}`{optional}", format_cell(docs[name])))
        at += SIZES[code]
    if rows:
        yield table(("offset", "size", "extras", "meaning"), rows)
    if longest.tails:
        most, names = longest.tails[max(longest.tails)]
        least = longest.tails[min(longest.tails)][1]
        at, rows = 0, []
        for name, code in zip(names, most.format[1:], strict=True):
            optional = " (may be missing)" if name not in least else ""
            rows.append((at, SIZES[code], f"`{name}`{optional}", format_cell(docs[name])))
            at += SIZES[code]
        lengths = " or ".join(str(size) for size in sorted(longest.tails))
        yield table(("in the value", "size", f"value of {lengths} bytes", "meaning"), rows)


# Examples


def make_example(entry: Entry, dialect: Dialect) -> str:
    """Return the golden frame of a message with the most fields, and the meaning of its bytes."""
    rows = [
        (message, frame_of(octets))
        for golden in GOLDEN_OF.values()
        for _, message, octets in golden
        if type(message) is entry.cls and not message.framing and message.key.isascii()
    ]
    short = [row for row in rows if len(row[1]) <= LONGEST]
    message, data = max(short or rows, key=lambda row: len(row[1]) - row[1].count(0))
    lines = annotate_frame(data, message, entry, dialect)
    return (
        "```text\n"
        + "\n".join(f"{at:4}  {octets.hex(' '):23}  {words}".rstrip() for at, octets, words in lines)
        + "\n```"
    )


Line = tuple[int, bytes, str]
"""Offset, at most 8 bytes from there, and their meaning."""

INSIDE_PRIVATE = ("rev_seqno", "nru", "command", "state", "max_deleted_rev_seqno")
"""The fields that engine-private data is made of; others are of the value."""


def annotate_frame(data: bytes, message: Message, entry: Entry, dialect: Dialect) -> Iterator[Line]:
    """Yield the lines of a frame, from its first byte to its last."""
    yield from list_header_lines(data, message, draft=isinstance(entry.codes[0], DraftCode))
    frame = cut_frame(memoryview(data), 0)
    description = describe_frame(frame, dialect)
    if description.fault is not None:
        raise ValueError(f"{entry.name}: {description.fault}")
    layout = next(each for each in entry.layouts if each.extras.size == len(frame.extras))
    at = HEADER_BYTES
    private = getattr(message, PRIVATE, b"")
    if layout.private:
        yield at, data[at : at + 2], f"engine-private length {len(private)}"
        at += 2
    yield from list_field_lines(
        at, data, zip(layout.names, layout.extras.format[1 + layout.private :], strict=True), description
    )
    at = HEADER_BYTES + layout.extras.size
    inside = {
        name: value for name, value in description.fields.items() if name not in layout.names and value is not None
    }
    of_private = {name: inside.pop(name) for name in INSIDE_PRIVATE if layout.private and name in inside}
    yield from split_block(
        at, private, f"engine-private data: {list_fields(of_private)}" if of_private else "engine-private data"
    )
    at += len(private)
    yield from split_block(at, message.key, f"key {message.key.decode()}")
    at += len(message.key)
    if layout.tails:
        tail, names = next(each for each in layout.tails.values() if each[0].size == len(data) - at)
        yield from list_field_lines(at, data, zip(names, tail.format[1:], strict=True), description)
    else:
        yield from split_block(
            at, message.value, f"value: {list_fields(inside)}" if inside else f"value {decode_text(message.value)}"
        )


def list_header_lines(data: bytes, message: Message, *, draft: bool) -> Iterator[Line]:
    magic, opcode, key_length, extras_length, datatype, specific, body, opaque, cas = HEADER.unpack_from(data)
    specific_text = f"status {Status(specific).name}" if message.specific_name == "status" else f"vbucket {specific}"
    yield 0, data[:4], f"magic 0x{magic:02x}, opcode 0x{opcode:02x}, key length {key_length}"
    yield 4, data[4:8], f"extras length {extras_length}, {'kind' if draft else 'datatype'} {datatype}, {specific_text}"
    yield 8, data[8:12], f"body length {body}"
    yield 12, data[12:16], f"opaque 0x{opaque:x}"
    yield 16, data[16:24], f"cas {cas}"


def list_field_lines(
    at: int, data: bytes, declared: Iterable[tuple[str, str]], description: Description
) -> Iterator[Line]:
    """Yield a line for each field, declared by name and struct code."""
    for name, code in declared:
        yield at, data[at : at + SIZES[code]], f"{name} {format_content(description.fields[name])}"
        at += SIZES[code]


def list_fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {format_content(content)}" for name, content in fields.items())


def decode_text(value: bytes) -> str:
    """Return a value as text, nothing if it is not printable ASCII."""
    return value.decode() if value.isascii() and value.decode().isprintable() else ""


def split_block(at: int, content: bytes, words: str) -> Iterator[tuple[int, bytes, str]]:
    """Give a part of any length in lines of 8 bytes, the words beside the first."""
    for begin in range(0, len(content), 8):
        yield at + begin, content[begin : begin + 8], "" if begin else words


def format_content(content: Any) -> str:
    if isinstance(content, dict):
        return " ".join(f"{name} {format_content(each)}" for name, each in content.items())
    if isinstance(content, tuple | list):
        joint = "|" if all(isinstance(each, str) for each in content) and isinstance(content, tuple) else ", "
        return joint.join(map(format_content, content)) or "0"
    if isinstance(content, bytes):
        return repr(content)[2:-1]
    return "2^64-1" if content == MAX_SEQNO else str(content)


# Streams


def draw_states(dialect: Dialect) -> str:
    """Return the states of a stream as a diagram, and which message is which event."""
    transitions = TRANSITIONS[dialect]
    lines = ["stateDiagram-v2", f"    [*] --> {name_state(next(iter(transitions)))}"]
    for state, following in transitions.items():
        by_target: dict[Any, list[str]] = {}
        for event, target in following.items():
            by_target.setdefault(target, []).append(event.value)
        for target, events in by_target.items():
            lines.append(f"    {name_state(state)} --> {name_state(target)}: {', '.join(events)}")
        if not following:
            lines.append(f"    {name_state(state)} --> [*]")
    by_event: dict[str, list[str]] = {}
    for cls, event in EVENTS[dialect].items():
        by_event.setdefault(event.value, [])
        if cls.opcode.name not in by_event[event.value]:
            by_event[event.value].append(cls.opcode.name)
    rows = [(event, ", ".join(names)) for event, names in by_event.items()]
    return (
        "The order of messages, for both sides. Any other order breaks the protocol.\n\n"
        "```mermaid\n" + "\n".join(lines) + "\n```\n\n" + table(("event", "messages"), rows)
    )


def name_state(state: Any) -> str:
    return str(state.value).replace(" ", "_")


# Enums

HIDDEN = {"Dialect", "Magic", "Opcode", "UprOpcode", "DraftCode"}
SHOWN: dict[str, Any] = {name: kind for name, kind in ENUMS.items() if name not in HIDDEN}


def list_enums() -> Iterator[str]:
    for name, kind in SHOWN.items():
        yield f"### {name}"
        yield format_prose(kind.__doc__ or "")
        flags = issubclass(kind, IntFlag)
        wide = flags or name in ("Status", "Feature", "KeyState")
        members: Iterable[Any] = kind
        yield table(
            ("bit" if flags else "number", "name"),
            [(f"0x{member:02x}" if wide else str(int(member)), member.name) for member in members],
        )


# Markdown


def format_prose(doc: str) -> str:
    return re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(doc))


def link_enums(text: str) -> str:
    """Return text with the names of enums as links."""

    def link(found: re.Match[str]) -> str:
        word = found[0]
        return f"[{word}](#{word.lower()})" if word in SHOWN else word

    return re.sub(r"\b[A-Z][a-z]\w+", link, text)


def format_cell(text: str) -> str:
    """Return text for a table, with links."""
    return link_enums(text.replace("|", "\\|").replace("\n", " "))


def make_anchor(title: str) -> str:
    """Return the name by which a heading can be linked to, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


if __name__ == "__main__":
    publish({"protocol.md": make_page()})
