"""Declarations of messages: the class of a message is its layout.

    @message(Opcode.SET, key=PRESENT, value=MAYBE, cas=MAYBE)
    class Set(Request):
        flags: int = u32("the client's own 4 bytes, returned as they came")
        expiry: int = u32("seconds, or epoch seconds above 30 days")

`message` makes a frozen class of fields of it and enters it in LAYOUTS, by dialect, direction, opcode and length of
the extras. Encoder, decoder, validation, documentation and test strategies read that table; nothing states a layout a
second time.

Fields with `default=None` stand at the end of the extras and may be missing, all together. If a message declares the
lengths of its extras (`extras=`), single fields may be missing where the rest has such a length. Fields
`within="value"` are in the value. Of these, the fields with `default=None` may be missing from any one on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum, IntEnum
from itertools import compress, product
from struct import Struct, calcsize
from struct import error as StructError
from typing import Any, ClassVar, TypeVar, dataclass_transform

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import ALTERNATIVE_OF, PLAIN_OF, SERVER_MAGICS, Frame, join_frame, name_opcode
from penstock.wire.codec.frame_decoder import DecodedForm, make_decoder
from penstock.wire.codec.frozen_fields import FrozenFields, freeze_fields
from penstock.wire.codec.opcodes import DCP_OPCODES, QUIET_OPCODES, DraftCode, Magic, Opcode, ServerOpcode, UprOpcode
from penstock.wire.codec.statuses import Status

Code = Opcode | UprOpcode | DraftCode | ServerOpcode
"""Identifies a message: its opcode; in the UPR draft the opcode in the upper byte and the kind (byte 5) in the lower.
"""


class Part(Enum):
    """Whether a message has a key, value or cas: never (it is empty or 0), always, or sometimes."""

    ABSENT = "absent"
    PRESENT = "present"
    MAYBE = "maybe"


ABSENT, PRESENT, MAYBE = Part

PRIVATE = "engine_private"
"""The field of a message with a private section."""


def _make_declaration(code: str) -> Callable[..., Any]:
    def declare(doc: str, *, default: Any = MISSING, within: str = "extras") -> Any:
        return field(default=default, metadata={"code": code, "doc": doc, "within": within})

    return declare


u8, u16, u32, u64 = map(_make_declaration, "BHIQ")


@freeze_fields
class Message(FrozenFields):
    """Fields of every message, beside those of its kind.

    Attributes:
        opaque: the sender's number for a request; the reply repeats it.
        cas: the version of a document.
        datatype: a Datatype.
        key: a document's key, or a name.
        value: the part after the key.
    """

    magic: ClassVar[Magic] = Magic.REQUEST
    specific_name: ClassVar[str] = "vbucket"
    """The field that holds the header's number `specific`: "vbucket" of a request, "status" of a response."""
    opcode: ClassVar[Code]
    opcodes: ClassVar[tuple[Code, ...]]
    """The codes that share this layout; `opcode` is the first of them."""
    layouts: ClassVar[dict[int, Layout]]
    """Number of fields in the extras -> form. Of two forms with the same number, it holds the longer one."""
    forms: ClassVar[dict[tuple[str, ...], Layout]]
    """Names of the fields in the extras -> form."""

    opaque: int = 0
    cas: int = 0
    datatype: int = 0
    key: bytes = b""
    value: bytes = b""
    framing: bytes = b""
    """Framing extras: with some, the frame has an alternative magic."""
    received_as: int = field(default=-1, compare=False, repr=False)
    """The opcode of a received message; -1 in a message that is to be sent."""

    @property
    def is_quiet(self) -> bool:
        """Whether a received message wants no reply in the usual case."""
        return self.received_as in QUIET_OPCODES

    def encode(self, opcode: Code | None = None) -> bytes:
        """Return the frame's bytes.

        Args:
            opcode: one of those that share this layout, if it is not the first.

        Raises:
            LocalProtocolError: a field is out of its range, or a part of the extras cannot stand alone.
        """
        try:
            return join_frame(self._frame(self.opcode if opcode is None else opcode))
        except (StructError, ValueError) as error:
            raise LocalProtocolError(f"{type(self).__name__}: {error}") from error

    def fault(self) -> str | None:
        """Return the fault of fields that are valid alone and contradict each other, None if there is none."""
        return None

    def _frame(self, code: Code) -> Frame:
        longest = layout = self.layouts[max(self.layouts)]
        given = [value for name in longest.names if (value := getattr(self, name)) is not None]
        if len(given) < len(longest.names):
            named = tuple(name for name in longest.names if getattr(self, name) is not None)
            layout = self.forms.get(named, longest)
        key, value = self.key, self.value or layout.pack_value(self)
        if layout.private:
            private: bytes = getattr(self, PRIVATE)
            given.insert(0, len(private))
            rest = private + key + value
            key, value = rest[: len(key)], rest[len(key) :]
        draft = isinstance(code, DraftCode)
        return Frame(
            magic=ALTERNATIVE_OF.get(self.magic, self.magic) if self.framing else self.magic,
            opcode=code >> 8 if draft else code,
            specific=getattr(self, longest.specific_name),
            datatype=code & 0xFF if draft else self.datatype,
            opaque=self.opaque,
            cas=self.cas,
            extras=layout.extras.pack(*given),
            key=key,
            value=value,
            framing=self.framing,
        )


@freeze_fields
class Request(Message):
    """A request of a client, or a message of a producer."""

    vbucket: int = 0


@freeze_fields
class Response(Message):
    """A reply with status SUCCESS, or one whose body has the same layout."""

    magic: ClassVar[Magic] = Magic.RESPONSE
    specific_name: ClassVar[str] = "status"

    status: int = 0


@freeze_fields
class ServerRequest(Request):
    """A request of a server, on a connection that has agreed on it (DUPLEX)."""

    magic: ClassVar[Magic] = Magic.SERVER_REQUEST


@freeze_fields
class ServerResponse(Response):
    """A client's answer to a ServerRequest."""

    magic: ClassVar[Magic] = Magic.SERVER_RESPONSE


@dataclass(frozen=True, slots=True)
class Layout:
    """One form of a message: its class, its extras, and the parts of the frame that it has.

    Attributes:
        cls: the class of the message.
        extras: the extras, with the length of the private section first.
        names: the fields in the extras.
        parts: for key, value and cas, whether the frame has them.
        specific_name: as of Message.
        private: the extras begin with the length, u16, of a section that stands between them and the key.
        tails: length of the value -> its Struct and its fields; empty if the value has no declared fields.
        others: the fields that stand neither in the header nor in the extras, with their defaults.
        make_message: returns the message of a frame whose key, value and cas are there as declared. Raises
            RemoteProtocolError (EINVAL, not fatal) for a private section or a value of a wrong length, and for the
            fault that `Message.fault` returns. The first call generates the decoder, and replaces this attribute.
    """

    cls: type[Message]
    extras: Struct
    names: tuple[str, ...]
    parts: tuple[tuple[str, Part], ...]
    specific_name: str
    private: bool
    tails: dict[int, tuple[Struct, tuple[str, ...]]]
    others: dict[str, Any] = field(init=False, repr=False)
    make_message: Callable[[Frame], Message] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        cls = self.cls
        known = {*(one.name for one in fields(Message)), self.specific_name, *self.names}
        others = {one.name: one.default for one in fields(cls) if one.name not in known}
        form = DecodedForm(
            cls,
            unpack=self.extras.unpack,
            names=self.names,
            others=others,
            specific_name=self.specific_name,
            has_datatype=type(cls.opcode) is not DraftCode,
            take_apart=self._take_apart if self.private or self.tails else None,
            check=self._check_fields if cls.fault is not Message.fault else None,
        )

        def decode_first(frame: Frame) -> Message:
            object.__setattr__(self, "make_message", make_decoder(form))  # a program decodes few of all messages
            return self.make_message(frame)

        object.__setattr__(self, "others", others)
        object.__setattr__(self, "make_message", decode_first)

    def check(self, frame: Frame) -> None:
        """Check that private section, key, value and cas are there as declared.

        Raises:
            RemoteProtocolError: one of them is not (EINVAL, not fatal).
        """
        _, value = self._split(frame)
        for name, part in self.parts:
            there = value if name == "value" else getattr(frame, name)
            if part is not Part.MAYBE and bool(there) != (part is Part.PRESENT):
                found = there if isinstance(there, int) else f"{len(there)} bytes"
                raise self._make_error(frame, f"{name} must be {part.value}, found {found}")
        self._check_tail(frame, value)

    def _check_fields(self, frame: Frame, message: Message) -> None:
        if fault := message.fault():
            raise self._make_error(frame, fault)

    def _take_apart(self, frame: Frame) -> tuple[bytes, bytes, tuple[int, ...], tuple[Any, ...]]:
        """Return key, value, the numbers in the extras and the values of `others`, for a private section or a tail."""
        private, value = self._split(frame)
        key, numbers, others = frame.key, self.extras.unpack(frame.extras), dict(self.others)
        if self.private:
            others[PRIVATE] = private
            key = (frame.key + frame.value)[numbers[0] : numbers[0] + len(key)]
            numbers = numbers[1:]
        if self.tails:
            self._check_tail(frame, value)
            tail, names = self.tails[len(value)]
            others |= zip(names, tail.unpack(value), strict=True)
            value = b""
        return key, value, numbers, tuple(others.values())

    def pack_value(self, message: Message) -> bytes:
        """Return the value with the message's fields.

        Raises:
            ValueError: no form has these fields alone.
        """
        if not self.tails:
            return b""
        given = {
            name: value for name in self.tails[max(self.tails)][1] if (value := getattr(message, name)) is not None
        }
        for tail, names in self.tails.values():
            if names == (*given,):
                return tail.pack(*given.values())
        raise ValueError(f"a value of {', '.join(given)}: no form has these fields alone")

    def _split(self, frame: Frame) -> tuple[bytes, bytes]:
        """Return the private section, and the value after the key."""
        if not self.private:
            return b"", frame.value
        length = int.from_bytes(frame.extras[:2], "big")
        if length > len(frame.value):
            found = len(frame.value)
            raise self._make_error(frame, f"engine-private data of more bytes than the {found} behind the extras")
        return (frame.key + frame.value)[:length], frame.value[length:]

    def _check_tail(self, frame: Frame, value: bytes) -> None:
        if self.tails and len(value) not in self.tails:
            lengths = " or ".join(map(str, sorted(self.tails)))
            raise self._make_error(frame, f"value of {len(value)} bytes, expected {lengths}")

    def _make_error(self, frame: Frame, fault: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{_name_code(self.cls.opcode, frame)}: {fault}", fatal=False)


def _name_code(code: Code, frame: Frame) -> str:
    """Return the name of a frame's code. The frame's opcode counts, since several opcodes may share a layout."""
    return name_opcode(frame.opcode) if isinstance(code, Opcode) else code.name


Forms = dict[int, Layout]
"""Length of the extras -> form, for one opcode."""

_DIRECTIONS = (Magic.REQUEST, Magic.RESPONSE, Magic.SERVER_REQUEST, Magic.SERVER_RESPONSE)

LAYOUTS: dict[Dialect, dict[Magic, dict[int, Forms]]] = {
    dialect: {magic: {} for magic in _DIRECTIONS} for dialect in Dialect
}
"""Dialect -> direction (the plain magic) -> code -> forms.

Key-value commands, TAP and requests of servers stand under DCP: no two of them clash. Messages that UPR and its draft
do not define themselves are looked up there too.
"""

DIALECT_OF: dict[type[IntEnum], Dialect] = {
    Opcode: Dialect.DCP,
    ServerOpcode: Dialect.DCP,
    UprOpcode: Dialect.UPR,
    DraftCode: Dialect.UPR_DRAFT,
}
"""Enum of codes -> its dialect."""


def list_forms(code: Code, magic: Magic) -> Forms:
    """Return the declared forms of a code. Raises KeyError if it has none."""
    return LAYOUTS[DIALECT_OF[type(code)]][magic][code]


M = TypeVar("M", bound=Message)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(u8, u16, u32, u64))
def message(
    *opcodes: Code,
    key: Part = ABSENT,
    value: Part = ABSENT,
    cas: Part = ABSENT,
    private: bool = False,
    extras: tuple[int, ...] = (),
) -> Callable[[type[M]], type[M]]:
    """Return a decorator that makes a message of an annotated class.

    Args:
        opcodes: several opcodes share a layout if they differ only in being quiet (SET, SETQ).
        key: whether the message has a key.
        value: whether it has a value.
        cas: whether it has a cas.
        private: as of Layout; the class then has a field `engine_private`.
        extras: valid lengths of the extras, for messages whose optional fields may be missing one by one.
    """

    def enter(cls: type[M]) -> type[M]:
        cls = freeze_fields(cls)
        wire = [f for f in fields(cls) if f.metadata.get("within") == "extras"]
        tails = dict(_make_tails([f for f in fields(cls) if f.metadata.get("within") == "value"]))
        parts = (("key", key), ("value", PRESENT if tails else value), ("cas", cas))
        cls.opcode, cls.opcodes, cls.layouts, cls.forms = opcodes[0], opcodes, {}, {}
        for held in _choose_fields(wire, extras):
            struct = Struct(">" + "H" * private + "".join(f.metadata["code"] for f in held))
            layout = Layout(cls, struct, tuple(f.name for f in held), parts, cls.specific_name, private, tails)
            cls.layouts[len(held)] = cls.forms[layout.names] = layout
            for opcode in opcodes:
                LAYOUTS[DIALECT_OF[type(opcode)]][cls.magic].setdefault(opcode, {})[struct.size] = layout
        return cls

    return enter


def _choose_fields(wire: list[Field[Any]], lengths: tuple[int, ...]) -> list[list[Field[Any]]]:
    """Return the fields in the extras of each form, the shortest form first."""
    if not lengths:
        required = sum(f.default is not None for f in wire)
        return [wire[:count] for count in sorted({required, len(wire)})]
    choices = product(*((True,) if f.default is not None else (False, True) for f in wire))
    by_length = {
        _measure_fields(held): held
        for choice in choices
        if _measure_fields(held := [*compress(wire, choice)]) in lengths
    }
    return [by_length[length] for length in sorted(lengths)]


def _measure_fields(wire: list[Field[Any]]) -> int:
    return calcsize(">" + "".join(f.metadata["code"] for f in wire))


def _make_tails(wire: list[Field[Any]]) -> Iterable[tuple[int, tuple[Struct, tuple[str, ...]]]]:
    required = sum(f.default is not None for f in wire)
    for count in range(max(required, 1), len(wire) + 1):
        tail = Struct(">" + "".join(f.metadata["code"] for f in wire[:count]))
        yield tail.size, (tail, tuple(f.name for f in wire[:count]))


def find_forms(frame: Frame, dialect: Dialect = Dialect.DCP) -> Forms | None:
    """Return the declared forms of a frame's opcode, None if it has none.

    Requests of servers (magic 0x82) have opcodes of their own, the same in all dialects. In UPR, DCP's opcodes have
    UPR's meaning, or none.
    """
    if frame.magic in SERVER_MAGICS:
        return LAYOUTS[Dialect.DCP][Magic(frame.magic)].get(frame.opcode)
    magic = PLAIN_OF[frame.magic]
    if dialect is Dialect.UPR_DRAFT:
        draft = LAYOUTS[dialect][magic].get(frame.opcode << 8 | frame.datatype)
        # SET of a JSON document has the draft's opcode and byte 5, but other extras.
        if draft is not None and (magic is Magic.RESPONSE or frame.opcode != Opcode.SET or len(frame.extras) != 8):
            return draft
    if dialect is Dialect.UPR and frame.opcode in DCP_OPCODES:
        return LAYOUTS[dialect][magic].get(frame.opcode)
    return LAYOUTS[Dialect.DCP][magic].get(frame.opcode)


def find_layout(frame: Frame, dialect: Dialect = Dialect.DCP) -> Layout:
    """Return the declared layout of a frame.

    Raises:
        RemoteProtocolError: not fatal. UNKNOWN_COMMAND: the opcode is not declared. EINVAL: no form of the message has
            extras of this length.
    """
    forms = find_forms(frame, dialect)
    if forms is None:
        name = f"server opcode 0x{frame.opcode:02x}" if frame.magic in SERVER_MAGICS else name_opcode(frame.opcode)
        raise RemoteProtocolError(f"{name} is not served here", status=Status.UNKNOWN_COMMAND, fatal=False)
    layout = forms.get(len(frame.extras))
    if layout is None:
        name = _name_code(next(iter(forms.values())).cls.opcode, frame)
        lengths = " or ".join(map(str, sorted(forms)))
        raise RemoteProtocolError(f"{name}: extras of {len(frame.extras)} bytes, expected {lengths}", fatal=False)
    return layout


def decode_frame(frame: Frame, dialect: Dialect = Dialect.DCP) -> Message:
    """Return the message of a frame.

    Raises:
        RemoteProtocolError: as find_layout, `Layout.check` and `Layout.make_message` raise it.
    """
    layout = find_layout(frame, dialect)
    layout.check(frame)
    return layout.make_message(frame)
