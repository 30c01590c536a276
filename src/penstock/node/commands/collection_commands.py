"""The commands about a bucket's scopes and collections."""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.errors import InvalidArguments
from penstock.node.answers import Parked
from penstock.node.session.command_table import LOGIN, MANAGE_COLLECTIONS, CommandTable
from penstock.node.session.replies import reply
from penstock.node.session.session import Session
from penstock.store.definition.manifest import DEFAULT_NAME
from penstock.store.definition.manifest_json import pack_manifest, unpack_manifest
from penstock.wire.codec.flags import Datatype
from penstock.wire.messages.collections import GetCollectionId, GetManifest, GetScopeId, SetManifest

__all__ = ["COMMANDS"]

COMMANDS = CommandTable()

_ID = Struct(">QI")
_LONGEST_PATH: Final = 2 * 251 + 1


@COMMANDS.serve(needs=LOGIN)
def get_manifest(session: Session, request: GetManifest) -> bytes:
    value = pack_manifest(session.visible_manifest(session.selected()))
    return reply(request, value=value, datatype=session.datatypes & Datatype.JSON)


@COMMANDS.serve(needs=MANAGE_COLLECTIONS)
def set_manifest(session: Session, request: SetManifest) -> bytes:
    """Use another manifest at once; answer when all vbuckets have written its events."""
    bucket = session.selected()
    bucket.change_manifest(unpack_manifest(request.value))
    raise Parked(lambda resume: bucket.upkeep.when_spread(lambda _: resume(reply(request))))


@COMMANDS.serve(needs=LOGIN)
def get_collection_id(session: Session, request: GetCollectionId) -> bytes:
    manifest = session.visible_manifest(session.selected())
    scope, collection = _names(request.path, 2)
    return reply(request, extras=_ID.pack(manifest.uid, manifest.find(scope, collection).id))


@COMMANDS.serve(needs=LOGIN)
def get_scope_id(session: Session, request: GetScopeId) -> bytes:
    manifest = session.visible_manifest(session.selected())
    (scope,) = _names(request.path.partition(b".")[0], 1)
    return reply(request, extras=_ID.pack(manifest.uid, manifest.find_scope(scope).id))


def _names(path: bytes, count: int) -> list[str]:
    """Return the names that a path is made of. Raises InvalidArguments for another number of them."""
    if len(path) > _LONGEST_PATH:
        raise InvalidArguments(f"name of {len(path)} bytes, limit {_LONGEST_PATH}")
    names = path.decode("utf-8", "replace").split(".")
    if len(names) != count:
        raise InvalidArguments(f"name {path[:40]!r}: expected {'scope.collection' if count > 1 else 'a scope'}")
    return [name or DEFAULT_NAME for name in names]
