"""Names in other spaces: for each space that a name enters, one pair of functions or one check.

| space | way in | way back |
| --- | --- | --- |
| printed text: terminals, logs, messages of errors | escape_text, escape_bytes | unescape_text, unescape_bytes |
| sentences and JSON on terminals and in logs | make_printable, make_json_printable | none; reading the JSON |
| a part of a URL's path | quote_part | unquote_part |
| keys of documents that Penstock itself keeps | quote_key_part | unquote_part |
| connection strings, roles; directories of a node | find_bucket_name_error, check_new_bucket | the same name |

The ways in are injective: two names never become one. Nothing here depends on a layer.
"""

from __future__ import annotations

import json
import re
from urllib.parse import quote, unquote

from penstock.errors import UsageError

__all__ = [
    "MEMBER_FILE",
    "check_new_bucket",
    "escape_bytes",
    "escape_text",
    "find_bucket_name_error",
    "is_bucket_name",
    "make_json_printable",
    "make_printable",
    "quote_key_part",
    "quote_part",
    "unescape_bytes",
    "unescape_text",
    "unquote_part",
]

_SHORT = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LONG = {escape: char for char, escape in _SHORT.items()}
_ESCAPE = re.compile(r"\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_FIRST_BYTE = 0xDC00
"""Python decodes a byte that is not UTF-8 as this code point plus the byte."""


def escape_text(text: str) -> str:
    r"""Return a text in one line that a terminal shows as it stands.

    Control characters, line breaks, characters that change the direction of writing or have no width, and lone
    surrogates become `\n`, `\x1b` or `\u202e`. A backslash is doubled.
    """
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escape_character, text))


def _escape_character(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unescape_text(shown: str) -> str:
    """Return the text that `escape_text` has escaped."""
    return _ESCAPE.sub(lambda found: _LONG.get(found[0]) or chr(int(found[0][2:], 16)), shown)


def make_printable(text: str) -> str:
    """Return a sentence in one line: as `escape_text`, but backslashes stay, so there is no way back.

    It is for texts that may have escaped names in them already.
    """
    return text if text.isprintable() else "".join(c if c == "\\" else _escape_character(c) for c in text)


def make_json_printable(line: str) -> str:
    """Return the same JSON, in which characters that a terminal does not show as they stand are escaped."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def escape_bytes(data: bytes) -> str:
    r"""Return bytes as text in one line, as `escape_text` does; a byte that is not UTF-8 becomes `\xff`."""
    text = data.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(
        f"\\x{ord(char) - _FIRST_BYTE:02x}" if 0xDC80 <= ord(char) <= 0xDCFF else _escape_character(char)
        for char in text
    )


def unescape_bytes(shown: str) -> bytes:
    """Return the bytes that `escape_bytes` has escaped."""

    def restore(found: re.Match[str]) -> str:
        if found[0][1] == "x" and int(found[0][2:], 16) >= 0x80:
            return chr(_FIRST_BYTE + int(found[0][2:], 16))
        return unescape_text(found[0])

    return _ESCAPE.sub(restore, shown).encode("utf-8", "surrogateescape")


def quote_part(name: str) -> str:
    """Return a name as one part of a URL's path: everything but unreserved characters is percent-encoded."""
    return quote(name, safe="")


def unquote_part(part: str) -> str:
    """Return the name in one part of a URL's path, or of a key."""
    return unquote(part, errors="strict")


def quote_key_part(name: str) -> str:
    """Return a name as one part of a key whose parts have colons between them. Only `%` and `:` are encoded."""
    return name.replace("%", "%25").replace(":", "%3A")


_BUCKET_NAME = re.compile(r"[A-Za-z0-9_.%-]{1,100}")

MEMBER_FILE = "cluster.json"
"""The file of a cluster's member in a node's data directory, where each bucket has a directory with its name."""


def is_bucket_name(name: str) -> bool:
    """Return whether a bucket can have a name."""
    return not find_bucket_name_error(name)


def find_bucket_name_error(name: str) -> str:
    """Return the end of an error about a bucket's name; empty if a bucket can have the name."""
    if not _BUCKET_NAME.fullmatch(name):
        return "expected 1 to 100 of the characters A-Z a-z 0-9 _ . % -"
    return "" if name.strip(".") else "expected a name with other characters than dots"


def check_new_bucket(name: str) -> None:
    """Check the name of a bucket that a node creates in its data directory, beside its own files.

    Raises:
        UsageError: no bucket of a node can have the name.
    """
    is_taken = name.removesuffix(".new") == MEMBER_FILE
    if expected := find_bucket_name_error(name) or (
        "expected another name than that of the node's file" if is_taken else ""
    ):
        raise UsageError(f"bucket {name!r}: {expected}")
