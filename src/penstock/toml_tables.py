"""Tables of a TOML file as frozen dataclasses: each field is a key, and its annotation is the type of the value.

A field of `given_options` stands for the options of another class, which are keys of the table too.

An error names the file, the table and the key, as in `p.toml: [source.beer] url is 5, expected text`.
"""

from __future__ import annotations

import difflib
import os
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from msgspec import ValidationError, convert

from penstock.errors import UsageError
from penstock.options import find_option_group, format_option, list_options
from penstock.text_files import read_text_file

T = TypeVar("T")

_MAX_BYTES = 1 << 20
"""Greatest size of a file. A larger file is none that a person wrote."""

_KINDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


class TomlPlace(NamedTuple):
    """A place in a file, for errors.

    Attributes:
        file: the file.
        title: the table, such as `[current]`; empty for keys outside all tables.
    """

    file: str
    title: str = ""

    def make_error(self, text: str) -> UsageError:
        """Return an error that names this place."""
        return UsageError(f"{self.file}: {self.title}{' ' * bool(self.title)}{text}")

    def resolve_path(self, text: str) -> str:
        """Return an absolute path for a path that is relative to the file's directory."""
        base = Path(self.file).absolute().parent
        return text if "://" in text else os.path.normpath(base / Path(text).expanduser())


class TomlKey(NamedTuple):
    """A key of a table.

    Attributes:
        type: the type of its value.
        required: True if the table must have it.
        is_path: True if the value is a path relative to the file's directory.
        group: the field that holds the value among the options of another class; None if the key is a field itself.
        format: makes the text of a value in a group.
    """

    type: Any
    required: bool = False
    is_path: bool = False
    group: str | None = None
    format: Callable[[Any], str] = format_option


def list_keys(cls: type) -> dict[str, TomlKey]:
    """Return the keys of the table that a dataclass declares.

    A field takes precedence over an option with the same name.

    Args:
        cls: the dataclass.

    Returns:
        The keys by name.
    """
    hints, declared = typing.get_type_hints(cls), list_options(cls)
    own = {field.name for field in fields(cls)}
    found = {}
    for field in fields(cls):
        if (group := find_option_group(field)) is not None:
            for name, each in group.options().items():
                if name not in own:
                    takes = each.option_type
                    found[name] = TomlKey(
                        takes.value, is_path=takes.is_path, group=field.name, format=takes.format or format_option
                    )
        else:
            required = field.default is MISSING and field.default_factory is MISSING
            is_path = field.name in declared and declared[field.name].option_type.is_path
            found[field.name] = TomlKey(hints[field.name], required, is_path)
    return found


def build_dataclass(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return a dataclass made of the values of keys. Raises the UsageError of the dataclass.

    Args:
        cls: the dataclass.
        values: values by key; None counts as not given.

    Returns:
        An instance.
    """
    keys = list_keys(cls)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        group = keys[name].group if name in keys else None
        if value is not None and group is not None:
            arguments.setdefault(group, {})[name] = keys[name].format(value)
        elif value is not None:
            arguments[name] = value
    return cls(**arguments)


def load_toml(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Args:
        path: the file.

    Returns:
        The tables and keys.

    Raises:
        UsageError: the file cannot be read or is not TOML.
    """
    text = read_text_file(path, "a TOML file", _MAX_BYTES)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}") from None


def parse_table(cls: type[T], place: TomlPlace, given: Any, **fixed_fields: Any) -> T:
    """Return a dataclass made of a table.

    Raises UsageError for an unknown or missing key, and for a value of another type. It names the nearest known key.
    Also raises the UsageError of the dataclass.

    Args:
        cls: the dataclass.
        place: the table's place, for errors.
        given: the table.
        fixed_fields: values of fields that are not keys of the table.

    Returns:
        An instance.
    """
    if not isinstance(given, dict):
        raise place.make_error("is not a table, expected keys and values")
    keys = {name: key for name, key in list_keys(cls).items() if name not in fixed_fields}
    check_keys(place, given, list(keys))
    for name, key in keys.items():
        if key.required and name not in given:
            raise place.make_error(f"has no {name}")
    values = {name: _convert_value(place, name, keys[name], found) for name, found in given.items()}
    try:
        return build_dataclass(cls, values | fixed_fields)
    except UsageError as error:
        raise place.make_error(str(error)) from None


def check_keys(place: TomlPlace, given: Mapping[str, Any], known: list[str]) -> None:
    """Raise UsageError for a key that is not known."""
    for name in given:
        if "password" in name and name not in known:
            sources = [key for key in known if key.startswith(("password", "credentials"))]
            ways = " or ".join(filter(None, (", ".join(sources), "the environment variable PENSTOCK_PASSWORD")))
            raise place.make_error(f"{name}: the file must not hold a password; use {ways}")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            meant = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise place.make_error(f"has an unknown key {name!r}; {meant}")


def _convert_value(place: TomlPlace, name: str, key: TomlKey, found: Any) -> Any:
    """Return a value in its key's type. Raises UsageError for a value of another type."""
    try:
        value = convert(found, key.type)
    except ValidationError:
        value = None
    if value is not None and found != []:
        return place.resolve_path(value) if key.is_path else value
    kinds = [kind for kind in _list_alternatives(key.type) if kind is not types.NoneType]
    shown = "a table" if isinstance(found, dict) else "a list" if isinstance(found, list) else repr(found)
    shown = "an empty list" if found == [] else shown
    raise place.make_error(f"{name} is {shown}, expected {' or '.join(map(_describe_kind, kinds))}")


def _list_alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _describe_kind(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return "a list of texts"
    if kind == Mapping[str, str]:
        return "a table of texts, where a key with points is in quotes"
    return _KINDS.get(kind, "a table of texts, numbers and booleans")
