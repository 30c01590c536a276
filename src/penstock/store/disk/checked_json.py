"""Small JSON files with a checksum, which are replaced as a whole: a reader finds the old content or the new one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from crc32c import crc32c

from penstock.store.disk.bucket_files import Directory

__all__ = ["make_json_draft_name", "replace_json", "unpack_json"]

_CHECKSUM = "crc32c"


def make_json_draft_name(name: str) -> str:
    """Return the name of the draft that takes the place of a file."""
    return f"{name}.new"


def replace_json(directory: Directory, name: str, content: Mapping[str, Any]) -> None:
    """Write the draft, synced, and let it take the place of the file. Sync the names afterwards."""
    text = json.dumps({**content, _CHECKSUM: _checksum(content)}, indent=2).encode() + b"\n"
    directory.write_file(make_json_draft_name(name), (0, memoryview(text)))
    directory.rename(make_json_draft_name(name), name)


def unpack_json(data: bytes) -> dict[str, Any]:
    """Return the content of a file. Raises ValueError, LookupError or TypeError for anything else."""
    content: dict[str, Any] = json.loads(data)
    checksum = content.pop(_CHECKSUM)
    if checksum != _checksum(content):
        raise ValueError(f"its checksum is {checksum}, expected {_checksum(content)}")
    return content


def _checksum(content: Mapping[str, Any]) -> int:
    """Return a checksum that does not depend on the order of the names or on white space."""
    found: int = crc32c(json.dumps(content, sort_keys=True).encode())
    return found
