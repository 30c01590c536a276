"""A message is declared once: its class is its layout.

    @message(Opcode.SET, key=PRESENT, value=MAYBE, cas=MAYBE)
    class Set(Request):
        flags: int = u32("the client's own 4 bytes, returned as they came")
        expiry: int = u32("seconds, or epoch seconds above 30 days")

`message` makes a frozen dataclass of the class and enters it in LAYOUTS, by direction, opcode and length of the
extras. Encoder, decoder, validation, documentation and test strategies walk that table; nothing states a layout a
second time. Fields with `default=None` stand at the end of the extras and may be missing, all together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from struct import Struct
from struct import error as StructError
from typing import Any, ClassVar, TypeVar, dataclass_transform

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.constants import Magic, Opcode, Status
from penstock.wire.frame import REQUEST_MAGICS, Frame, join_frame, opcode_name


class Part(Enum):
    """What a message says of its key, value or cas: always empty (0), never empty, or either."""

    ABSENT = "absent"
    PRESENT = "present"
    MAYBE = "maybe"


ABSENT, PRESENT, MAYBE = Part


def _integer(code: str) -> Callable[..., Any]:
    def declare(doc: str, *, default: Any = MISSING) -> Any:
        return field(default=default, metadata={"code": code, "doc": doc})

    return declare


u8, u16, u32, u64 = map(_integer, "BHIQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What every frame carries beside the fields of its kind."""

    opcode: ClassVar[Opcode]
    layouts: ClassVar[dict[int, Layout]]
    """The forms of this message, by how many of the declared fields they hold."""

    opaque: int = 0
    cas: int = 0
    datatype: int = 0
    key: bytes = b""
    value: bytes = b""

    def encode(self, opcode: Opcode | None = None) -> bytes:
        """Return the frame's bytes. opcode: one of those that share this layout, where it is not the first.

        Raises LocalProtocolError for a field out of its range, and for a part of the extras that cannot stand alone.
        """
        try:
            return join_frame(self._frame(self.opcode if opcode is None else opcode))
        except (StructError, ValueError) as error:
            raise LocalProtocolError(f"{type(self).__name__}: {error}") from error

    def _frame(self, opcode: Opcode) -> Frame:
        longest = self.layouts[max(self.layouts)]
        values = [value for name in longest.names if (value := getattr(self, name)) is not None]
        return Frame(
            magic=Magic.REQUEST if isinstance(self, Request) else Magic.RESPONSE,
            opcode=opcode,
            specific=getattr(self, longest.third),
            datatype=self.datatype,
            opaque=self.opaque,
            cas=self.cas,
            extras=self.layouts.get(len(values), longest).extras.pack(*values),
            key=self.key,
            value=self.value,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Message):
    vbucket: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Response(Message):
    """A reply with status SUCCESS, or one whose body has the same layout."""

    status: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """One form of a message: its class, its extras, and what it says of the rest of the frame."""

    cls: type[Message]
    extras: Struct
    names: tuple[str, ...]
    parts: tuple[tuple[str, Part], ...]
    third: str
    """The name of the header's third number: "vbucket" of a request, "status" of a response."""

    def check(self, frame: Frame) -> None:
        """Raise RemoteProtocolError (EINVAL, not fatal) unless key, value and cas are as declared."""
        for name, part in self.parts:
            there = getattr(frame, name)
            if part is not Part.MAYBE and bool(there) != (part is Part.PRESENT):
                found = there if isinstance(there, int) else f"{len(there)} bytes"
                raise RemoteProtocolError(
                    f"{opcode_name(frame.opcode)}: {name} must be {part.value}, found {found}", fatal=False
                )

    def message_of(self, frame: Frame) -> Message:
        return self.cls(
            opaque=frame.opaque,
            cas=frame.cas,
            datatype=frame.datatype,
            key=frame.key,
            value=frame.value,
            **{self.third: frame.specific},
            **dict(zip(self.names, self.extras.unpack(frame.extras), strict=True)),
        )


LAYOUTS: dict[str, dict[Opcode, dict[int, Layout]]] = {"vbucket": {}, "status": {}}
"""Requests and responses (by the name of the header's third number), by opcode, by length of the extras."""

M = TypeVar("M", bound=Message)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(u8, u16, u32, u64))
def message(
    *opcodes: Opcode, key: Part = ABSENT, value: Part = ABSENT, cas: Part = ABSENT
) -> Callable[[type[M]], type[M]]:
    """Make a message of an annotated class. Several opcodes share a layout where only loudness differs (SET, SETQ)."""

    def enter(cls: type[M]) -> type[M]:
        cls = dataclass(frozen=True, slots=True, kw_only=True)(cls)
        wire = [f for f in fields(cls) if "code" in f.metadata]
        required = sum(f.default is not None for f in wire)
        third = "vbucket" if issubclass(cls, Request) else "status"
        cls.opcode, cls.layouts = opcodes[0], {}
        for count in {required, len(wire)}:
            extras = Struct(">" + "".join(f.metadata["code"] for f in wire[:count]))
            parts = (("key", key), ("value", value), ("cas", cas))
            layout = Layout(cls, extras, tuple(f.name for f in wire[:count]), parts, third)
            cls.layouts[count] = layout
            for opcode in opcodes:
                LAYOUTS[third].setdefault(opcode, {})[extras.size] = layout
        return cls

    return enter


def layout_of(frame: Frame) -> Layout:
    """Return the declared layout of a frame.

    Raises RemoteProtocolError, not fatal: status UNKNOWN_COMMAND for an opcode that is not declared, EINVAL for
    extras of a length that no form of the message has.
    """
    third = "vbucket" if frame.magic in REQUEST_MAGICS else "status"
    forms = LAYOUTS[third].get(frame.opcode)  # type: ignore[call-overload]
    if forms is None:
        raise RemoteProtocolError(
            f"{opcode_name(frame.opcode)} is not served here", status=Status.UNKNOWN_COMMAND, fatal=False
        )
    layout: Layout | None = forms.get(len(frame.extras))
    if layout is None:
        lengths = " or ".join(map(str, sorted(forms)))
        raise RemoteProtocolError(
            f"{opcode_name(frame.opcode)}: extras of {len(frame.extras)} bytes, expected {lengths}", fatal=False
        )
    return layout


def decode(frame: Frame) -> Message:
    """Return the message that a frame is. Raises as `layout_of` and `Layout.check` do."""
    layout = layout_of(frame)
    layout.check(frame)
    return layout.message_of(frame)
