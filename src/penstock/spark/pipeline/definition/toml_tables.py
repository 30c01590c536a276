"""Tables of a TOML file as frozen dataclasses: each field is a key, its annotation is the type of the value.

An error names the file, the table and the key, as in `p.toml: [source.beer] url is 5, expected text`.
"""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from penstock.errors import UsageError

__all__ = ["TomlPlace", "load", "read"]

T = TypeVar("T")

_MOST_BYTES = 1 << 20
"""Of a file: what is longer is another file."""

_KINDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


class TomlPlace(typing.NamedTuple):
    """Where something stands. title: as `[current]`; empty for the keys outside all tables."""

    file: str
    title: str = ""

    def wrong(self, text: str) -> UsageError:
        """Return the error that names this place."""
        return UsageError(f"{self.file}: {self.title}{' ' * bool(self.title)}{text}")


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
    hints = typing.get_type_hints(cls)
    known = {field.name: field for field in fields(cls) if field.name not in more}  # type: ignore[arg-type]
    refuse_unknown(place, given, list(known))
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise place.wrong(f"has no {name}")
    values = {name: _value(place, name, hints[name], found) for name, found in given.items()}
    try:
        return cls(**values, **more)
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


def _value(place: TomlPlace, name: str, hint: Any, found: Any) -> Any:
    """Return a value as its field's annotation wants it: a scalar, one of some words, or a tuple of texts."""
    kinds = [kind for kind in _alternatives(hint) if kind is not types.NoneType]
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            if found in typing.get_args(kind) and isinstance(found, str):
                return found
        elif typing.get_origin(kind) is tuple:
            if isinstance(found, list) and found and all(isinstance(each, str) for each in found):
                return tuple(found)
        elif type(found) is kind or (kind is float and type(found) is int):
            return kind(found)
    expected = " or ".join(map(_kind_text, kinds))
    shown = "a table" if isinstance(found, dict) else "a list" if isinstance(found, list) else repr(found)
    shown = "an empty list" if found == [] else shown
    raise place.wrong(f"{name} is {shown}, expected {expected}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _kind_text(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    return "a list of texts" if typing.get_origin(kind) is tuple else _KINDS[kind]
