r"""The path of a part of a document: keys and indexes, as in `address.lines[0]`.

A key is written as between the quotes of JSON text, with the same escapes except `\u`. Text between backticks is part
of the key, so a key may have dots and brackets. Two backticks stand for one backtick of the key. Index -1 is the last
element of an array. A dot may stand before a bracket. A dot at the end is refused, and so is `[]`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from json import JSONDecoder
from typing import NamedTuple

from penstock.errors import StatusError, make_status_error
from penstock.wire.codec.statuses import Status

MAX_PATH = 1024
"""The maximum length of a path, in bytes."""

MAX_COMPONENTS = 32
LAST = -1
"""The index of an array's last element."""


class KeyComponent(NamedTuple):
    """A component of a path that is a key.

    Attributes:
        name: the key, decoded.
        text: the key as JSON text, without the quotes.
    """

    name: str
    text: str


Component = KeyComponent | int
Path = tuple[Component, ...]

_INDEX = re.compile(r"\[(-1|[0-9]+)\]")
_KEY = re.compile(r"(?:[^\\`.\[\]]|\\[\"/\\bfnrt]|`(?:[^\\`]|\\[\"/\\bfnrt])*`)+")
_BACKTICKS = re.compile("``?")

_decode_name = JSONDecoder().raw_decode


@lru_cache(maxsize=1024)
def parse_path(path: bytes) -> Path:
    """Return the components of a path; no components for the empty path.

    Args:
        path: the path as the command has it.

    Raises:
        StatusError: with SUBDOC_PATH_EINVAL; it is not a path. With SUBDOC_PATH_E2BIG; it has more than 1024 bytes or
            32 components.
    """
    if len(path) > MAX_PATH:
        raise make_status_error(Status.SUBDOC_PATH_E2BIG, f"path of {len(path)} bytes, limit {MAX_PATH}")
    try:
        text = path.decode()
    except UnicodeDecodeError:
        raise _make_path_error(path, "it is not UTF-8") from None
    components: list[Component] = []
    at = 0
    while at < len(text):
        component, at = _parse_component(path, text, at)
        if len(components) == MAX_COMPONENTS:
            raise make_status_error(Status.SUBDOC_PATH_E2BIG, f"path of more than {MAX_COMPONENTS} components")
        components.append(component)
        if at < len(text) and text[at] == ".":
            at += 1
            if at == len(text):
                raise _make_path_error(path, "nothing follows the last dot")
        elif at < len(text) and text[at] != "[":
            raise _make_path_error(path, f"expected a dot or a bracket at {at}")
    return tuple(components)


def format_path(path: Path) -> str:
    """Return a path as text for messages."""
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each.name}" for each in path).lstrip(".") or "''"


def _parse_component(path: bytes, text: str, at: int) -> tuple[Component, int]:
    """Return the component that begins at `at`, and the position after it."""
    if (index := _INDEX.match(text, at)) is not None:
        return int(index[1]), index.end()
    key = _KEY.match(text, at)
    if key is None:
        raise _make_path_error(path, f"expected a key or an index at {at}")
    return _parse_key(path, key[0]), key.end()


def _parse_key(path: bytes, part: str) -> KeyComponent:
    if len(part) > 1 and part[0] == part[-1] == "`":
        part = part[1:-1]
    if "`" in part:
        part = _BACKTICKS.sub(lambda found: found[0][1:], part)
    if not part:
        raise _make_path_error(path, "a key is empty")
    quoted = f'"{part}"'
    try:
        name, end = _decode_name(quoted)
    except ValueError:
        end = 0
    if end != len(quoted):
        raise _make_path_error(path, f"key {part!r} has a quote or a control character that is not escaped")
    return KeyComponent(name, part)


def _make_path_error(path: bytes, reason: str) -> StatusError:
    return make_status_error(Status.SUBDOC_PATH_EINVAL, f"path {path[:80]!r}: {reason}")
