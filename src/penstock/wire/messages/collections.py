"""Commands about a bucket's collections and their scopes.

Source: kv_engine docs/Collections.md. Related modules: penstock.wire.values.collection_key for keys with their
collection, penstock.wire.messages.system_event for the events of collections in streams.
"""

from __future__ import annotations

from penstock.wire.codec.layout import MAYBE, PRESENT, Request, Response, message, u32, u64
from penstock.wire.codec.opcodes import Opcode


@message(Opcode.COLLECTIONS_SET_MANIFEST, value=PRESENT)
class SetManifest(Request):
    """Give the bucket exactly these scopes and collections. The value is the manifest, as JSON."""


@message(Opcode.COLLECTIONS_GET_MANIFEST)
class GetManifest(Request):
    """Answered with the manifest, as JSON."""


@message(Opcode.COLLECTIONS_SET_MANIFEST, Opcode.COLLECTIONS_GET_MANIFEST, key=MAYBE, value=MAYBE, cas=MAYBE)
class ManifestReply(Response):
    """The value is the manifest; with a status other than SUCCESS, an explanation."""


@message(Opcode.COLLECTIONS_GET_ID, key=MAYBE, value=MAYBE)
class GetCollectionId(Request):
    """Ask for a collection's id by name. The value is `scope.collection`, each part empty for `_default`.

    Some clients send the name as the key.
    """

    @property
    def path(self) -> bytes:
        """The name, from the value or the key."""
        return self.value or self.key


@message(Opcode.COLLECTIONS_GET_SCOPE_ID, key=MAYBE, value=MAYBE)
class GetScopeId(Request):
    """Ask for a scope's id by name. The value is `scope`, or `scope.collection`, whose second part is ignored.

    Some clients send the name as the key.
    """

    @property
    def path(self) -> bytes:
        """The name, from the value or the key."""
        return self.value or self.key


@message(Opcode.COLLECTIONS_GET_ID, key=MAYBE, value=MAYBE, cas=MAYBE)
class CollectionIdReply(Response):
    """The id, with status SUCCESS. With UNKNOWN_COLLECTION or UNKNOWN_SCOPE the value is the manifest's uid (JSON)."""

    manifest_uid: int | None = u64("uid of the bucket's manifest", default=None)
    collection_id: int | None = u32("the collection; its keys begin with this id", default=None)

    def fault(self) -> str | None:
        """Return the fault of a SUCCESS without an id, None otherwise."""
        missing = self.collection_id is None and not self.status
        return "extras of 0 bytes, expected 12 with status SUCCESS" if missing else None


@message(Opcode.COLLECTIONS_GET_SCOPE_ID, key=MAYBE, value=MAYBE, cas=MAYBE)
class ScopeIdReply(Response):
    """The id, with status SUCCESS. The value is as of CollectionIdReply."""

    manifest_uid: int | None = u64("uid of the bucket's manifest", default=None)
    scope_id: int | None = u32("the scope", default=None)

    def fault(self) -> str | None:
        """Return the fault of a SUCCESS without an id, None otherwise."""
        missing = self.scope_id is None and not self.status
        return "extras of 0 bytes, expected 12 with status SUCCESS" if missing else None
