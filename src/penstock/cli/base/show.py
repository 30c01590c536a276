"""Formats of changes and documents as JSON objects and as one line of text, and warnings on standard error.

Commands print results with `print` on standard output: text, or with --json the result of `format_json_line`. They
report problems with `warn`.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["TEXT_NUMBERS", "format_json_line", "format_one_line", "make_json_object", "warn"]

TEXT_NUMBERS = ("cas", "vbuuid", "old_vbuuid")
"""Columns that are strings in JSON: many JSON parsers round numbers above 2**53."""


def format_json_line(content: Mapping[str, Any]) -> str:
    """Return an object as one line of JSON, without escapes for characters outside ASCII."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def warn(sentence: str) -> None:
    """Print a problem on standard error, in one line with the prefix `penstock:`."""
    print(f"penstock: {' '.join(sentence.split())}", file=sys.stderr)


def make_json_object(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as an object for JSON, without null columns.

    Bytes become text. Bytes that are not UTF-8 become base64, with `_base64` added to the column's name.
    """
    from penstock.wire.columns.schema import unsigned64

    shown: dict[str, Any] = {}
    for name, content in row.items():
        if content is None:
            continue
        if name in TEXT_NUMBERS:
            shown[name] = str(unsigned64(content))
        elif isinstance(content, bytes):
            _add_bytes(shown, name, content)
        elif name == "xattrs":
            shown[name] = {}
            for key, value in dict(content).items():
                _add_bytes(shown[name], key, value)
        else:
            shown[name] = content
    return shown


def _add_bytes(shown: dict[str, Any], name: str, content: bytes) -> None:
    try:
        shown[name] = content.decode()
    except UnicodeDecodeError:
        shown[f"{name}_base64"] = base64.b64encode(content).decode()


def format_one_line(content: bytes | None, width: int) -> str:
    """Return bytes as at most `width` printable characters; `…` marks a cut."""
    if content is None:
        return ""
    # A character has at most four bytes: a value of megabytes is not decoded completely for its first words.
    text = content[: 4 * width + 4].decode("utf-8", "backslashreplace")
    shown = text[: width + 1]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return shown if len(shown) <= width and len(text) <= width else shown[: width - 1] + "…"
