"""Rows as JSON objects: commands print them, and dumps keep them. Bytes that are not UTF-8 become base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

TEXT_NUMBERS = ("cas", "vbuuid", "old_vbuuid")
"""Columns that are strings in JSON: many JSON parsers round numbers above 2**53."""

BASE64 = "_base64"
"""The end of the name of a member whose text is base64."""


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
        if not name.endswith(BASE64):  # an attribute of such a name would be read as base64
            shown[name] = content.decode()
            return
    except UnicodeDecodeError:
        pass
    shown[f"{name}{BASE64}"] = base64.b64encode(content).decode()
