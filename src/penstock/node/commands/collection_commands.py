"""The commands about a bucket's scopes and collections."""

from __future__ import annotations

from struct import Struct
from typing import Final

from penstock.errors import InvalidArguments
from penstock.node.answers import Parked
from penstock.node.session.replies import reply
from penstock.node.session.session import Handler, Session
from penstock.store.definition.manifest import DEFAULT_NAME, Manifest
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.collections import GetCollectionId, GetScopeId

__all__ = ["HANDLERS"]

_ID = Struct(">QI")
_LONGEST_PATH: Final = 2 * 251 + 1


def _manifest(session: Session, frame: Frame) -> bytes:
    value = session.visible_manifest(session.selected()).to_json()
    return reply(frame, value=value, datatype=session.datatypes & Datatype.JSON)


def _set_manifest(session: Session, frame: Frame) -> bytes:
    """Use another manifest at once; answer when all vbuckets have written its events."""
    bucket = session.selected()
    bucket.change_manifest(Manifest.from_json(frame.value))
    raise Parked(lambda resume: bucket.upkeep.when_spread(lambda _: resume(reply(frame))))


def _collection_id(session: Session, frame: Frame) -> bytes:
    request = decode(frame)
    assert isinstance(request, GetCollectionId)
    manifest = session.visible_manifest(session.selected())
    scope, collection = _names(request.path, 2)
    return reply(frame, extras=_ID.pack(manifest.uid, manifest.find(scope, collection).id))


def _scope_id(session: Session, frame: Frame) -> bytes:
    request = decode(frame)
    assert isinstance(request, GetScopeId)
    manifest = session.visible_manifest(session.selected())
    (scope,) = _names(request.path.partition(b".")[0], 1)
    return reply(frame, extras=_ID.pack(manifest.uid, manifest.find_scope(scope).id))


def _names(path: bytes, count: int) -> list[str]:
    """Return the names that a path is made of. Raises InvalidArguments for another number of them."""
    if len(path) > _LONGEST_PATH:
        raise InvalidArguments(f"name of {len(path)} bytes, limit {_LONGEST_PATH}")
    names = path.decode("utf-8", "replace").split(".")
    if len(names) != count:
        raise InvalidArguments(f"name {path[:40]!r}: expected {'scope.collection' if count > 1 else 'a scope'}")
    return [name or DEFAULT_NAME for name in names]


HANDLERS: dict[Opcode, Handler] = {
    Opcode.COLLECTIONS_GET_MANIFEST: _manifest,
    Opcode.COLLECTIONS_SET_MANIFEST: _set_manifest,
    Opcode.COLLECTIONS_GET_ID: _collection_id,
    Opcode.COLLECTIONS_GET_SCOPE_ID: _scope_id,
}
