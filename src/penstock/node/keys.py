"""A connection's keys and the bucket's: what stands in a request's frame, and what the store knows the document by.

A connection that has agreed on collections sends each key with its collection's id in front, which is how the store has
it. To one that has not, all there is is the default collection, and its keys are bare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import InvalidArguments
from penstock.node.login import Privilege
from penstock.wire.collection_key import DEFAULT_PREFIX
from penstock.wire.constants import MAX_KEY

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["KeyReader", "key_reader"]

KeyReader = Callable[[bytes], bytes]
"""Returns what the store knows a request's document by. Raises StatusError for a key that cannot be."""


def key_reader(connection: NodeConnection, *privileges: Privilege) -> KeyReader:
    """Return how a connection's keys are to be read. privileges: those that a document needs, all of them."""
    return _bare


def _bare(key: bytes) -> bytes:
    """Take a key of the default collection."""
    if len(key) > MAX_KEY:
        raise InvalidArguments(f"key of {len(key)} bytes, limit {MAX_KEY}")
    return DEFAULT_PREFIX + key
