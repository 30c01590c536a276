"""Frozen classes of fields, as frozen dataclasses are. Their constructors are generated when they are first called.

There are about 160 messages, and most programs use a few of them. A frozen dataclass generates six functions for each
class: for all messages that takes a quarter of a second, in every process that imports one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, ClassVar, NoReturn, TypeVar, dataclass_transform


class FrozenFields:
    """Base of the classes that `freeze_fields` makes. They are equal if all their compared fields are."""

    __slots__ = ()

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        return self._compared() == other._compared() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        shown = [f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _compared(self) -> tuple[Any, ...]:
        return tuple(getattr(self, one.name) for one in fields(self) if one.compare)


C = TypeVar("C", bound=FrozenFields)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def freeze_fields(cls: type[C]) -> type[C]:
    """Return the class with slots and a constructor for its fields, which are keyword arguments."""
    made = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(cls)

    def construct(self: C, **given: Any) -> None:
        made.__init__ = _generate_constructor(made)  # type: ignore[method-assign]
        made.__init__(self, **given)

    made.__init__ = construct  # type: ignore[method-assign, assignment]
    return made


def _generate_constructor(cls: type[C]) -> Callable[..., None]:
    """Return the function that sets the fields of a new object."""
    own = fields(cls)
    parameters = [one.name if one.default is MISSING else f"{one.name}=default_{one.name}" for one in own]
    body = [f"set_field(self, {one.name!r}, {one.name})" for one in own]
    source = "\n    ".join([f"def __init__(self, *, {', '.join(parameters)}):", *body])
    names: dict[str, Any] = {"set_field": object.__setattr__, **{f"default_{one.name}": one.default for one in own}}
    exec(compile(source, f"<constructor of {cls.__name__}>", "exec"), names)
    constructor: Callable[..., None] = names["__init__"]
    return constructor
