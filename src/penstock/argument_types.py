"""Checks arguments at the public boundary: a value of another type raises UsageError with the value and the type.

The annotations of a function declare the types. A check compares the type of each given argument with a set, which is
cheap. Elements of short lists and mappings are checked too. A type that only type checkers import is known by its name.
"""

from __future__ import annotations

import builtins
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import wraps
from inspect import Parameter, signature, unwrap
from numbers import Integral, Real
from reprlib import Repr
from typing import Any, NamedTuple, TypeVar

from penstock.errors import UsageError

T = TypeVar("T", bound=Callable[..., Any])

CHECKED_INSIDE = "checked inside"
"""Annotates a parameter whose function has a better error for other values."""

_MOST_ELEMENTS = 1024
"""Longer lists and mappings are not checked element by element."""

_WIDER: dict[Any, tuple[type, ...]] = {
    int: (Integral,),
    bytes: (bytes, bytearray, memoryview),
    None: (types.NoneType,),
}
"""Types that an annotation accepts besides itself, as type checkers do, or because functions always took them."""

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a string",
    bytes: "bytes",
    None: "None",
    types.NoneType: "None",
    Callable: "a function",
    datetime: "a datetime",
    timedelta: "a timedelta",
}

_SECRETS = ("password", "token", "headers")
_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 80


class _Kind(NamedTuple):
    """The values that an annotation accepts.

    Attributes:
        exact: types whose instances need no further check.
        accepted: classes of other accepted values.
        words: the expected values, for the error.
        elements: the kind of each element, of containers.
        keys: the kind of each key, of mappings.
    """

    exact: frozenset[type]
    accepted: tuple[type, ...]
    words: tuple[str, ...]
    elements: _Kind | None = None
    keys: _Kind | None = None

    def accepts(self, value: object) -> bool:
        """Return whether a value, and each element of a short container, is of this kind."""
        if type(value) in self.exact:
            return True
        # Python takes True for a number, and a text for a list of texts.
        if isinstance(value, bool):
            return bool in self.accepted
        if isinstance(value, str | bytes):
            return any(issubclass(each, str | bytes) and isinstance(value, each) for each in self.accepted)
        if not isinstance(value, self.accepted) or (isinstance(value, float) and math.isnan(value)):
            return False
        if not isinstance(value, Mapping | Sequence) or len(value) > _MOST_ELEMENTS:
            return True
        found, names = (value.values(), value) if isinstance(value, Mapping) else (value, ())
        return (self.elements is None or all(map(self.elements.accepts, found))) and (
            self.keys is None or all(map(self.keys.accepts, names))
        )

    def describe(self) -> str:
        """Return the expected values in words."""
        *most, last = self.words
        return f"{', '.join(most)} or {last}" if most else last

    def describe_many(self) -> str:
        """Return the expected elements in words."""
        words = [f"{word.removeprefix('a ')}s" if word.startswith("a ") else word for word in self.words]
        return " or ".join(words)


class _Check(NamedTuple):
    """The check of one parameter."""

    name: str
    kind: _Kind

    def check(self, value: object) -> None:
        """Check a value.

        Args:
            value: the argument.

        Raises:
            UsageError: the value is of another kind.
        """
        if not self.kind.accepts(value):
            is_secret = self.name in _SECRETS
            shown = f"of type {type(value).__name__}" if is_secret else _REPR.repr(value)
            raise UsageError(f"{self.name} is {shown}, expected {self.kind.describe()}")


class _Plan(NamedTuple):
    """The checks of a function.

    Attributes:
        positional: the names of the parameters by position.
        exact: name of each checked parameter -> types that need no further check.
        checks: name of each checked parameter -> its check.
        known: the names of all parameters and options; empty if Python refuses other names itself.
    """

    positional: tuple[str, ...]
    exact: dict[str, frozenset[type]]
    checks: dict[str, _Check]
    known: tuple[str, ...] = ()


def check_arguments(owner: T) -> T:
    """Let a function, or all public methods of a class, check the types of their arguments.

    Args:
        owner: the function or the class.

    Returns:
        A function that checks and calls the given one, or the class itself.
    """
    if not isinstance(owner, type):
        checked: T = _wrap(owner)
        return checked
    for name, member in list(vars(owner).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, classmethod | staticmethod):
            setattr(owner, name, type(member)(_wrap(member.__func__)))
        elif isinstance(member, types.FunctionType):
            setattr(owner, name, _wrap(member))
    return owner


def _wrap(function: Any) -> Any:
    plan: _Plan | None = None  # made by the first call, when all modules are imported

    @wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        nonlocal plan
        if plan is None:
            plan = _make_plan(function)
        names, exact, checks, known = plan
        for name, value in zip(names, arguments):  # noqa: B905 - `strict` takes as long as the rest
            if name in exact and type(value) not in exact[name]:
                checks[name].check(value)
        for name, value in named.items():
            if name in exact and type(value) not in exact[name]:
                checks[name].check(value)
            elif known and name not in known:
                raise UsageError(f"argument {name!r} is unknown, expected one of {', '.join(known)}")
        return function(*arguments, **named)

    return checked


def _make_plan(function: Any) -> _Plan:
    names = _Names(unwrap(function).__globals__)
    positional: list[str] = []
    checks: dict[str, _Check] = {}
    known: tuple[str, ...] = ()
    parameters = signature(function).parameters
    for parameter in parameters.values():
        annotation = names.evaluate(parameter.annotation)
        if parameter.kind is Parameter.VAR_KEYWORD and typing.get_origin(annotation) is typing.Unpack:
            hints = typing.get_type_hints(typing.get_args(annotation)[0])
            known = (*list(parameters)[:-1], *hints)
            checks |= {name: _Check(name, kind) for name, hint in hints.items() if (kind := _make_kind(hint))}
        if parameter.kind in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL):
            continue
        kind = None if parameter.annotation is Parameter.empty else _make_kind(annotation)
        if parameter.kind is not Parameter.KEYWORD_ONLY:
            positional.append(parameter.name)
        if kind is not None:
            checks[parameter.name] = _Check(parameter.name, kind)
    exact = {name: check.kind.exact for name, check in checks.items()}
    return _Plan(tuple(positional), exact, checks, known)


class _NamedType(type):
    """The type of a class that stands for all classes of its name.

    Type checkers alone import some names. And Spark Connect has a class of each of Spark's names, which is no subclass.
    """

    def __instancecheck__(cls, value: object) -> bool:
        return any(each.__name__ == cls.__name__ for each in type(value).__mro__)


class _Names(dict[str, Any]):
    """The names of a module for its annotations."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        self._module = module

    def __missing__(self, name: str) -> Any:
        found = self._module.get(name, getattr(builtins, name, None))
        return _NamedType(name, (), {}) if found is None else found

    def evaluate(self, annotation: Any) -> Any:
        """Return an annotation that may be text as an object; Any if it cannot be one."""
        if not isinstance(annotation, str):
            return annotation
        try:
            return eval(annotation, {}, self)
        except (TypeError, AttributeError):
            return Any


def _make_kind(annotation: Any) -> _Kind | None:
    """Return the values that an annotation accepts; None if it accepts all, or is not known."""
    annotation = None if annotation is types.NoneType else annotation
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _join_kinds([_make_kind(each) for each in arguments])
    if origin is typing.Annotated and CHECKED_INSIDE in arguments:
        return None
    if origin is typing.Annotated:
        return _make_kind(arguments[0])
    if origin is typing.Literal:
        kinds = {type(each) for each in arguments}
        return _Kind(frozenset(kinds), tuple(kinds), tuple(map(repr, arguments)))
    if annotation is float:  # not exact: NaN is refused
        return _Kind(frozenset({int}), (Real,), (_WORDS[float],))
    if annotation is None or annotation in _WIDER:
        return _Kind(frozenset({annotation or types.NoneType}), _WIDER[annotation], (_WORDS[annotation],))
    kind = origin or annotation
    if not isinstance(kind, type) or kind in (object, Any):
        return None
    return _make_class_kind(kind, arguments)


def _make_class_kind(kind: type, arguments: tuple[Any, ...]) -> _Kind:
    if typing.is_typeddict(kind) or issubclass(kind, Mapping):
        keys, elements = (_make_kind(each) for each in arguments) if len(arguments) == 2 else (None, None)
        of = f" of {keys.describe_many()} to {elements.describe_many()}" if keys and elements else ""
        return _Kind(
            frozenset() if elements or keys else frozenset({dict}), (Mapping,), (f"a mapping{of}",), elements, keys
        )
    if kind is not str and kind.__module__ in ("builtins", "collections.abc") and issubclass(kind, Iterable):
        is_alike = bool(arguments) and issubclass(kind, Sequence) and (kind is not tuple or arguments[1:] == (...,))
        elements = _make_kind(arguments[0]) if is_alike else None
        of = f" of {elements.describe_many()}" if elements is not None else ""
        if kind is Iterable and str in typing.get_args(arguments[0] if arguments else None):
            return _Kind(frozenset({list, tuple, str}), (Iterable, str), ("a list",))  # a text is one of its characters
        return _Kind(frozenset() if elements else frozenset({list, tuple}), (Iterable,), (f"a list{of}",), elements)
    if getattr(kind, "_is_protocol", False):
        return _Kind(frozenset(), (typing.runtime_checkable(kind),), (kind.__name__,))
    if kind.__module__.partition(".")[0] == "pyspark":
        kind = _NamedType(kind.__name__, (), {})
    return _Kind(frozenset({kind}), (kind,), (_WORDS.get(kind, kind.__name__),))


def _join_kinds(kinds: list[_Kind | None]) -> _Kind | None:
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    containers = [kind for kind in known if kind.elements is not None]
    return _Kind(
        frozenset().union(*(kind.exact for kind in known)),
        tuple(each for kind in known for each in kind.accepted),
        tuple(dict.fromkeys(word for kind in known for word in kind.words)),
        containers[0].elements if len(containers) == 1 else None,
        containers[0].keys if len(containers) == 1 else None,
    )
