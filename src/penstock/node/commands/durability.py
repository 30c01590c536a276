"""Durable writes: how far a change must have got before it is answered, and whether this node can promise that.

A change takes effect and is visible at once; only its answer waits. Nodes have no copies of each other's vbuckets. So
a majority is one of one, and a bucket with configured replicas cannot have durable writes. In a bucket of type
`couchbase` in memory, a change is persisted as soon as it is stored.
Source: kv_engine docs/Durability.md; durability_monitor.h.
"""

from __future__ import annotations

from penstock.errors import NotSupported, make_status_error
from penstock.node.session.session import Session
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import Durability

__all__ = ["check_durability", "reply_when_durable"]

_MAX_REPLICAS = 2
"""Replicas of a bucket that can have durable writes, in kv_engine."""


def check_durability(session: Session, durability: Durability) -> None:
    """Raise StatusError if the bucket does not support the durability. The change has not been made by then."""
    bucket = session.require_bucket()
    if bucket.spec.is_plain_cache:
        raise NotSupported("durability in a plain cache")
    replicas = bucket.spec.replicas
    if replicas:
        text = f"a majority of {replicas + 1} copies, of which one exists"
        raise make_status_error(
            Status.DURABILITY_IMPOSSIBLE if replicas <= _MAX_REPLICAS else Status.DURABILITY_INVALID_LEVEL, text
        )
    if durability.level > DurabilityLevel.MAJORITY and not bucket.spec.is_persistent:
        text = f"durability level {durability.level.name} in a bucket of type {bucket.spec.kind}; expected MAJORITY"
        raise make_status_error(Status.DURABILITY_INVALID_LEVEL, text)


def reply_when_durable(session: Session, frame: Frame, answer: bytes, durability: Durability) -> bytes:
    """Return the answer to a change if the change is as durable as requested.

    Raises Parked if it is not yet. After the timeout, the outcome is ambiguous.
    """
    bucket = session.require_bucket()
    if durability.level == DurabilityLevel.MAJORITY or bucket.flusher is None:
        return answer
    vbucket = bucket.store.find(frame.specific)
    seqno = vbucket.changes.high_seqno
    return bucket.flusher.waits.reply_when(
        vbucket,
        lambda: vbucket.history.persisted_seqno >= seqno,
        answer,
        timeout=None if durability.timeout_ms is None else durability.timeout_ms / 1000,
        timeout_error=make_status_error(Status.SYNC_WRITE_AMBIGUOUS, "stored, but not persisted within the timeout"),
    )
