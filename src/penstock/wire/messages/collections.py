"""The commands about a bucket's collections and the scopes that they are in.

Source: kv_engine docs/Collections.md. What the manifest is made of: see `manifest`; keys with their
collection: penstock.wire.values.collection_key; what streams say of them: penstock.wire.messages.system_event.
"""

from __future__ import annotations

from penstock.wire.codec.layout import MAYBE, PRESENT, Request, Response, message, u32, u64
from penstock.wire.codec.opcodes import Opcode

__all__ = [
    "CollectionIdReply",
    "GetCollectionId",
    "GetManifest",
    "GetScopeId",
    "ManifestReply",
    "ScopeIdReply",
    "SetManifest",
]


@message(Opcode.COLLECTIONS_SET_MANIFEST, value=PRESENT)
class SetManifest(Request):
    """Give the bucket these scopes and collections and no others. value: the manifest, as JSON."""


@message(Opcode.COLLECTIONS_GET_MANIFEST)
class GetManifest(Request):
    """Answered with the manifest, as JSON."""


@message(Opcode.COLLECTIONS_SET_MANIFEST, Opcode.COLLECTIONS_GET_MANIFEST, key=MAYBE, value=MAYBE, cas=MAYBE)
class ManifestReply(Response):
    """value: the manifest, or what the server has to say of a status other than SUCCESS."""


@message(Opcode.COLLECTIONS_GET_ID, key=MAYBE, value=MAYBE)
class GetCollectionId(Request):
    """Ask for a collection's id by name. value: `scope.collection`, each empty for `_default`; some clients send it as
    the key."""

    @property
    def path(self) -> bytes:
        """The name, wherever it stands."""
        return self.value or self.key


@message(Opcode.COLLECTIONS_GET_SCOPE_ID, key=MAYBE, value=MAYBE)
class GetScopeId(Request):
    """Ask for a scope's id by name. value: `scope`, or `scope.collection` whose second part does not count; some
    clients send it as the key."""

    @property
    def path(self) -> bytes:
        """The name, wherever it stands."""
        return self.value or self.key


@message(Opcode.COLLECTIONS_GET_ID, key=MAYBE, value=MAYBE, cas=MAYBE)
class CollectionIdReply(Response):
    """The id, with status SUCCESS. value: with UNKNOWN_COLLECTION or UNKNOWN_SCOPE the manifest's uid, as JSON."""

    manifest_uid: int | None = u64("of the manifest that says so", default=None)
    collection_id: int | None = u32("what the collection's keys begin with", default=None)

    def fault(self) -> str | None:
        missing = self.collection_id is None and not self.status
        return "extras of 0 bytes, expected 12 with status SUCCESS" if missing else None


@message(Opcode.COLLECTIONS_GET_SCOPE_ID, key=MAYBE, value=MAYBE, cas=MAYBE)
class ScopeIdReply(Response):
    """The id, with status SUCCESS. value: as of CollectionIdReply."""

    manifest_uid: int | None = u64("of the manifest that says so", default=None)
    scope_id: int | None = u32("the scope", default=None)

    def fault(self) -> str | None:
        missing = self.scope_id is None and not self.status
        return "extras of 0 bytes, expected 12 with status SUCCESS" if missing else None
