"""The commands that read documents in other ways than by an active vbucket's key."""

from __future__ import annotations

from random import randrange
from typing import Final

from penstock.errors import InvalidArguments, KeyNotFound, NotMyVbucket, OutOfRange
from penstock.node.answers import Answer
from penstock.node.commands.kv_commands import document_in_pieces, serving
from penstock.node.session.replies import reply
from penstock.node.session.session import Handler, Session
from penstock.node.session.shown_values import shown, with_attributes
from penstock.store.documents.key_listing import keys_from, random_key
from penstock.store.documents.vbucket import Item
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.kv import GetKeys, GetRandomKey, GetReply, pack_key_list
from penstock.wire.values.collection_key import DEFAULT_COLLECTION, pack_collection_id

__all__ = ["HANDLERS"]

_FLAGS = GetReply.layouts[1].extras

DEFAULT_COUNT: Final = 1000
MAX_COUNT: Final = 10_000
"""Keys of one GET_KEYS."""

_PROBE = b"k"
"""A key as good as any: whether a collection may be read does not depend on it."""


def _get_replica(session: Session, frame: Frame) -> Answer:
    bucket, key = session.selected(), session.read_key(frame.key)
    vbucket = bucket.store.existing(frame.specific)
    if vbucket.state is not VbucketState.REPLICA:
        raise NotMyVbucket(f"vbucket {vbucket.id} is no replica here", vbucket=vbucket.id)
    session.counters.cmd_get += 1
    item = vbucket.get(key)
    if item is None:
        session.counters.get_misses += 1
        raise KeyNotFound
    return _document(session, frame, item)


def _random(session: Session, frame: Frame) -> Answer:
    """Some document of a collection, from vbuckets in turn, beginning with any."""
    request = decode(frame)
    assert isinstance(request, GetRandomKey)
    collection = request.collection_id or DEFAULT_COLLECTION
    if collection and not session.collections:
        raise InvalidArguments(f"collection 0x{collection:x} on a connection that has not agreed on any")
    prefix = pack_collection_id(collection)
    session.read_key(prefix + _PROBE if session.collections else _PROBE)  # raises
    vbuckets = session.selected().store.vbuckets
    first = randrange(len(vbuckets))
    for vbucket in (*vbuckets[first:], *vbuckets[:first]):
        if vbucket.state is not VbucketState.ACTIVE or not vbucket.collection_items(collection):
            continue
        key = random_key(vbucket, prefix, randrange)
        item = None if key is None else vbucket.get(key)
        if key is not None and item is not None:
            return _document(session, frame, item, session.shown_key(key), bool(request.include_xattrs))
    raise KeyNotFound(f"no document in collection 0x{collection:x}")


def _document(session: Session, frame: Frame, item: Item, key: bytes = b"", whole: bool = False) -> Answer:
    """Return a document as the reply to a request. whole: with its extended attributes."""
    if type(item.value) is not bytes:
        return document_in_pieces(session, frame, item, key, whole=whole)
    keeps = whole and session.datatypes & Datatype.XATTR
    datatype, value = (with_attributes if keeps else shown)(session.datatypes, item.datatype, item.value)
    return reply(frame, extras=_FLAGS.pack(item.flags), key=key, value=value, cas=item.cas, datatype=datatype)


def _keys(session: Session, frame: Frame) -> bytes:
    request = decode(frame)
    assert isinstance(request, GetKeys)
    count = DEFAULT_COUNT if request.count is None else request.count
    if not 0 < count <= MAX_COUNT:
        raise OutOfRange(f"{count} keys: expected 1 to {MAX_COUNT}")
    start = session.read_key(frame.key)
    found = keys_from(serving(session, frame), start, count)
    if not found:
        raise KeyNotFound("no key from there on")
    return reply(frame, value=pack_key_list(session.shown_key(key) for key in found))


HANDLERS: dict[Opcode, Handler] = {
    Opcode.GET_REPLICA: _get_replica,
    Opcode.GET_RANDOM_KEY: _random,
    Opcode.GET_KEYS: _keys,
}
