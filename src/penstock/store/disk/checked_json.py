"""Small JSON files with a checksum. They are replaced as a whole: a reader finds the old or the new content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crc32c import crc32c

from penstock.store.disk.bucket_files import Directory

_CHECKSUM = "crc32c"


def make_json_draft_name(name: str) -> str:
    """Return the name of the draft that will replace a file."""
    return f"{name}.new"


def replace_json(directory: Directory, name: str, content: Mapping[str, Any]) -> None:
    """Write a draft of the file, sync it, and rename it to the file's name. The caller syncs the names afterwards.

    Args:
        directory: the directory of the file.
        name: the name of the file.
        content: the JSON object to write; the checksum is added to it.

    Raises:
        OSError: the draft could not be written or renamed. The old file is unchanged.
    """
    text = json.dumps({**content, _CHECKSUM: _checksum(content)}, indent=2).encode() + b"\n"
    directory.write_file(make_json_draft_name(name), (0, memoryview(text)))
    directory.rename(make_json_draft_name(name), name)


def unpack_json(data: bytes) -> dict[str, Any]:
    """Return the content of a file that `replace_json` has written, without the checksum.

    Args:
        data: the bytes of the file.

    Raises:
        ValueError: the bytes are not JSON, or do not match the checksum.
        LookupError: there is no checksum.
        TypeError: the JSON value is an array.
        AttributeError: the JSON value is a string, a number, true, false or null.
    """
    content: dict[str, Any] = json.loads(data)
    checksum = content.pop(_CHECKSUM)
    if checksum != _checksum(content):
        raise ValueError(f"its checksum is {checksum}, expected {_checksum(content)}")
    return content


def _checksum(content: Mapping[str, Any]) -> int:
    """Return a checksum that does not depend on the order of the names or on white space."""
    found: int = crc32c(json.dumps(content, sort_keys=True).encode())
    return found
