"""Collection ids, with which keys begin on the wire if a node has collections."""

from __future__ import annotations

import asyncio

from penstock.client.connect.address import Address
from penstock.client.topology.nodes import Nodes
from penstock.errors import RemoteProtocolError, UnknownCollection, UnknownScope, UsageError
from penstock.wire.codec.layout import decode_frame
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.messages.collections import CollectionIdReply, GetCollectionId
from penstock.wire.values.collection_key import DEFAULT_PREFIX, pack_collection_id

_PAUSE = 0.05
"""Seconds between two requests of an id, while a collection may be created again."""


class CollectionIds:
    """The ids of a bucket's collections. Each id is requested once.

    A collection that is dropped and created again is unknown for a moment. So a name that had an id may be unknown for
    as long as an operation may take, before that is an error.
    """

    def __init__(self, nodes: Nodes, address: Address) -> None:
        self._nodes = nodes
        self._address = address
        self._prefixes: dict[tuple[str, str], bytes] = {}
        self._had_id: set[tuple[str, str]] = set()

    async def find_key_prefix(self, name: tuple[str, str]) -> bytes:
        """Return the encoded id of a collection, with which its keys begin; empty without collections.

        Args:
            name: scope and collection.

        Raises:
            UsageError: the nodes have no collections. UnknownCollection and UnknownScope are raised too.
        """
        await self._nodes.run_with_retry(self._nodes.connect_first)
        is_default = name == (DEFAULT_NAME, DEFAULT_NAME)
        if not self._nodes.has_collections:
            if not is_default:
                raise UsageError(f"collection {'.'.join(name)!r} of a node that has none")
            return b""
        if is_default:
            return DEFAULT_PREFIX
        if name not in self._prefixes:
            self._prefixes[name] = pack_collection_id(await self._find_id(name))
        return self._prefixes[name]

    def forget(self, name: tuple[str, str]) -> bytes:
        """Forget an id that has changed, and return its encoded form; empty if it was not known."""
        return self._prefixes.pop(name, b"")

    def forget_all(self) -> None:
        """Forget all ids."""
        self._prefixes.clear()

    async def _find_id(self, name: tuple[str, str]) -> int:
        loop, path = asyncio.get_running_loop(), ".".join(name)
        until = loop.time() + self._address.options.operation_timeout * (name in self._had_id)
        while True:
            try:
                found = await self._nodes.run_with_retry(lambda: self._request_id(path))
            except (UnknownCollection, UnknownScope):
                if loop.time() >= until:
                    self._had_id.discard(name)
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                self._had_id.add(name)
                return found

    async def _request_id(self, path: str) -> int:
        link = await self._nodes.connect_first()
        try:
            request = GetCollectionId(value=path.encode())
            found = decode_frame(await link.request(request, self._address.options.operation_timeout))
        except (UnknownCollection, UnknownScope) as error:
            raise type(error)(f"no collection {path!r} in {self._address}", body=error.body) from None
        if not isinstance(found, CollectionIdReply) or found.collection_id is None:
            raise RemoteProtocolError(f"collection {path!r}: a reply without its id")
        return found.collection_id
