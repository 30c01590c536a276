"""What keys begin with on the wire: the id of their collection, where a node has collections."""

from __future__ import annotations

from penstock.client.connect.address import Address
from penstock.client.topology.nodes import Nodes
from penstock.errors import RemoteProtocolError, UnknownCollection, UnknownScope, UsageError
from penstock.wire.codec.layout import decode
from penstock.wire.columns.collection_names import DEFAULT_NAME
from penstock.wire.messages.collections import CollectionIdReply, GetCollectionId
from penstock.wire.values.collection_key import DEFAULT_PREFIX, pack_collection_id

__all__ = ["CollectionIds"]


class CollectionIds:
    """The ids of a bucket's collections, each asked for once."""

    def __init__(self, nodes: Nodes, address: Address) -> None:
        self._nodes = nodes
        self._address = address
        self._prefixes: dict[tuple[str, str], bytes] = {}

    async def prefix(self, name: tuple[str, str]) -> bytes:
        """Return what the keys of a collection begin with on the connections that there are. name: with the scope's.

        Raises UnknownCollection or UnknownScope, UsageError for a collection of nodes that have none.
        """
        await self._nodes.retrying(self._nodes.ready)
        is_default = name == (DEFAULT_NAME, DEFAULT_NAME)
        if not self._nodes.collections:
            if not is_default:
                raise UsageError(f"collection {'.'.join(name)!r} of a node that has none")
            return b""
        if is_default:
            return DEFAULT_PREFIX
        if name not in self._prefixes:
            path = ".".join(name)
            self._prefixes[name] = pack_collection_id(await self._nodes.retrying(lambda: self._request_id(path)))
        return self._prefixes[name]

    def forget(self, name: tuple[str, str]) -> bytes:
        """Ask for an id again: it is not what it was. Return what is forgotten, nothing for an id that is not known."""
        return self._prefixes.pop(name, b"")

    def forget_all(self) -> None:
        self._prefixes.clear()

    async def _request_id(self, path: str) -> int:
        link = await self._nodes.ready()
        try:
            request = GetCollectionId(value=path.encode())
            found = decode(await link.request(request, self._address.options.operation_timeout))
        except (UnknownCollection, UnknownScope) as error:
            raise type(error)(f"no collection {path!r} in {self._address}", body=error.body) from None
        if not isinstance(found, CollectionIdReply) or found.collection_id is None:
            raise RemoteProtocolError(f"collection {path!r}: a reply without its id")
        return found.collection_id
