"""Detects values that are JSON text, as kv_engine's servers do: the datatype that a client sends is not believed.

Any JSON value counts, scalars too, with white space around it. Source: kv_engine mutation_context.cc and
syntax_validator.cc; platform JSON_checker.cc.
"""

from __future__ import annotations

from typing import Final

from msgspec import DecodeError, Raw
from msgspec.json import Decoder

from penstock.wire.codec import native
from penstock.wire.codec.flags import Datatype

__all__ = ["detect_json", "is_utf8"]

_JSON: Final = int(Datatype.JSON)

_BEGINNINGS: Final = frozenset(b'{["-0123456789tfn \t\r\n')
"""First bytes of JSON text: other values cost no call of the validator."""

_LARGE: Final = 64 * 1024
"""Bytes of a value above which the extension module checks it, if it is built: as fast, and without the GIL."""

_locate = getattr(native.extension, "locate", None)
_MAX_LEVELS: Final = 1024
"""Levels of nesting that the extension module accepts."""

_check_syntax = Decoder(Raw).decode
"""Reads JSON text without making objects of it. It takes any byte above 0x7f in a string."""


def detect_json(value: bytes) -> int:
    r"""Return the bit Datatype.JSON for JSON text, 0 for any other value.

    Half a surrogate pair (`"\ud800"`) is JSON here, as for kv_engine's validator, and a number may be of any size. Text
    nested deeper than the interpreter allows (1000 levels or more) is not; kv_engine has no limit.
    """
    if not value or value[0] not in _BEGINNINGS:
        return 0
    if len(value) > _LARGE and _locate is not None:
        return _JSON if 0 <= _locate(value, b"", b"")[0] <= _MAX_LEVELS else 0
    try:
        _check_syntax(value)
    except DecodeError:
        return _detect_with_surrogates(value)
    except RecursionError:
        return 0
    return _JSON if value.isascii() or is_utf8(value) else 0


def _detect_with_surrogates(value: bytes) -> int:
    """Return the bit Datatype.JSON for JSON text with its surrogates removed, 0 for any other value.

    msgspec accepts escaped surrogates in pairs only.
    """
    if b"\\ud" not in value and b"\\uD" not in value:
        return 0
    plain = value.replace(b"\\\\", b"__").replace(b"\\ud", b"\\u0").replace(b"\\uD", b"\\u0")
    try:
        _check_syntax(plain)
    except (DecodeError, RecursionError):
        return 0
    return _JSON if is_utf8(value) else 0


def is_utf8(value: bytes) -> bool:
    """Return whether bytes are UTF-8."""
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
