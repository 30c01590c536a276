"""Tables of a TOML file as frozen dataclasses: each field is a key, its annotation is the type of the value.

A field of `given_options` stands for the options of another class, which are keys of the table too.

An error names the file, the table and the key, as in `p.toml: [source.beer] url is 5, expected text`.
"""

from __future__ import annotations

import difflib
import os
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import ValidationError, convert

from penstock.errors import UsageError
from penstock.options import group_of, option_text, options_of

__all__ = ["TomlKey", "TomlPlace", "keys_of", "load", "made_of", "read", "refuse_unknown"]

T = TypeVar("T")

_MOST_BYTES = 1 << 20
"""Of a file: what is longer is another file."""

_KINDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


class TomlPlace(NamedTuple):
    """Where something stands. title: as `[current]`; empty for the keys outside all tables."""

    file: str
    title: str = ""

    def wrong(self, text: str) -> UsageError:
        """Return the error that names this place."""
        return UsageError(f"{self.file}: {self.title}{' ' * bool(self.title)}{text}")

    def path(self, text: str) -> str:
        """Return a path, which is relative to the file's directory, as one that holds anywhere."""
        base = Path(self.file).absolute().parent
        return text if "://" in text else os.path.normpath(base / Path(text).expanduser())


class TomlKey(NamedTuple):
    """A key of a table.

    Attributes:
        type: what its value must be.
        required: True if the table must have it.
        is_path: its value is a path relative to the file's directory.
        group: the field that holds it among the options of another class, None if it is a field itself.
    """

    type: Any
    required: bool = False
    is_path: bool = False
    group: str | None = None


def keys_of(cls: type) -> dict[str, TomlKey]:
    """Return the keys of the table that a dataclass declares. A field stands above an option of the same name."""
    hints, declared = typing.get_type_hints(cls), options_of(cls)
    own = {field.name for field in fields(cls)}
    found = {}
    for field in fields(cls):
        if (group := group_of(field)) is not None:
            for name, each in group.options().items():
                if name not in own:
                    found[name] = TomlKey(each.takes.value, is_path=each.takes.is_path, group=field.name)
        else:
            required = field.default is MISSING and field.default_factory is MISSING
            is_path = field.name in declared and declared[field.name].takes.is_path
            found[field.name] = TomlKey(hints[field.name], required, is_path)
    return found


def made_of(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return `cls` made of the values of keys. A value of None is not given. Raises UsageError as `cls` does."""
    keys = keys_of(cls)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        group = keys[name].group if name in keys else None
        if value is not None and group is not None:
            arguments.setdefault(group, {})[name] = option_text(value)
        elif value is not None:
            arguments[name] = value
    return cls(**arguments)


def load(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file. Raises UsageError if it cannot be read or is not TOML."""
    try:
        with Path(path).open("rb") as file:
            found = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}, expected a pipeline's TOML file") from None
    if len(found) > _MOST_BYTES:
        raise UsageError(f"{path}: more than {_MOST_BYTES} bytes, expected a pipeline's TOML file")
    try:
        return tomllib.loads(found.decode())
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start + 1} is not UTF-8, expected TOML") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}") from None


def read(cls: type[T], place: TomlPlace, given: Any, **more: Any) -> T:
    """Return `cls` made of a table. more: fields that are no keys of the table.

    Raises UsageError for an unknown key, with the nearest known one; for a key that is missing; for a value of another
    kind; and for what `cls` itself refuses.
    """
    if not isinstance(given, dict):
        raise place.wrong("is not a table, expected keys and values")
    keys = {name: key for name, key in keys_of(cls).items() if name not in more}
    refuse_unknown(place, given, list(keys))
    for name, key in keys.items():
        if key.required and name not in given:
            raise place.wrong(f"has no {name}")
    values = {name: _value(place, name, keys[name], found) for name, found in given.items()}
    try:
        return made_of(cls, values | more)
    except UsageError as error:
        raise place.wrong(str(error)) from None


def refuse_unknown(place: TomlPlace, given: Mapping[str, Any], known: list[str]) -> None:
    """Raises UsageError for a key that is not known."""
    for name in given:
        if "password" in name and name not in known:
            raise place.wrong(
                f"{name}: a password does not stand in this file; use password_file, credentials_file or the"
                " environment's PENSTOCK_PASSWORD"
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise place.wrong(f"has an unknown key {name!r}; {meant}")


def _value(place: TomlPlace, name: str, key: TomlKey, found: Any) -> Any:
    """Return a value as its key wants it. Raises UsageError."""
    try:
        value = convert(found, key.type)
    except ValidationError:
        value = None
    if value is not None and found != []:
        return place.path(value) if key.is_path else value
    kinds = [kind for kind in _alternatives(key.type) if kind is not types.NoneType]
    shown = "a table" if isinstance(found, dict) else "a list" if isinstance(found, list) else repr(found)
    shown = "an empty list" if found == [] else shown
    raise place.wrong(f"{name} is {shown}, expected {' or '.join(map(_kind_text, kinds))}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _kind_text(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    return "a list of texts" if typing.get_origin(kind) is tuple else _KINDS[kind]
