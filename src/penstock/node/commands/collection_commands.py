"""Commands about the scopes and collections of a bucket."""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.errors import InvalidArguments
from penstock.node.answers import Parked
from penstock.node.session.command_table import LOGIN, MANAGE_COLLECTIONS, CommandTable
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.store.definition.manifest import DEFAULT_NAME
from penstock.store.definition.manifest_json import pack_manifest, unpack_manifest
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.layout import Request
from penstock.wire.messages.collections import GetCollectionId, GetManifest, GetScopeId, SetManifest

COMMANDS = CommandTable()

_ID = Struct(">QI")
_LONGEST_PATH: Final = 2 * 251 + 1  # two names and a dot


@COMMANDS.serve(needs=LOGIN)
def get_manifest(session: Session, request: GetManifest) -> bytes:
    """Return the manifest as the user sees it, as JSON."""
    _require_no_vbucket(request)
    value = pack_manifest(session.get_visible_manifest(session.require_bucket()))
    return encode_reply(request, value=value, datatype=session.datatypes & Datatype.JSON)


@COMMANDS.serve(needs=MANAGE_COLLECTIONS)
def set_manifest(session: Session, request: SetManifest) -> bytes:
    """Replace the manifest; answer when all vbuckets have written its events."""
    _require_no_vbucket(request)
    bucket = session.require_bucket()
    bucket.change_manifest(unpack_manifest(request.value))
    raise Parked(lambda resume: bucket.maintenance.call_after_rollout(lambda _: resume(encode_reply(request))))


@COMMANDS.serve(needs=LOGIN)
def get_collection_id(session: Session, request: GetCollectionId) -> bytes:
    """Return the id of a collection, and the manifest's uid."""
    _require_no_vbucket(request)
    manifest = session.get_visible_manifest(session.require_bucket())
    scope, collection = _split_path(request.path, 2)
    return encode_reply(request, extras=_ID.pack(manifest.uid, manifest.find(scope, collection).id))


@COMMANDS.serve(needs=LOGIN)
def get_scope_id(session: Session, request: GetScopeId) -> bytes:
    """Return the id of a scope, and the manifest's uid."""
    _require_no_vbucket(request)
    manifest = session.get_visible_manifest(session.require_bucket())
    (scope,) = _split_path(request.path.partition(b".")[0], 1)
    return encode_reply(request, extras=_ID.pack(manifest.uid, manifest.find_scope(scope).id))


def _require_no_vbucket(request: Request) -> None:
    """Raise InvalidArguments for a request with a vbucket: collections belong to the whole bucket."""
    if request.vbucket:
        raise InvalidArguments(f"vbucket {request.vbucket}, expected 0")


def _split_path(path: bytes, count: int) -> list[str]:
    """Return the names in a path. Raises InvalidArguments for another number of names."""
    if len(path) > _LONGEST_PATH:
        raise InvalidArguments(f"name of {len(path)} bytes, limit {_LONGEST_PATH}")
    names = path.decode("utf-8", "replace").split(".")
    if len(names) != count:
        raise InvalidArguments(f"name {path[:40]!r}: expected {'scope.collection' if count > 1 else 'a scope'}")
    return [name or DEFAULT_NAME for name in names]
