"""The commands about collections and scopes."""

from penstock.wire.codec.layout import Message
from penstock.wire.messages import collections

ROWS: list[tuple[str, Message, str]] = [
    (
        "set the manifest",
        collections.SetManifest(opaque=2, value=b"{}"),
        "80b90000 00000000 00000002 00000002 0000000000000000 7b7d",
    ),
    (
        "get the manifest",
        collections.GetManifest(opaque=2),
        "80ba0000 00000000 00000000 00000002 0000000000000000",
    ),
    (
        "manifest",
        collections.ManifestReply(opaque=2, value=b"{}"),
        "81ba0000 00000000 00000002 00000002 0000000000000000 7b7d",
    ),
    (
        "a manifest that cannot follow",
        collections.ManifestReply(opaque=2, status=0x8A),
        "81b90000 0000008a 00000000 00000002 0000000000000000",
    ),
    (
        "id of a collection",
        collections.GetCollectionId(opaque=2, value=b"_default.ale"),
        "80bb0000 00000000 0000000c 00000002 0000000000000000 5f64656661756c742e616c65",
    ),
    (
        "id of a collection, as older clients ask",
        collections.GetCollectionId(opaque=2, key=b".ale"),
        "80bb0004 00000000 00000004 00000002 0000000000000000 2e616c65",
    ),
    (
        "id of collection 8",
        collections.CollectionIdReply(opaque=2, manifest_uid=0x1F, collection_id=8),
        "81bb0000 0c000000 0000000c 00000002 0000000000000000 000000000000001f 00000008",
    ),
    (
        "unknown collection",
        collections.CollectionIdReply(opaque=2, status=0x88, value=b'{"manifest_uid":"1f"}'),
        "81bb0000 00000088 00000015 00000002 0000000000000000 7b226d616e69666573745f756964223a223166227d",
    ),
    (
        "id of a scope",
        collections.GetScopeId(opaque=2, value=b"beer"),
        "80bc0000 00000000 00000004 00000002 0000000000000000 62656572",
    ),
    (
        "id of scope 9",
        collections.ScopeIdReply(opaque=2, manifest_uid=2**64 - 1, scope_id=9),
        "81bc0000 0c000000 0000000c 00000002 0000000000000000 ffffffffffffffff 00000009",
    ),
    (
        "unknown scope",
        collections.ScopeIdReply(opaque=2, status=0x8C),
        "81bc0000 0000008c 00000000 00000002 0000000000000000",
    ),
]
