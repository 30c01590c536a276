"""Positions in a document of a bucket."""

from __future__ import annotations

from contextlib import suppress

from penstock.argument_types import check_arguments
from penstock.client.documents.document_attributes import make_own_key
from penstock.client.documents.document_commands import DocumentCommands
from penstock.client.positions.owned_attributes import OwnedAttributes
from penstock.client.positions.position_store import PositionStore
from penstock.client.positions.saved_positions import SavedPositions, decode_positions, encode_positions
from penstock.errors import KeyNotFound, PositionsChanged


@check_arguments
class DocumentPositions(PositionStore):
    """Keeps positions in the extended attribute `penstock` of the document `_penstock:positions:NAME`.

    A write replaces only the version that this object has read or written. So of two consumers with the same name, the
    second write raises PositionsChanged. Consumers do not deliver changes of such documents.

    Args:
        bucket: the bucket with the document; it must be connected when the store is used.
        name: the name of the consumer.

    Raises:
        UsageError: no key can have the name.
    """

    def __init__(self, bucket: DocumentCommands, name: str) -> None:
        self.name = name
        self._bucket = bucket
        self._key = make_own_key("positions", name)
        self._attributes = OwnedAttributes(bucket.attributes)

    def __str__(self) -> str:
        return f"document:{self.name}"

    async def read(self) -> SavedPositions | None:
        """Return the positions in the document; None if there is no document."""
        found = (await self._attributes.read([self._key]))[0]
        return None if found is None else decode_positions(found.value, str(self))

    async def write(self, saved: SavedPositions) -> None:
        """Replace the version of the document that this object knows. Raises PositionsChanged for another version."""
        if await self._attributes.replace({self._key: encode_positions(saved)}):
            raise PositionsChanged(f"{self}: another consumer or command has changed the positions")

    async def remove(self) -> None:
        """Remove the document, if it exists."""
        with suppress(KeyNotFound):
            await self._bucket.remove(self._key)
        self._attributes.forget([self._key])
