"""Keys with their collection: the collection's id as unsigned LEB128, then the document's own key.

A bucket keeps every key in this form, and a connection that has agreed on collections sends it so. On a connection
without collections every document is in the default collection, and keys have no prefix.

Source: kv_engine docs/Collections.md; BinaryProtocol.md, "Key encoding". Only the shortest form of an id is valid.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import LocalProtocolError, RemoteProtocolError

DEFAULT_COLLECTION: Final = 0
SYSTEM_COLLECTION: Final = 1
"""The collection in which a bucket keeps events of collections. It is never on the wire."""
PREPARED_COLLECTION: Final = 2
"""The collection in which a bucket keeps prepares, which are synchronous writes. It is never on the wire."""

DEFAULT_PREFIX: Final = b"\0"

_MOST_BYTES = 5
_LARGEST = 2**32 - 1


def pack_collection_id(collection_id: int) -> bytes:
    """Return the prefix of a collection's keys: 1 to 5 bytes.

    Raises:
        LocalProtocolError: the id is not a u32.
    """
    if not 0 <= collection_id <= _LARGEST:
        raise LocalProtocolError(f"collection id {collection_id}, expected 0 to {_LARGEST}")
    prefix = bytearray()
    while collection_id > 0x7F:
        prefix.append(0x80 | collection_id & 0x7F)
        collection_id >>= 7
    prefix.append(collection_id)
    return bytes(prefix)


def split_collection_key(key: bytes) -> tuple[int, bytes]:
    """Return a collection's id and the key after it, which may be empty.

    Raises:
        RemoteProtocolError: the prefix does not end, is not a u32, or is not the shortest form (EINVAL, not fatal).
    """
    collection_id = 0
    for place, byte in enumerate(key[:_MOST_BYTES]):
        collection_id |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            # A last byte of 0 adds nothing: the id has a shorter form.
            if collection_id > _LARGEST or (place and not byte):
                break
            return collection_id, key[place + 1 :]
    raise RemoteProtocolError(
        f"key {key[:_MOST_BYTES].hex() or 'of no bytes'} does not begin with a collection id", fatal=False
    )
