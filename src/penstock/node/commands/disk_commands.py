"""Commands about persistence and compaction."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from penstock.errors import (
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    NotMyVbucket,
    NotSupported,
    TemporaryFailure,
    TooBig,
)
from penstock.node.buckets.flusher import Flusher
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.commands.bucket_parameters import set_parameter
from penstock.node.session.command_table import MANAGE_BUCKETS, READ, SETTINGS, CommandTable
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Session
from penstock.store.documents.vbucket import Vbucket
from penstock.store.log.rewrite import PurgeRequest
from penstock.wire.codec.constants import MAX_KEY, KeyState, VbucketState
from penstock.wire.messages.kv import Observed, ObserveSeqno, SeqnoPersistence
from penstock.wire.messages.observe import (
    CompactDb,
    EvictKey,
    Observe,
    StartPersistence,
    StopPersistence,
    pack_observed_keys,
    unpack_keys,
)

COMMANDS = CommandTable()

COMMANDS.serve(needs=MANAGE_BUCKETS)(set_parameter)

MAX_OBSERVED: Final = 10_000
"""Keys of one OBSERVE. They take a few milliseconds, in which no other request is served."""

_VBUUID_BYTES = 8
_MILLISECONDS = 1000
_LATEST_SECOND = 2**63 - 1


def _find_living_vbucket(bucket: ServedBucket, number: int) -> Vbucket:
    """Return a vbucket in any state but dead. Raises NotMyVbucket."""
    vbucket = bucket.store.find_existing(number)
    if vbucket.history.state is VbucketState.DEAD:
        raise NotMyVbucket(vbucket=number)
    return vbucket


@COMMANDS.serve(needs=SETTINGS)
def wait_for_seqno(session: Session, request: SeqnoPersistence) -> bytes:
    """Answer once the vbucket is persisted up to a seqno. In memory, all stored changes count as persisted."""
    bucket = session.require_bucket()
    vbucket = bucket.store.find(request.vbucket)
    if bucket.flusher is not None:
        return bucket.flusher.waits.reply_when(
            vbucket, lambda: vbucket.history.persisted_seqno >= request.seqno, encode_reply(request)
        )
    if request.seqno > vbucket.history.persisted_seqno:
        raise TemporaryFailure(f"vbucket {vbucket.id} has seqno {vbucket.changes.high_seqno}, not {request.seqno} yet")
    return encode_reply(request)


@COMMANDS.serve(needs=READ)
def observe_seqno(session: Session, request: ObserveSeqno) -> bytes:
    """Return the seqnos of a vbucket, and the end of the client's branch if a newer branch has replaced it."""
    if len(request.value) != _VBUUID_BYTES:
        raise InvalidArguments(f"vbuuid of {len(request.value)} bytes, expected {_VBUUID_BYTES}")
    bucket = session.require_bucket()
    vbucket = bucket.store.find_existing(request.vbucket)
    if vbucket.history.state is VbucketState.DEAD:
        # It moves, and the new map is under way. kv_engine answers NOT_MY_VBUCKET: java-dcp-client 0.58 then closes the
        # connection, keeps its streams in mind, and discards their changes that it gets from the next owner.
        raise TemporaryFailure(f"vbucket {vbucket.id} is dead, expected a new cluster map")
    known = int.from_bytes(request.value, "big")
    now = Observed(
        vbucket.id, vbucket.history.vbuuid, bucket.get_reported_persisted_seqno(vbucket), vbucket.changes.high_seqno
    )
    if known == vbucket.history.vbuuid:
        return encode_reply(request, value=now.pack())
    for newer, entry in pairwise(vbucket.history.failover_log):
        if entry.vbuuid == known:
            return encode_reply(request, value=now._replace(old_vbuuid=known, last_seqno_of_old=newer.seqno).pack())
    raise KeyNotFound(f"vbucket {vbucket.id} has no branch {known} in its failover log")


@COMMANDS.serve(needs=READ)
def observe_keys(session: Session, request: Observe) -> bytes:
    """Return for each key whether it exists, and whether that is persisted.

    A persisted deletion is NOT_FOUND, so that a client can wait for its deletion. Source: Couchbase's clients.

    Returns:
        The reply. Its cas contains the time until a present change is persisted, in milliseconds.
    """
    bucket = session.require_bucket()
    keys = unpack_keys(request.value)
    if len(keys) > MAX_OBSERVED:
        raise TooBig(f"{len(keys)} keys, limit {MAX_OBSERVED}")
    vbuckets = {number: _find_living_vbucket(bucket, number) for number in {number for number, _ in keys}}
    persisted = {number: bucket.get_reported_persisted_seqno(vbucket) for number, vbucket in vbuckets.items()}
    found = []
    for number, key in keys:
        if not 0 < len(key) <= MAX_KEY:
            raise InvalidArguments(f"key of {len(key)} bytes, expected 1 to {MAX_KEY}")
        found.append((number, key, *_read_key_state(vbuckets[number], session.read_key(key), persisted[number])))
    seconds = bucket.flusher.seconds_behind if bucket.flusher is not None else 0.0
    return encode_reply(request, value=pack_observed_keys(found), cas=int(seconds * _MILLISECONDS) << 32)


def _read_key_state(vbucket: Vbucket, key: bytes, persisted_seqno: int) -> tuple[KeyState, int]:
    """Return the persistence state of a key, and its cas."""
    item = vbucket.get(key)
    if item is not None:
        return KeyState.PERSISTED if item.seqno <= persisted_seqno else KeyState.NOT_PERSISTED, item.cas
    meta, seqno = vbucket.versions.find_meta(key), vbucket.versions.find_newest_seqno(key)
    if meta is None or seqno is None or not meta.deleted or seqno <= persisted_seqno:
        return KeyState.NOT_FOUND, 0
    return KeyState.LOGICALLY_DELETED, meta.cas


@COMMANDS.serve(needs=MANAGE_BUCKETS)
def compact_bucket(session: Session, request: CompactDb) -> bytes:
    """Rewrite the whole log of the bucket, since vbuckets have no files of their own.

    The request decides which tombstones of its vbucket are dropped. Tombstones of other vbuckets are dropped at the
    purge
    age. The newest change of each vbucket and collection stays. Source: kv_engine couch-kvstore.cc, time_purge_hook.
    """
    bucket = session.require_bucket()
    vbucket = bucket.store.find_existing(request.vbucket)
    if bucket.compactor is None or not bucket.store.log.durable:
        raise NotSupported("this bucket is in memory: there are no files to compact")
    purge = PurgeRequest(
        vbucket.id,
        before=min(request.purge_before_ts, _LATEST_SECOND),
        up_to_seqno=request.purge_before_seqno,
        everything=bool(request.drop_deletes),
    )
    raise bucket.compactor.compact_all(encode_reply(request), purge)


def _get_flusher(session: Session) -> Flusher:
    """Return the flusher of the selected bucket.

    Raises InvalidArguments for a bucket in memory: kv_engine answers EINVAL for ephemeral buckets.
    """
    bucket = session.require_bucket()
    if bucket.flusher is None:
        raise InvalidArguments(f"bucket {bucket.store.name} is in memory: it has no flusher")
    return bucket.flusher


@COMMANDS.serve(needs=MANAGE_BUCKETS)
def stop_persistence(session: Session, request: StopPersistence) -> bytes:
    """Pause the flusher."""
    return _get_flusher(session).pause(encode_reply(request))


@COMMANDS.serve(needs=MANAGE_BUCKETS)
def start_persistence(session: Session, request: StartPersistence) -> bytes:
    """Resume the flusher."""
    _get_flusher(session).resume()
    return encode_reply(request)


@COMMANDS.serve(needs=MANAGE_BUCKETS)
def evict_key(session: Session, request: EvictKey) -> bytes:
    """Return whether the value of a document is persisted. The node has no cache of values, so it evicts nothing.

    Source: kv_engine ep_vb.cc, EPVBucket::evictKey; ephemeral buckets answer NOT_SUPPORTED.
    """
    bucket = session.require_bucket()
    vbucket, key = bucket.store.find(request.vbucket), session.read_key(request.key)
    if not bucket.store.log.durable:
        raise NotSupported(f"bucket {bucket.store.name} is in memory: values cannot be evicted")
    item = vbucket.get(key)
    if item is None:
        raise KeyNotFound("Not found.", vbucket=vbucket.id)
    if item.seqno > vbucket.history.persisted_seqno:
        raise KeyExists("Can't eject: Dirty object.", vbucket=vbucket.id)
    return encode_reply(request, value=b"Already ejected.")
