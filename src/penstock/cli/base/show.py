"""How changes and documents look: as JSON objects, and as text on one line."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["AS_TEXT", "as_object", "json_line", "one_line"]

AS_TEXT = ("cas", "vbuuid", "old_vbuuid")
"""Numbers beyond 2**53, which many JSON readers round: strings in JSON."""


def json_line(content: Mapping[str, Any]) -> str:
    """Return an object as one line of JSON; text stays readable."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def as_object(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON can say it, without what is null.

    Bytes are text, exactly; those that are not UTF-8 stand, in base64, under the column's name and `_base64`.
    """
    from penstock.wire.columns.schema import unsigned64

    shown: dict[str, Any] = {}
    for name, content in row.items():
        if content is None:
            continue
        if name in AS_TEXT:
            shown[name] = str(unsigned64(content))
        elif isinstance(content, bytes):
            _put_bytes(shown, name, content)
        elif name == "xattrs":
            shown[name] = {}
            for key, value in dict(content).items():
                _put_bytes(shown[name], key, value)
        else:
            shown[name] = content
    return shown


def _put_bytes(shown: dict[str, Any], name: str, content: bytes) -> None:
    try:
        shown[name] = content.decode()
    except UnicodeDecodeError:
        shown[f"{name}_base64"] = base64.b64encode(content).decode()


def one_line(content: bytes | None, width: int) -> str:
    """Return bytes as at most `width` characters that a terminal shows as they are; a cut shows as …"""
    if content is None:
        return ""
    # Four bytes a character at most: a value of megabytes is not decoded for its first words.
    text = content[: 4 * width + 4].decode("utf-8", "backslashreplace")
    shown = text[: width + 1]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return shown if len(shown) <= width and len(text) <= width else shown[: width - 1] + "…"
