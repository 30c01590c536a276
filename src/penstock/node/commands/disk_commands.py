"""The commands about what is on disk."""

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
from penstock.node.session.command_table import MANAGE_BUCKETS, META_READ, READ, CommandTable
from penstock.node.session.replies import reply
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

__all__ = ["COMMANDS"]

COMMANDS = CommandTable()

COMMANDS.serve(needs=MANAGE_BUCKETS)(set_parameter)

MAX_OBSERVED: Final = 10_000
"""Keys of one OBSERVE: a few milliseconds' worth."""

_VBUUID_BYTES = 8
_MILLISECONDS = 1000
_LATEST_SECOND = 2**63 - 1


def _living(bucket: ServedBucket, number: int) -> Vbucket:
    """Return a vbucket that is not dead, whoever it belongs to. Raises NotMyVbucket."""
    vbucket = bucket.store.existing(number)
    if vbucket.history.state is VbucketState.DEAD:
        raise NotMyVbucket(vbucket=number)
    return vbucket


@COMMANDS.serve(needs=META_READ)
def wait_for_seqno(session: Session, request: SeqnoPersistence) -> bytes:
    """Answer as soon as the vbucket is persisted up to a seqno. In memory that is what is stored, whatever the type."""
    bucket = session.selected()
    vbucket = bucket.store.find(request.vbucket)
    if bucket.flusher is not None:
        return bucket.flusher.waits.until(
            vbucket, lambda: vbucket.history.persisted_seqno >= request.seqno, reply(request)
        )
    if request.seqno > vbucket.history.persisted_seqno:
        raise TemporaryFailure(f"vbucket {vbucket.id} has seqno {vbucket.changes.high_seqno}, not {request.seqno} yet")
    return reply(request)


@COMMANDS.serve(needs=META_READ)
def observe_seqno(session: Session, request: ObserveSeqno) -> bytes:
    if len(request.value) != _VBUUID_BYTES:
        raise InvalidArguments(f"vbuuid of {len(request.value)} bytes, expected {_VBUUID_BYTES}")
    bucket = session.selected()
    vbucket = _living(bucket, request.vbucket)
    known = int.from_bytes(request.value, "big")
    now = Observed(
        vbucket.id, vbucket.history.vbuuid, bucket.reported_persisted_seqno(vbucket), vbucket.changes.high_seqno
    )
    if known == vbucket.history.vbuuid:
        return reply(request, value=now.pack())
    for newer, entry in pairwise(vbucket.history.failover_log):
        if entry.vbuuid == known:
            return reply(request, value=now._replace(old_vbuuid=known, last_seqno_of_old=newer.seqno).pack())
    raise KeyNotFound(f"vbucket {vbucket.id} has never been on branch {known}")


@COMMANDS.serve(needs=READ)
def observe(session: Session, request: Observe) -> bytes:
    """Say of each key whether it is there, and whether that is so on disk.

    A deletion that is on disk is NOT_FOUND, so that who has deleted can wait for that. Source: Couchbase's clients.
    """
    bucket = session.selected()
    asked = unpack_keys(request.value)
    if len(asked) > MAX_OBSERVED:
        raise TooBig(f"{len(asked)} keys, limit {MAX_OBSERVED}")
    vbuckets = {number: _living(bucket, number) for number in {number for number, _ in asked}}
    persisted = {number: bucket.reported_persisted_seqno(vbucket) for number, vbucket in vbuckets.items()}
    found = []
    for number, key in asked:
        if not 0 < len(key) <= MAX_KEY:
            raise InvalidArguments(f"key of {len(key)} bytes, expected 1 to {MAX_KEY}")
        found.append((number, key, *_state_of(vbuckets[number], session.read_key(key), persisted[number])))
    seconds = bucket.flusher.seconds_behind if bucket.flusher is not None else 0.0
    return reply(request, value=pack_observed_keys(found), cas=int(seconds * _MILLISECONDS) << 32)


def _state_of(vbucket: Vbucket, key: bytes, persisted_seqno: int) -> tuple[KeyState, int]:
    """Return how far a key has got, and its cas."""
    item = vbucket.get(key)
    if item is not None:
        return KeyState.PERSISTED if item.seqno <= persisted_seqno else KeyState.NOT_PERSISTED, item.cas
    meta, seqno = vbucket.versions.meta(key), vbucket.versions.newest_seqno(key)
    if meta is None or seqno is None or not meta.deleted or seqno <= persisted_seqno:
        return KeyState.NOT_FOUND, 0
    return KeyState.LOGICALLY_DELETED, meta.cas


@COMMANDS.serve(needs=MANAGE_BUCKETS)
def compact(session: Session, request: CompactDb) -> bytes:
    """Rewrite all of the bucket's log; vbuckets have no files of their own here.

    Tombstones of the request's vbucket are dropped as it says, those of all vbuckets at the purge age. The newest
    change of each vbucket and collection stays. Source: kv_engine couch-kvstore.cc, time_purge_hook.
    """
    bucket = session.selected()
    vbucket = bucket.store.existing(request.vbucket)
    if bucket.compactor is None or not bucket.store.log.durable:
        raise NotSupported("there is nothing to compact: this bucket lives in memory")
    purge = PurgeRequest(
        vbucket.id,
        before=min(request.purge_before_ts, _LATEST_SECOND),
        up_to_seqno=request.purge_before_seqno,
        everything=bool(request.drop_deletes),
    )
    raise bucket.compactor.everything(reply(request), purge)


def _flusher(session: Session) -> Flusher:
    """Return the flusher of the selected bucket.

    Raises InvalidArguments for a bucket in memory: kv_engine answers EINVAL for ephemeral buckets.
    """
    bucket = session.selected()
    if bucket.flusher is None:
        raise InvalidArguments(f"bucket {bucket.store.name} is in memory: it has no flusher")
    return bucket.flusher


@COMMANDS.serve(needs=MANAGE_BUCKETS)
def stop_persistence(session: Session, request: StopPersistence) -> bytes:
    return _flusher(session).pause(reply(request))


@COMMANDS.serve(needs=MANAGE_BUCKETS)
def start_persistence(session: Session, request: StartPersistence) -> bytes:
    _flusher(session).resume()
    return reply(request)


@COMMANDS.serve(needs=MANAGE_BUCKETS)
def evict_key(session: Session, request: EvictKey) -> bytes:
    """Say whether the value of a document is on disk. The node keeps no cache of values, so it removes nothing.

    Source: kv_engine ep_vb.cc, EPVBucket::evictKey; ephemeral buckets answer NOT_SUPPORTED.
    """
    bucket = session.selected()
    vbucket, key = bucket.store.find(request.vbucket), session.read_key(request.key)
    if not bucket.store.log.durable:
        raise NotSupported(f"bucket {bucket.store.name} is in memory: values have no other place")
    item = vbucket.get(key)
    if item is None:
        raise KeyNotFound("Not found.", vbucket=vbucket.id)
    if item.seqno > vbucket.history.persisted_seqno:
        raise KeyExists("Can't eject: Dirty object.", vbucket=vbucket.id)
    return reply(request, value=b"Already ejected.")
