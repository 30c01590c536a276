"""A message is declared once: its class is its layout.

    @message(Opcode.SET, key=PRESENT, value=MAYBE, cas=MAYBE)
    class Set(Request):
        flags: int = u32("the client's own 4 bytes, returned as they came")
        expiry: int = u32("seconds, or epoch seconds above 30 days")

`message` makes a frozen dataclass of the class and enters it in LAYOUTS, by dialect, direction, opcode and length of
the extras. Encoder, decoder, validation, documentation and test strategies walk that table; nothing states a layout a
second time.

Fields with `default=None` stand at the end of the extras and may be missing, all together; where the message says which
lengths its extras have (`extras=`), all those whose fields make such a length. Fields `within="value"` are what the
value is made of; those of them with `default=None` may be missing from any one on.
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
from penstock.wire.codec.frame import ALTERNATIVE_OF, PLAIN_OF, SERVER_MAGICS, Frame, join_frame, opcode_name
from penstock.wire.codec.opcodes import DCP_OPCODES, QUIET_OPCODES, DraftCode, Magic, Opcode, ServerOpcode, UprOpcode
from penstock.wire.codec.statuses import Status

Code = Opcode | UprOpcode | DraftCode | ServerOpcode
"""What names a message: its opcode; in the UPR draft the opcode and, below, the kind in byte 5."""


class Part(Enum):
    """What a message says of its key, value or cas: always empty (0), never empty, or either."""

    ABSENT = "absent"
    PRESENT = "present"
    MAYBE = "maybe"


ABSENT, PRESENT, MAYBE = Part

PRIVATE = "engine_private"
"""The field of a message with a private section."""


def _integer(code: str) -> Callable[..., Any]:
    def declare(doc: str, *, default: Any = MISSING, within: str = "extras") -> Any:
        return field(default=default, metadata={"code": code, "doc": doc, "within": within})

    return declare


u8, u16, u32, u64 = map(_integer, "BHIQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What every frame carries beside the fields of its kind."""

    magic: ClassVar[Magic] = Magic.REQUEST
    third: ClassVar[str] = "vbucket"
    """The name of the header's third number: "vbucket" of a request, "status" of a response."""
    opcode: ClassVar[Code]
    opcodes: ClassVar[tuple[Code, ...]]
    """Those that share this layout; `opcode` is the first of them."""
    layouts: ClassVar[dict[int, Layout]]
    """The forms of this message, by how many of the declared fields of the extras they hold; of two with as many, the
    longer."""
    forms: ClassVar[dict[tuple[str, ...], Layout]]
    """The forms of this message, by which of the declared fields of the extras they hold."""

    opaque: int = 0
    cas: int = 0
    datatype: int = 0
    key: bytes = b""
    value: bytes = b""
    framing: bytes = b""
    """Framing extras: with some, the frame has an alternative magic."""
    received_as: int = field(default=-1, compare=False, repr=False)
    """The opcode that a received message came with; -1 of a message that is to be sent."""

    @property
    def is_quiet(self) -> bool:
        """Whether a received message wants no reply in the usual case."""
        return self.received_as in QUIET_OPCODES

    def encode(self, opcode: Code | None = None) -> bytes:
        """Return the frame's bytes. opcode: one of those that share this layout, where it is not the first.

        Raises LocalProtocolError for a field out of its range, and for a part of the extras that cannot stand alone.
        """
        try:
            return join_frame(self._frame(self.opcode if opcode is None else opcode))
        except (StructError, ValueError) as error:
            raise LocalProtocolError(f"{type(self).__name__}: {error}") from error

    def fault(self) -> str | None:
        """Return what is wrong with fields that are right one by one, or None."""
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
            specific=getattr(self, longest.third),
            datatype=code & 0xFF if draft else self.datatype,
            opaque=self.opaque,
            cas=self.cas,
            extras=layout.extras.pack(*given),
            key=key,
            value=value,
            framing=self.framing,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Message):
    vbucket: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Response(Message):
    """A reply with status SUCCESS, or one whose body has the same layout."""

    magic: ClassVar[Magic] = Magic.RESPONSE
    third: ClassVar[str] = "status"

    status: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRequest(Request):
    """What a server asks of its own accord, on a connection that has agreed on it (DUPLEX)."""

    magic: ClassVar[Magic] = Magic.SERVER_REQUEST


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerResponse(Response):
    """A client's answer to a ServerRequest."""

    magic: ClassVar[Magic] = Magic.SERVER_RESPONSE


@dataclass(frozen=True, slots=True)
class Layout:
    """One form of a message: its class, its extras, and what it says of the rest of the frame.

    Attributes:
        cls: the class of the message.
        extras: the extras, with the length of the private section in front.
        names: the fields in the extras.
        parts: whether key, value and cas are there.
        third: as of Message.
        private: the extras begin with the length, u16, of a section that stands between them and the key.
        tails: what the value is made of, by its length, as struct and names; empty where it is the sender's own.
        others: the fields that stand neither in the header nor in the extras, with their defaults.
        setters: set the fields of a new message: those of every message, then `names`, then `others`.
    """

    cls: type[Message]
    extras: Struct
    names: tuple[str, ...]
    parts: tuple[tuple[str, Part], ...]
    third: str
    private: bool
    tails: dict[int, tuple[Struct, tuple[str, ...]]]
    others: dict[str, Any] = field(init=False, repr=False)
    setters: tuple[Callable[[Message, Any], None], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        common = ("opaque", "cas", "datatype", "key", "value", "framing", "received_as", self.third)
        others = {one.name: one.default for one in fields(self.cls) if one.name not in {*common, *self.names}}
        object.__setattr__(self, "others", others)
        # The class is frozen; its slots take a value a third faster than its constructor does.
        setters = tuple(getattr(self.cls, name).__set__ for name in (*common, *self.names, *others))
        object.__setattr__(self, "setters", setters)

    def check(self, frame: Frame) -> None:
        """Raise RemoteProtocolError (EINVAL, not fatal) unless private section, key, value and cas are as declared."""
        _, value = self._split(frame)
        for name, part in self.parts:
            there = value if name == "value" else getattr(frame, name)
            if part is not Part.MAYBE and bool(there) != (part is Part.PRESENT):
                found = there if isinstance(there, int) else f"{len(there)} bytes"
                raise self._error(frame, f"{name} must be {part.value}, found {found}")
        self._check_tail(frame, value)

    def message_of(self, frame: Frame) -> Message:
        """Return the message of a frame whose key, value and cas are there as declared.

        Raises RemoteProtocolError (EINVAL, not fatal) for a private section or a value of a wrong length, and for what
        `Message.fault` says.
        """
        _, opcode, specific, datatype, opaque, cas, extras, key, value, framing = frame
        numbers, others = self.extras.unpack(extras), self.others
        if self.private or self.tails:
            key, value, numbers, others = self._take_apart(frame, numbers)
        cls = self.cls
        if type(cls.opcode) is DraftCode:
            datatype = 0
        message = _new_object(cls)
        contents = (opaque, cas, datatype, key, value, framing, opcode, specific, *numbers, *others.values())
        for set_field, content in zip(self.setters, contents, strict=False):
            set_field(message, content)
        if cls.fault is not Message.fault and (fault := message.fault()):
            raise self._error(frame, fault)
        return message

    def _take_apart(
        self, frame: Frame, numbers: tuple[int, ...]
    ) -> tuple[bytes, bytes, tuple[int, ...], dict[str, Any]]:
        """Return key, value, the numbers in the extras, and `others`, where there is a private section or a tail."""
        private, value = self._split(frame)
        key, others = frame.key, dict(self.others)
        if self.private:
            others[PRIVATE] = private
            key = (frame.key + frame.value)[numbers[0] : numbers[0] + len(key)]
            numbers = numbers[1:]
        if self.tails:
            self._check_tail(frame, value)
            tail, names = self.tails[len(value)]
            others |= zip(names, tail.unpack(value), strict=True)
            value = b""
        return key, value, numbers, others

    def pack_value(self, message: Message) -> bytes:
        """Return the value that the message's fields make."""
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
        """Return the private section, and the value behind the key."""
        if not self.private:
            return b"", frame.value
        length = int.from_bytes(frame.extras[:2], "big")
        if length > len(frame.value):
            found = len(frame.value)
            raise self._error(frame, f"engine-private data of more bytes than the {found} behind the extras")
        return (frame.key + frame.value)[:length], frame.value[length:]

    def _check_tail(self, frame: Frame, value: bytes) -> None:
        if self.tails and len(value) not in self.tails:
            lengths = " or ".join(map(str, sorted(self.tails)))
            raise self._error(frame, f"value of {len(value)} bytes, expected {lengths}")

    def _error(self, frame: Frame, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{_name(self.cls.opcode, frame)}: {what}", fatal=False)


_new_object = object.__new__


def _name(code: Code, frame: Frame) -> str:
    """Return the name of a frame's code; several opcodes may share a layout."""
    return opcode_name(frame.opcode) if isinstance(code, Opcode) else code.name


Forms = dict[int, Layout]
"""The forms of one opcode, by the length of the extras."""

_DIRECTIONS = (Magic.REQUEST, Magic.RESPONSE, Magic.SERVER_REQUEST, Magic.SERVER_RESPONSE)

LAYOUTS: dict[Dialect, dict[Magic, dict[int, Forms]]] = {
    dialect: {magic: {} for magic in _DIRECTIONS} for dialect in Dialect
}
"""By dialect, direction (the plain magic) and code. Key-value commands, TAP and what a server asks stand under DCP: no
two of them clash. What UPR and its draft do not say differently is looked up there too."""

DIALECT_OF: dict[type[IntEnum], Dialect] = {
    Opcode: Dialect.DCP,
    ServerOpcode: Dialect.DCP,
    UprOpcode: Dialect.UPR,
    DraftCode: Dialect.UPR_DRAFT,
}
"""The dialect whose codes are of an enum."""


def layouts_of(code: Code, magic: Magic) -> Forms:
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
    """Make a message of an annotated class. Several opcodes share a layout where only loudness differs (SET, SETQ).

    private: as of Layout; the class then has a field `engine_private`. extras: the lengths that they may have, where
    the fields that may be missing do so one without the other.
    """

    def enter(cls: type[M]) -> type[M]:
        cls = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        wire = [f for f in fields(cls) if f.metadata.get("within") == "extras"]
        tails = dict(_tails([f for f in fields(cls) if f.metadata.get("within") == "value"]))
        parts = (("key", key), ("value", PRESENT if tails else value), ("cas", cas))
        cls.opcode, cls.opcodes, cls.layouts, cls.forms = opcodes[0], opcodes, {}, {}
        for held in _held(wire, extras):
            struct = Struct(">" + "H" * private + "".join(f.metadata["code"] for f in held))
            layout = Layout(cls, struct, tuple(f.name for f in held), parts, cls.third, private, tails)
            cls.layouts[len(held)] = cls.forms[layout.names] = layout
            for opcode in opcodes:
                LAYOUTS[DIALECT_OF[type(opcode)]][cls.magic].setdefault(opcode, {})[struct.size] = layout
        return cls

    return enter


def _held(wire: list[Field[Any]], lengths: tuple[int, ...]) -> list[list[Field[Any]]]:
    """Return which fields the forms of some extras hold, the shortest form first."""
    if not lengths:
        required = sum(f.default is not None for f in wire)
        return [wire[:count] for count in sorted({required, len(wire)})]
    choices = product(*((True,) if f.default is not None else (False, True) for f in wire))
    by_length = {_size(held): held for choice in choices if _size(held := [*compress(wire, choice)]) in lengths}
    return [by_length[length] for length in sorted(lengths)]


def _size(wire: list[Field[Any]]) -> int:
    return calcsize(">" + "".join(f.metadata["code"] for f in wire))


def _tails(wire: list[Field[Any]]) -> Iterable[tuple[int, tuple[Struct, tuple[str, ...]]]]:
    required = sum(f.default is not None for f in wire)
    for count in range(max(required, 1), len(wire) + 1):
        tail = Struct(">" + "".join(f.metadata["code"] for f in wire[:count]))
        yield tail.size, (tail, tuple(f.name for f in wire[:count]))


def forms_of(frame: Frame, dialect: Dialect = Dialect.DCP) -> Forms | None:
    """Return the declared forms of a frame's opcode, None if it has none.

    What a server asks of its own accord (magic 0x82) has opcodes of its own, the same in all dialects. DCP's opcodes
    mean in UPR what UPR says, and nothing where it says nothing.
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


def layout_of(frame: Frame, dialect: Dialect = Dialect.DCP) -> Layout:
    """Return the declared layout of a frame.

    Raises RemoteProtocolError, not fatal: status UNKNOWN_COMMAND for an opcode that is not declared, EINVAL for
    extras of a length that no form of the message has.
    """
    forms = forms_of(frame, dialect)
    if forms is None:
        name = f"server opcode 0x{frame.opcode:02x}" if frame.magic in SERVER_MAGICS else opcode_name(frame.opcode)
        raise RemoteProtocolError(f"{name} is not served here", status=Status.UNKNOWN_COMMAND, fatal=False)
    layout = forms.get(len(frame.extras))
    if layout is None:
        name = _name(next(iter(forms.values())).cls.opcode, frame)
        lengths = " or ".join(map(str, sorted(forms)))
        raise RemoteProtocolError(f"{name}: extras of {len(frame.extras)} bytes, expected {lengths}", fatal=False)
    return layout


def decode(frame: Frame, dialect: Dialect = Dialect.DCP) -> Message:
    """Return the message that a frame is. Raises as `layout_of`, `Layout.check` and `Layout.message_of` do."""
    layout = layout_of(frame, dialect)
    layout.check(frame)
    return layout.message_of(frame)
