"""Names in other spaces: for each space that a name enters, one pair of functions or one check.

| space | way in | way back |
| --- | --- | --- |
| printed text: terminals, logs, messages of errors | escape_text, escape_bytes | unescape_text, unescape_bytes |
| sentences and JSON on terminals and in logs | make_printable, make_json_printable | none; reading the JSON |
| a part of a URL's path | quote_part | unquote_part |
| keys of documents that Penstock itself keeps | quote_key_part | unquote_part |
| columns of tables, from fields of documents | quote_column, spell_columns | unquote_column |
| tables, from scopes and collections | quote_table | unquote_table |
| connection strings, roles; directories of a node | find_bucket_name_error, check_new_bucket | the same name |

The ways in are injective: two names never become one. Nothing here depends on a layer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from unicodedata import normalize
from urllib.parse import quote, unquote

from penstock.errors import UsageError

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


def format_count(number: int, noun: str) -> str:
    """Return a number of things as text: `1 file`, `2,000 files`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


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


RESERVED_COLUMNS = frozenset(
    {
        *("_key", "_rest", "_deleted", "_deleted_at", "_valid_from", "_valid_to", "_is_current", "_event", "_position"),
        *("_vbucket", "_history", "_seqno", "_cas", "_revision", "_expiry", "_flags"),
        *("_key_bytes", "_collection_id", "vbucket_range"),
        *("_changed_at", "_loaded_at", "_batch"),
        *("_change_type", "_commit_version", "_commit_timestamp", "_commit_snapshot_id", "_change_ordinal"),
        *("_file", "_pos", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number", "_metadata"),
    }
)
"""Columns that Penstock, Delta, Iceberg or Spark add to tables."""
_COLUMN_ESCAPE = re.compile(r"_x([0-9a-f]{1,6})_")
_EMPTY_COLUMN = "_x_"
_HEX = frozenset("0123456789abcdefABCDEF")


def quote_column(name: str, *, keep_case: bool = True) -> str:
    """Return the name of a column for a field of documents, which may have any characters.

    Letters, digits and underscores stay. Any other character becomes `_x2d_`, with its code point in hexadecimal. So
    does the first character of a column that Penstock or a table format adds, and an underscore that would begin such
    a sequence.

    Args:
        name: the name of the field.
        keep_case: whether upper-case letters and letters beyond ASCII stay. Without them, two names never differ in
            case alone.
    """
    if not name:
        return _EMPTY_COLUMN
    is_composed = normalize("NFC", name) == name

    def stays(char: str) -> bool:
        if char.isascii():
            return char == "_" or (char.isalnum() and (keep_case or not char.isupper()))
        return keep_case and is_composed and _has_plain_case(char)

    return _spell_column(name, stays, escapes_first=name.lower() in RESERVED_COLUMNS or name.lower() == _EMPTY_COLUMN)


def _has_plain_case(char: str) -> bool:
    """Return whether a letter or digit is equal to no other one, except its own other case, however engines compare."""
    lower, upper = char.lower(), char.upper()
    return char.isalnum() and len(lower) == 1 and (len(upper) > 1 or upper.lower() == lower)


def _spell_column(name: str, stays: Callable[[str], bool], *, escapes_first: bool) -> str:
    found = []
    for at, char in enumerate(name):
        if (at == 0 and escapes_first) or not stays(char) or (char == "_" and _begins_escape(name, at, stays)):
            found.append(f"_x{ord(char):x}_")
        else:
            found.append(char)
    return "".join(found)


def _begins_escape(name: str, at: int, stays: Callable[[str], bool]) -> bool:
    """Return whether the underscore at a place would begin an escape sequence in the spelt name."""
    end = at + 2
    while end < len(name) and name[end] in _HEX and stays(name[end]):
        end += 1
    return (
        name[at + 1 : at + 2] in ("x", "X") and at + 2 < end < len(name) and (name[end] == "_" or not stays(name[end]))
    )


def unquote_column(column: str) -> str:
    """Return the name of the field that a column has, however it was spelt."""
    if column == _EMPTY_COLUMN:
        return ""

    def restore(found: re.Match[str]) -> str:
        code = int(found[1], 16)
        return chr(code) if code < 0x110000 else found[0]

    return _COLUMN_ESCAPE.sub(restore, column)


def spell_columns(fields: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return the column of each field, all different also in engines that ignore case.

    A field has the column of `quote_column`. If another column is equal to it, upper-case letters are escaped. If that
    is not enough, all characters are.

    Args:
        fields: the names of the fields, each once.
        taken: columns that exist already, spelt by the same rule.
    """
    used = {column.lower() for column in taken}
    found = []
    for field in fields:
        forms = (quote_column(field), quote_column(field, keep_case=False))
        column = next((form for form in forms if form.lower() not in used), None)
        if column is None:
            column = "".join(f"_x{ord(char):x}_" for char in field)
        used.add(column.lower())
        found.append(column)
    return found


DEFAULT_NAME = "_default"
"""The name of the first scope of a bucket, and of its first collection."""
_TABLE_OF_DEFAULT = "default"
_TAKEN_TABLES = (_TABLE_OF_DEFAULT, "changelog", "current")
"""Tables that no collection of the default scope has by its name: two are those of a lake."""


def quote_table(scope: str, collection: str) -> str:
    """Return the name of the table of a collection: `orders`, or `shop_x2e_orders` of another scope than the default.

    The point between scope and collection, and all other characters, are spelt as in a column. The default collection
    has the table `default`. So a collection `default`, `changelog` or `current` has its first letter spelt.
    """
    if (scope, collection) == (DEFAULT_NAME, DEFAULT_NAME):
        return _TABLE_OF_DEFAULT
    if scope != DEFAULT_NAME:
        return quote_column(f"{scope}.{collection}")
    if collection.lower() in _TAKEN_TABLES:
        return f"_x{ord(collection[0]):x}_{collection[1:]}"
    return quote_column(collection)


def unquote_table(table: str) -> tuple[str, str]:
    """Return the scope and the collection of a table that `quote_table` has named."""
    if table == _TABLE_OF_DEFAULT:
        return DEFAULT_NAME, DEFAULT_NAME
    scope, between, collection = unquote_column(table).rpartition(".")
    return (scope, collection) if between else (DEFAULT_NAME, collection)


_BUCKET_NAME = re.compile(r"[A-Za-z0-9_.%-]{1,100}")

MEMBER_FILE = "cluster.json"
"""The file of a cluster's member in a node's data directory, where each bucket has a directory with its name."""

NODE_FILE = "node.json"
"""The file with the uuid of a node, beside the directories of its buckets."""


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
    is_taken = name.removesuffix(".new") in (MEMBER_FILE, NODE_FILE)
    if expected := find_bucket_name_error(name) or (
        "expected another name than that of the node's file" if is_taken else ""
    ):
        raise UsageError(f"bucket {name!r}: {expected}")
