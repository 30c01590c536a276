"""The commands about what is on disk."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.errors import InvalidArguments, KeyNotFound, NotMyVbucket, NotSupported, TemporaryFailure
from penstock.node.replies import Handler, reply
from penstock.node.served import ServedBucket
from penstock.store.vbucket import Vbucket
from penstock.wire.constants import Opcode, VbucketState
from penstock.wire.frame import Frame
from penstock.wire.kv import Observed, SeqnoPersistence
from penstock.wire.layout import decode
from penstock.wire.observe import CompactDb

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["HANDLERS"]

_VBUUID_BYTES = 8


def _living(bucket: ServedBucket, number: int) -> Vbucket:
    """Return a vbucket that is not dead, whoever it belongs to. Raises NotMyVbucket."""
    vbucket = bucket.store.existing(number)
    if vbucket.state is VbucketState.DEAD:
        raise NotMyVbucket(vbucket=number)
    return vbucket


def _seqno_persistence(connection: NodeConnection, frame: Frame) -> bytes:
    """Answer as soon as the vbucket is on disk up to a seqno."""
    request = decode(frame)
    assert isinstance(request, SeqnoPersistence)
    bucket = connection.selected()
    vbucket = bucket.store.find(frame.specific)
    if bucket.flusher is None:
        raise TemporaryFailure("nothing is persisted: this bucket lives in memory")
    return bucket.flusher.until(vbucket, lambda: vbucket.persisted_seqno >= request.seqno, reply(frame))


def _observe_seqno(connection: NodeConnection, frame: Frame) -> bytes:
    if len(frame.value) != _VBUUID_BYTES:
        raise InvalidArguments(f"vbuuid of {len(frame.value)} bytes, expected {_VBUUID_BYTES}")
    vbucket = _living(connection.selected(), frame.specific)
    known = int.from_bytes(frame.value, "big")
    now = Observed(vbucket.id, vbucket.vbuuid, vbucket.persisted_seqno, vbucket.high_seqno)
    if known == vbucket.vbuuid:
        return reply(frame, value=now.pack())
    for newer, entry in pairwise(vbucket.failover_log):
        if entry.vbuuid == known:
            return reply(frame, value=now._replace(old_vbuuid=known, last_seqno_of_old=newer.seqno).pack())
    raise KeyNotFound(f"vbucket {vbucket.id} has never been on branch {known}")


def _compact(connection: NodeConnection, frame: Frame) -> bytes:
    """Rewrite all of the bucket's log; vbuckets have no files of their own here."""
    request = decode(frame)
    assert isinstance(request, CompactDb)
    bucket = connection.selected()
    bucket.store.existing(frame.specific)
    if bucket.compactor is None:
        raise NotSupported("there is nothing to compact: this bucket lives in memory")
    if request.purge_before_ts or request.purge_before_seqno or request.drop_deletes:
        raise NotSupported("deletions are dropped at the age that the node was started with, no sooner")
    raise bucket.compactor.everything(reply(frame))


HANDLERS: dict[Opcode, Handler] = {
    Opcode.SEQNO_PERSISTENCE: _seqno_persistence,
    Opcode.OBSERVE_SEQNO: _observe_seqno,
    Opcode.COMPACT_DB: _compact,
}
