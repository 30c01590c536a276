"""Declarations of options: a field of a frozen dataclass states an option's type, meaning and default once.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ConnectionOptions:
        connect_timeout: float = option(SECONDS, "seconds for a connection to be made and set up", default=10.0)
        protocol: Dialect = option(parsed(dialect_of), "the dialect of change streams", default=Dialect.DCP)

The field's name gives all spellings: `connectTimeout` in connection strings and in Spark, `connect_timeout` in a TOML
file, `--connect-timeout` on the command line. Parsing, errors, `--help` and the tables of the pages read the
declaration. Fields without `option` cannot be set by users.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import StrEnum
from functools import cache
from typing import Any, Literal

from penstock.errors import UsageError

Reader = Callable[[str, str], Any]
"""Takes an option's name and text, returns its value. Raises UsageError."""


# Types of options


@dataclass(frozen=True, slots=True)
class OptionType:
    """The values that an option accepts.

    Attributes:
        read: parses the text of a connection string or of a Spark option.
        value: the type of the value in a TOML file and on the command line.
        low, high: the limits of a number, both included; None where there is none.
        metavar: placeholder of a value in help texts.
        is_path: a relative path in a TOML file starts at the file's directory.
        scale: the factor from the command line's number to the value, where the command line has another unit.
        format: makes the text of a value; None: `format_option`.
        words: words that a shell completes, where `value` does not list them.
    """

    read: Reader
    value: Any = str
    low: float | None = None
    high: float | None = None
    metavar: str | None = None
    is_path: bool = False
    scale: float | None = None
    format: Callable[[Any], str] | None = None
    words: tuple[str, ...] = ()


def parsed(
    read: Reader, value: Any = str, *, metavar: str | None = None, is_path: bool = False, words: Iterable[str] = ()
) -> OptionType:
    """Return the type of options that the function `read` parses."""
    return OptionType(read, value, metavar=metavar, is_path=is_path, words=tuple(map(str, words)))


def nonempty(expected: str = "", *, metavar: str = "NAME", is_path: bool = False) -> OptionType:
    """Return the type of a text that is not empty.

    Args:
        expected: describes the text in the error, for example "a file".
        metavar: placeholder of a value in help texts.
        is_path: the text is a path.
    """

    def read(name: str, given: str) -> str:
        if not given:
            raise UsageError(f"option {name} is empty" + (f", expected {expected}" if expected else ""))
        return given

    return OptionType(read, metavar=metavar, is_path=is_path)


def text_list(read: Reader | None = None, *, metavar: str = "NAME") -> OptionType:
    """Return the type of a list of texts: separated by commas, or given several times on the command line."""
    return OptionType(read or (lambda _, given: tuple(given.split(","))), tuple[str, ...], metavar=metavar)


def list_of(each: OptionType) -> OptionType:
    """Return the type of a list whose elements have the type `each`. Users write it as they write a `text_list`."""

    def read(name: str, given: str) -> tuple[Any, ...]:
        return tuple(each.read(name, one) for one in given.split(","))

    return replace(each, read=read, value=tuple[each.value, ...])  # type: ignore[name-defined]


def number(
    low: float, high: float | None = None, *, metavar: str = "SECONDS", scale: float | None = None
) -> OptionType:
    """Return the type of a number within limits, both included."""
    return _make_number_type(float, low, high, metavar, scale)


def whole_number(low: int, high: int | None = None, *, metavar: str = "N") -> OptionType:
    """Return the type of a whole number within limits, both included."""
    return _make_number_type(int, low, high, metavar, None)


def _make_number_type(
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
        # int and float also read white space, underscores between digits, and digits of other scripts.
        if not (least <= found <= most and given.isascii() and not re.search(r"[_\s]", given)):
            limit = f", at most {most}" if high is None and found > most else ""
            raise UsageError(f"option {name} is {given!r}, expected {expected}{limit}")
        return found

    return OptionType(read, kind, low, high, metavar, scale=scale)


_MOST = 10**18 - 1
"""The greatest number where no other limit is set; its negative is the least."""

_UNITS = {"k": 10, "m": 20, "g": 30}


def _read_size(name: str, given: str) -> int:
    digits, unit = (given[:-1], given[-1:].lower()) if given[-1:].lower() in _UNITS else (given, "")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18 and int(digits) > 0):
        raise UsageError(
            f"option {name} is {given!r}, expected bytes as a whole number above 0, of at most 18 digits, or with k,"
            " m or g"
        )
    return int(digits) << _UNITS.get(unit, 0)


def _read_boolean(name: str, given: str) -> bool:
    if given not in ("true", "false"):
        raise UsageError(f"option {name} is {given!r}, expected true or false")
    return given == "true"


def split_command(name: str, given: str) -> tuple[str, ...]:
    """Return the words of a command that is written as in a shell.

    Args:
        name: the option, for errors.
        given: the command; it is not shown, because it may have secrets.

    Raises:
        UsageError: there is no word, or a quotation mark is not closed.
    """
    try:
        words = tuple(shlex.split(given))
    except ValueError:
        words = ()
    if not words or not words[0]:
        raise UsageError(f"option {name} has no command, or an open quotation mark; expected a program and arguments")
    return words


def one_of(*words: str) -> OptionType:
    """Return the type of one of the given words, which may be members of an enumeration."""

    def read(name: str, given: str) -> str:
        if given not in words:
            raise UsageError(f"option {name} is {given!r}, expected {', '.join(words[:-1])} or {words[-1]}")
        return words[words.index(given)]

    return OptionType(read, Literal[tuple(map(str, words))])


def member_of(words: type[StrEnum]) -> OptionType:
    """Return the type of a member of an enumeration. Users give the member's value."""

    def read(name: str, given: str) -> StrEnum:
        if given not in words._value2member_map_:
            raise UsageError(f"option {name} is {given!r}, expected one of {', '.join(words)}")
        return words(given)

    return OptionType(read, Literal[tuple(map(str, words))])


ANY_TEXT = parsed(lambda _, given: given)
TEXT = nonempty()
FILE = nonempty("a file", metavar="FILE", is_path=True)
COMMAND = OptionType(split_command, tuple[str, ...], metavar="COMMAND", format=shlex.join)
"""A command: a list of words in a TOML file, and words as in a shell elsewhere. No shell runs it."""
SECONDS = number(0.001, 86400.0)
POSITIVE = whole_number(1)
INTEGER = _make_number_type(int, None, None, "N", None)
PORT = whole_number(0, 65535, metavar="PORT")
SIZE = parsed(_read_size, int | str)
BOOLEAN = parsed(_read_boolean, bool)


# Declarations


@dataclass(frozen=True, slots=True)
class Option:
    """An option, read from the declaration of its field.

    Attributes:
        name: the field's name, which is the key in a TOML file.
        option_type: the values that it accepts.
        doc: its meaning in a few words, for help texts and tables.
        default: the value if the option is not given; MISSING if it is required.
        shown: the default in words; None if the value itself is clear.
        example: a valid text.
        flag: its name on the command line.
        environment: the environment variable that holds the value if the command line does not.
        is_filter: it selects changes, so tables that were filled with another value hold other rows.
    """

    name: str
    option_type: OptionType
    doc: str
    default: Any
    shown: str | None
    example: str
    flag: str
    environment: str | None
    is_filter: bool

    @property
    def external_name(self) -> str:
        """Its name in connection strings and in Spark."""
        return to_external_name(self.name)

    @property
    def default_text(self) -> str:
        """The default in words, after the name of the environment variable if there is one."""
        words = self._default_words()
        if self.environment is None:
            return words or "none"
        return f"{self.environment} of the environment" + (f", else {words}" if words else "")

    def _default_words(self) -> str:
        if self.shown is not None:
            return self.shown
        if self.default is None or self.default is MISSING:
            return ""
        value = self.default if self.option_type.scale is None else self.default / self.option_type.scale
        return f"{value:.15g}" if isinstance(value, float) else format_option(value)


_KEY, _OWNER, _GROUP = "option", "owner of the option", "given options"
"""Keys of a field's metadata: the function that makes its option, the class that shares the option, and its group."""


def option(
    option_type: OptionType,
    doc: str,
    *,
    default: Any = MISSING,
    shown: str | None = None,
    example: str = "",
    flag: str | None = None,
    environment: str | None = None,
    is_filter: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field of a dataclass as an option.

    Args:
        option_type: the values that it accepts.
        doc: its meaning in a few words, for help texts and tables.
        default: the value if the option is not given; without it, the option is required.
        shown: the default in words, if the value itself is not clear.
        example: a valid text.
        flag: its name on the command line, if it differs from the field's name.
        environment: the environment variable that holds the value if the command line does not.
        is_filter: it selects changes, so tables that were filled with another value hold other rows.
        secret: the value is left out of the dataclass's repr.

    Returns:
        A dataclass field.
    """

    def make(own: Field[Any]) -> Option:
        spelling = flag or "--" + own.name.replace("_", "-")
        return Option(own.name, option_type, doc, own.default, shown, example, spelling, environment, is_filter)

    return field(default=default, repr=not secret, metadata={_KEY: make})


def shared_option(
    owner: type,
    *,
    example: str = "",
    doc: str | None = None,
    shown: str | None = None,
    is_filter: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field as the option of the same name of another class, whose value is used if this one is not given.

    Everything that is not given here is as the other class declares it. If the other class has an attribute `given_in`,
    that attribute names the place where its options are set. Otherwise the default is the other class's.

    Returns:
        A dataclass field with the default None.
    """

    def make(own: Field[Any]) -> Option:
        theirs = list_options(owner)[own.name]
        words, place = shown or theirs.default_text, getattr(owner, "given_in", None)
        words = words if place is None else f"of {place}, else {words}"
        return Option(
            own.name,
            theirs.option_type,
            doc or theirs.doc,
            None,
            words,
            example or theirs.example,
            theirs.flag,
            None,
            is_filter,
        )

    return field(default=None, repr=not secret, metadata={_KEY: make, _OWNER: owner})


def read_shared_values(declared: Any, owner: type) -> dict[str, Any]:
    """Return the values of another class's options that an object shares and that are not None, by field name."""
    names = [own.name for own in fields(declared) if own.metadata.get(_OWNER) is owner]
    return {name: value for name in names if (value := getattr(declared, name)) is not None}


@cache
def list_options(owner: Any) -> Mapping[str, Option]:
    """Return the options that a dataclass declares, by field name, in the order of declaration."""
    return {own.name: own.metadata[_KEY](own) for own in fields(owner) if _KEY in own.metadata}


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """The options of another class that a TOML table accepts as keys.

    Attributes:
        owner: the class that declares the options.
        without: field names that the table does not accept.
    """

    owner: type
    without: tuple[str, ...]

    def options(self) -> dict[str, Option]:
        """Return the accepted options by field name."""
        return {name: each for name, each in list_options(self.owner).items() if name not in self.without}


def given_options(owner: type, *, without: Iterable[str]) -> Any:
    """Declare a field that holds the options of another class from a TOML table: their texts, by field name.

    Returns:
        A dataclass field with an empty dict as default.
    """
    return field(default_factory=dict, hash=False, metadata={_GROUP: GivenOptions(owner, tuple(without))})


def find_option_group(own: Field[Any]) -> GivenOptions | None:
    """Return the options that a field holds, None if it was not declared by `given_options`."""
    return own.metadata.get(_GROUP)


def to_external_name(name: str) -> str:
    """Return an option's name in connection strings and in Spark: connectTimeout for connect_timeout."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


# Values that users give


def read_options(owner: type, given: Mapping[str, str], place: str, *, any_case: bool = False) -> dict[str, Any]:
    """Return the values of options that users gave as text, by field name.

    Args:
        owner: the dataclass that declares the options.
        given: external name -> text.
        place: where the options were given, for the error.
        any_case: names are matched without regard to case.

    Raises:
        UsageError: a name is unknown, or an option does not accept its text.
    """
    normalize = str.lower if any_case else str
    known = {normalize(each.external_name): each for each in list_options(owner).values()}
    texts_given = {normalize(name): str(each) for name, each in given.items()}
    if unknown := sorted(texts_given.keys() - known.keys()):
        names = ", ".join(each.external_name for each in known.values())
        raise UsageError(f"unknown option {unknown[0]!r} {place}; known are {names}")
    return {
        known[name].name: known[name].option_type.read(known[name].external_name, each)
        for name, each in texts_given.items()
    }


def check_limits(declared: Any) -> None:
    """Check the numbers of an object whose class declares options.

    Raises:
        UsageError: a number is beyond its option's limits.
    """
    for each in list_options(declared.__class__).values():
        found, low, high = getattr(declared, each.name), each.option_type.low, each.option_type.high
        if found is None or low is None or high is None:
            continue
        if not low <= found <= high:
            raise UsageError(f"{each.name} is {found}, expected {low} to {high}")


def format_option(value: object) -> str:
    """Return a value as the text of an option."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # A command line gives a repeated option as a list.
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
