"""The uuid of a node, which its data directory keeps."""

from __future__ import annotations

import re

from penstock.errors import StoreDamaged, StoreRefused
from penstock.names import NODE_FILE
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.checked_json import replace_json, unpack_json

_UUID = re.compile(r"[0-9a-f]{32}")


def keep_node_uuid(directory: Directory, uuid: str) -> str:
    """Return the uuid of a data directory. The first start gives it one, which is on disk when this returns.

    Args:
        directory: the data directory. It is created if it does not exist.
        uuid: the uuid for a directory that has none.

    Raises:
        StoreRefused: the directory cannot be read or written.
        StoreDamaged: the file of the uuid is damaged.
    """
    path = directory.path / NODE_FILE
    try:
        content = directory.read(NODE_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return _store(directory, uuid)
    except OSError as error:
        raise StoreRefused(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        found = unpack_json(content)["uuid"]
        if not _UUID.fullmatch(found):
            raise ValueError(f"uuid {found!r}")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise StoreDamaged(
            f"{path}: damaged, expected the uuid of the node. Remove the file: the next start gives the node a new uuid"
        ) from None
    return str(found)


def _store(directory: Directory, uuid: str) -> str:
    try:
        directory.make()
        replace_json(directory, NODE_FILE, {"uuid": uuid})
        directory.sync_names()
    except OSError as error:
        raise StoreRefused(f"{directory.path}: cannot be written to: {error.strerror or error}") from error
    return uuid
