"""An option is declared once: a field of a frozen dataclass says what it takes, what it is for and its default.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ConnectionOptions:
        connect_timeout: float = option(SECONDS, "seconds for a connection to be made and set up", default=10.0)
        protocol: Dialect = option(parsed(dialect_of), "the dialect of change streams", default=Dialect.DCP)

The field's name gives all spellings: `connectTimeout` in connection strings and in Spark, `connect_timeout` in a TOML
file, `--connect-timeout` on the command line. Parsing, errors, `--help` and the tables of the pages read the
declaration. Fields without `option` are not given from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from penstock.errors import UsageError

__all__ = [
    "ANY_TEXT",
    "FILE",
    "INTEGER",
    "PORT",
    "POSITIVE",
    "SECONDS",
    "SIZE",
    "TEXT",
    "TRUTH",
    "GivenOptions",
    "Option",
    "OptionType",
    "check_limits",
    "given_options",
    "group_of",
    "member_of",
    "nonempty",
    "number",
    "one_of",
    "option",
    "option_text",
    "options_of",
    "outside_name",
    "parsed",
    "read_options",
    "shared",
    "shared_values",
    "text_list",
    "whole_number",
]

Reader = Callable[[str, str], Any]
"""Returns the value of an option's text; gets the option's name and the text. Raises UsageError."""


# What options take


@dataclass(frozen=True, slots=True)
class OptionType:
    """What an option takes.

    Attributes:
        read: how the text of a connection string or of Spark is read.
        value: the type of the value in a TOML file and on the command line.
        low, high: the limits of a number, None where there is none.
        metavar: how help shows a value.
        is_path: a relative path in a TOML file begins at the file's directory.
        scale: the factor from the command line's number to the value, where the command line has another unit.
    """

    read: Reader
    value: Any = str
    low: float | None = None
    high: float | None = None
    metavar: str | None = None
    is_path: bool = False
    scale: float | None = None


def parsed(read: Reader, value: Any = str, *, metavar: str | None = None, is_path: bool = False) -> OptionType:
    """Return the type of what a function reads."""
    return OptionType(read, value, metavar=metavar, is_path=is_path)


def nonempty(expected: str = "", *, metavar: str = "NAME", is_path: bool = False) -> OptionType:
    """Return the type of a text that is not empty. expected: what it is, for the error."""

    def read(name: str, given: str) -> str:
        if not given:
            raise UsageError(f"option {name} is empty" + (f", expected {expected}" if expected else ""))
        return given

    return OptionType(read, metavar=metavar, is_path=is_path)


def text_list(read: Reader | None = None, *, metavar: str = "NAME") -> OptionType:
    """Return the type of a list of texts: with commas between them, or given several times on the command line."""
    return OptionType(read or (lambda _, given: tuple(given.split(","))), tuple[str, ...], metavar=metavar)


def number(
    low: float, high: float | None = None, *, metavar: str = "SECONDS", scale: float | None = None
) -> OptionType:
    """Return the type of a number within limits."""
    return _numeric(float, low, high, metavar, scale)


def whole_number(low: int, high: int | None = None, *, metavar: str = "N") -> OptionType:
    """Return the type of a whole number within limits."""
    return _numeric(int, low, high, metavar, None)


def _numeric(
    kind: type[int] | type[float], low: float | None, high: float | None, metavar: str, scale: float | None
) -> OptionType:
    expected = "a whole number" if kind is int else "a number"
    if high is not None:
        expected += f" from {low} to {high}"
    elif low is not None:
        expected += f" above {low - 1}" if kind is int else f" from {low}"
    least, most = -_MOST if low is None else low, _MOST if high is None else high

    def read(name: str, given: str) -> float:
        try:
            found = kind(given)
        except ValueError:
            found = kind(least - 1)
        if not (least <= found <= most and given.isascii() and "_" not in given):
            raise UsageError(f"option {name} is {given!r}, expected {expected}")
        return found

    return OptionType(read, kind, low, high, metavar, scale=scale)


_MOST = 10**18 - 1
"""The greatest number without another limit; its negative is the least."""

_UNITS = {"k": 10, "m": 20, "g": 30}


def _read_size(name: str, given: str) -> int:
    digits, unit = (given[:-1], given[-1:].lower()) if given[-1:].lower() in _UNITS else (given, "")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18 and int(digits) > 0):
        raise UsageError(f"option {name} is {given!r}, expected bytes as a whole number above 0, or with k, m or g")
    return int(digits) << _UNITS.get(unit, 0)


def _read_truth(name: str, given: str) -> bool:
    if given not in ("true", "false"):
        raise UsageError(f"option {name} is {given!r}, expected true or false")
    return given == "true"


def one_of(*words: str) -> OptionType:
    """Return the type of one of some words, which may be members of an enumeration."""

    def read(name: str, given: str) -> str:
        if given not in words:
            raise UsageError(f"option {name} is {given!r}, expected {', '.join(words[:-1])} or {words[-1]}")
        return words[words.index(given)]

    return OptionType(read, Literal[tuple(map(str, words))])


def member_of(words: type[StrEnum]) -> OptionType:
    """Return the type of a member of an enumeration, which is given by its value."""

    def read(name: str, given: str) -> StrEnum:
        if given not in words._value2member_map_:
            raise UsageError(f"option {name} is {given!r}, expected one of {', '.join(words)}")
        return words(given)

    return OptionType(read, Literal[tuple(map(str, words))])


ANY_TEXT = parsed(lambda _, given: given)
TEXT = nonempty()
FILE = nonempty("a file", metavar="FILE", is_path=True)
SECONDS = number(0.001, 86400.0)
POSITIVE = whole_number(1)
INTEGER = _numeric(int, None, None, "N", None)
PORT = whole_number(0, 65535, metavar="PORT")
SIZE = parsed(_read_size, int | str)
TRUTH = parsed(_read_truth, bool)


# Declarations


@dataclass(frozen=True, slots=True)
class Option:
    """An option, as its field declares it.

    Attributes:
        name: the field's name, which is the key in a TOML file.
        takes: what it takes.
        doc: what it is for, in a few words.
        default: the value without it; MISSING if it is required.
        shown: the default in words, None where the value says it.
        example: a text that it takes.
        flag: its name on the command line.
        environment: the variable that has the value where the command line does not.
        filters: it decides which changes come, so that tables with another value are other tables.
    """

    name: str
    takes: OptionType
    doc: str
    default: Any
    shown: str | None
    example: str
    flag: str
    environment: str | None
    filters: bool

    @property
    def outside_name(self) -> str:
        """Its name in connection strings and in Spark."""
        return outside_name(self.name)

    @property
    def default_text(self) -> str:
        """The default in words."""
        if self.shown is not None:
            return self.shown
        if self.default is None or self.default is MISSING:
            return "none"
        value = self.default if self.takes.scale is None else self.default / self.takes.scale
        return f"{value:.15g}" if isinstance(value, float) else option_text(value)


_KEY, _OWNER, _GROUP = "option", "owner of the option", "given options"
"""What the metadata of a field has: the maker of its option, the class that it is shared with, a group of options."""


def option(
    takes: OptionType,
    doc: str,
    *,
    default: Any = MISSING,
    shown: str | None = None,
    example: str = "",
    flag: str | None = None,
    environment: str | None = None,
    filters: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field of a dataclass as an option.

    Args:
        shown: the default in words, if the value does not say it.
        flag: its name on the command line, if it is not the field's.
        secret: no representation shows the value.
        The others are as in Option.
    """

    def make(own: Field[Any]) -> Option:
        spelling = flag or "--" + own.name.replace("_", "-")
        return Option(own.name, takes, doc, own.default, shown, example, spelling, environment, filters)

    return field(default=default, repr=not secret, metadata={_KEY: make})


def shared(
    owner: type, *, example: str = "", doc: str | None = None, shown: str | None = None, filters: bool = False
) -> Any:
    """Declare a field as the option of the same name of another class, which counts where this one is not given.

    What is not said here is as it is declared there.
    """

    def make(own: Field[Any]) -> Option:
        theirs = options_of(owner)[own.name]
        words = f"of the connection string, else {shown or theirs.default_text}"
        return Option(own.name, theirs.takes, doc or theirs.doc, None, words, example, theirs.flag, None, filters)

    return field(default=None, metadata={_KEY: make, _OWNER: owner})


def shared_values(declared: Any, owner: type) -> dict[str, Any]:
    """Return the options of another class that an object gives: those that it shares and that are not None."""
    names = [own.name for own in fields(declared) if own.metadata.get(_OWNER) is owner]
    return {name: value for name in names if (value := getattr(declared, name)) is not None}


@cache
def options_of(owner: Any) -> Mapping[str, Option]:
    """Return the options that a dataclass declares, by their fields' names, in the order of their declaration."""
    return {own.name: own.metadata[_KEY](own) for own in fields(owner) if _KEY in own.metadata}


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """Which options of another class a TOML table takes as keys: all that it declares, but for some."""

    owner: type
    without: tuple[str, ...]

    def options(self) -> dict[str, Option]:
        return {name: each for name, each in options_of(self.owner).items() if name not in self.without}


def given_options(owner: type, *, without: Iterable[str]) -> Any:
    """Declare a field that holds the options of another class that a TOML table gives: their texts, by field name."""
    return field(default_factory=dict, hash=False, metadata={_GROUP: GivenOptions(owner, tuple(without))})


def group_of(own: Field[Any]) -> GivenOptions | None:
    """Return the options that a field holds, None if it was not declared by `given_options`."""
    return own.metadata.get(_GROUP)


def outside_name(name: str) -> str:
    """Return the name of an option in connection strings and in Spark: connect_timeout is connectTimeout there."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


# What is given


def read_options(owner: type, given: Mapping[str, str], place: str, *, any_case: bool = False) -> dict[str, Any]:
    """Return the values of options that are given as text, by field name.

    Args:
        given: the texts, by outside name.
        place: where they are given, for the error.
        any_case: names are taken in any case.
    Raises:
        UsageError: for an unknown name, and for a text that the option does not take.
    """
    fold = str.lower if any_case else str
    known = {fold(each.outside_name): each for each in options_of(owner).values()}
    texts_given = {fold(name): str(each) for name, each in given.items()}
    if unknown := sorted(texts_given.keys() - known.keys()):
        names = ", ".join(each.outside_name for each in known.values())
        raise UsageError(f"unknown option {unknown[0]!r} {place}; known are {names}")
    return {
        known[name].name: known[name].takes.read(known[name].outside_name, each) for name, each in texts_given.items()
    }


def check_limits(declared: Any) -> None:
    """Check the numbers of an object whose class declares options. Raises UsageError for one beyond its limits."""
    for each in options_of(declared.__class__).values():
        found, low, high = getattr(declared, each.name), each.takes.low, each.takes.high
        if found is None or low is None or high is None:
            continue
        if not low <= found <= high:
            raise UsageError(f"{each.name} is {found}, expected {low:g} to {high:g}")


def option_text(value: object) -> str:
    """Return a value as the text of an option."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)
