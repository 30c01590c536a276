"""Decoders of frames: one generated function for each form of a message.

A message is frozen. Its constructor and its slots' descriptors take a tenth of a microsecond for each field, and every
message has ten. So a decoder fills a *draft*, an object of a class with the same slots that is not frozen. Then it
gives the draft the class of the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.wire.codec.frame import Frame

_COMMON = {name: name for name in ("opaque", "cas", "datatype", "key", "value", "framing")} | {"received_as": "opcode"}
"""Fields of every message, and the part of the frame that each one is."""


class DecodedForm(NamedTuple):
    """A form of a message, as its decoder needs it.

    Attributes:
        cls: the class of the message, frozen and with slots.
        unpack: returns the numbers in the extras.
        names: the fields that these numbers are.
        others: the fields that stand neither in the header nor in the extras, with their values.
        specific_name: the field that holds the header's number `specific`.
        has_datatype: the header's datatype is the message's; the UPR draft has a code in its place.
        take_apart: returns the key, the value, the numbers of `names` and the values of `others`. None: the frame has
            all of these in their usual places.
        check: raises an exception for fields that contradict each other; None where none do.
    """

    cls: type[Any]
    unpack: Callable[[bytes], tuple[int, ...]]
    names: tuple[str, ...]
    others: Mapping[str, Any]
    specific_name: str
    has_datatype: bool
    take_apart: Callable[[Frame], tuple[bytes, bytes, tuple[int, ...], tuple[Any, ...]]] | None
    check: Callable[[Frame, Any], None] | None


def make_decoder(form: DecodedForm) -> Callable[[Frame], Any]:
    """Return the function that makes a message of a frame."""
    draft = type(
        form.cls.__name__,
        (form.cls,),
        {
            "__slots__": (),
            "__init__": object.__init__,
            "__setattr__": object.__setattr__,
            "__delattr__": object.__delattr__,
        },
    )
    names = {"draft": draft, **form._asdict(), "others": tuple(form.others.values())}
    exec(compile("\n    ".join(_write_source(form)), f"<decoder of {form.cls.__name__}>", "exec"), names)
    decoder: Callable[[Frame], Any] = names["decode"]
    return decoder


def _write_source(form: DecodedForm) -> list[str]:
    """Return the source of a decoder."""
    parts = _COMMON | {form.specific_name: "specific"} | ({} if form.has_datatype else {"datatype": "0"})
    numbers, others = "unpack(extras)", "others"
    lines = ["def decode(frame):", f"{', '.join(Frame._fields)} = frame"]
    if form.take_apart is not None:
        lines.append("key, value, numbers, contents = take_apart(frame)")
        numbers, others = "numbers", "contents"
    lines += ["message = draft()", *(f"message.{name} = {part}" for name, part in parts.items())]
    for fields, contents in ((form.names, numbers), (form.others, others)):
        if fields:
            lines.append(f"{', '.join(f'message.{name}' for name in fields)}, = {contents}")
    lines.append("message.__class__ = cls")
    if form.check is not None:
        lines.append("check(frame, message)")
    return [*lines, "return message"]
