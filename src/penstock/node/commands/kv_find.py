"""Commands that read documents from replicas, at random, or in the order of their keys."""

from __future__ import annotations

from typing import Final

from penstock.errors import InvalidArguments, KeyNotFound, NotMyVbucket, OutOfRange
from penstock.node.answers import Answer
from penstock.node.commands.kv_commands import find_active_vbucket, make_document_reply
from penstock.node.session.command_table import READ, CommandTable
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.store.documents.key_listing import choose_random_key, list_keys
from penstock.wire.codec.constants import VbucketState
from penstock.wire.messages.kv import GetKeys, GetRandomKey, GetReplica, pack_key_list
from penstock.wire.values.collection_key import DEFAULT_COLLECTION, pack_collection_id

COMMANDS = CommandTable()

DEFAULT_COUNT: Final = 1000
"""Keys that GET_KEYS returns unless the request names a number."""
MAX_COUNT: Final = 10_000
"""Keys that GET_KEYS returns at most."""

_PROBE = b"k"
"""Any key: the privilege to read a collection does not depend on the key."""


@COMMANDS.serve(needs=READ)
def get_replica(session: Session, request: GetReplica) -> Answer:
    """Return a document of a replica vbucket."""
    bucket, key = session.require_bucket(), session.read_key(request.key)
    vbucket = bucket.store.find_existing(request.vbucket)
    if vbucket.history.state is not VbucketState.REPLICA:
        raise NotMyVbucket(f"vbucket {vbucket.id} is no replica here", vbucket=vbucket.id)
    session.counters.cmd_get += 1
    item = vbucket.get(key)
    if item is None:
        session.counters.get_misses += 1
        raise KeyNotFound
    return make_document_reply(session, request, item)


@COMMANDS.serve(needs=READ)
def get_random_key(session: Session, request: GetRandomKey) -> Answer:
    """Return a random document of a collection. Vbuckets are tried in turn from a random one."""
    collection = request.collection_id or DEFAULT_COLLECTION
    if collection and not session.collections:
        raise InvalidArguments(f"collection 0x{collection:x} on a connection that has not agreed on collections")
    prefix = pack_collection_id(collection)
    session.read_key(prefix + _PROBE if session.collections else _PROBE)  # raises
    vbuckets = session.require_bucket().store.vbuckets
    randrange = session.node.machine.random.randrange
    first = randrange(len(vbuckets))
    for vbucket in (*vbuckets[first:], *vbuckets[:first]):
        if not vbucket.history.is_served or not vbucket.collections.item_count(collection):
            continue
        key = choose_random_key(vbucket, prefix, randrange)
        item = None if key is None else vbucket.get(key)
        if key is not None and item is not None:
            whole = bool(request.include_xattrs)
            return make_document_reply(session, request, item, session.to_client_key(key), whole=whole)
    raise KeyNotFound(f"no document in collection 0x{collection:x}")


@COMMANDS.serve(needs=READ)
def get_keys(session: Session, request: GetKeys) -> bytes:
    """Return keys in order, from the given key on."""
    count = DEFAULT_COUNT if request.count is None else request.count
    if not 0 < count <= MAX_COUNT:
        raise OutOfRange(f"{count} keys: expected 1 to {MAX_COUNT}")
    start = session.read_key(request.key)
    found = list_keys(find_active_vbucket(session, request.vbucket), start, count)
    if not found:
        raise KeyNotFound("no key at or after the given key")
    return encode_reply(request, value=pack_key_list(session.to_client_key(key) for key in found))
