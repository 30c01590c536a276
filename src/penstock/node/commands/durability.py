"""Durable writes: how far a change must have got before it is answered, and whether this node can promise that.

A change is made at once, and others see it at once; only its answer waits. The nodes that a bucket is on have no copies
of each other's vbuckets, so a majority is one of one, and a bucket that is to have copies cannot have any. In a bucket
of type `couchbase` without a disk, a change is persisted as soon as it is stored.
Source: kv_engine docs/Durability.md; durability_monitor.h.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import InvalidArguments, NotSupported, status_error
from penstock.node.session.session import Session
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import Durability

__all__ = ["check_durability", "when_durable"]

_DURABLE: Final = frozenset(
    {
        *(Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.DELETE, Opcode.APPEND, Opcode.PREPEND),
        *(Opcode.INCREMENT, Opcode.DECREMENT),
        *(Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_DELETE, Opcode.SUBDOC_REPLACE),
        *(Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST, Opcode.SUBDOC_ARRAY_INSERT),
        *(Opcode.SUBDOC_ARRAY_ADD_UNIQUE, Opcode.SUBDOC_COUNTER, Opcode.SUBDOC_MULTI_MUTATION),
        Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR,
    }
)
"""The commands that may ask for it."""

_MOST_REPLICAS = 2
"""Of a bucket that can have durable writes."""


def check_durability(session: Session, frame: Frame, wanted: Durability) -> None:
    """Raise StatusError where a request cannot have the durability that it asks for. Nothing has been done by then."""
    if frame.opcode not in _DURABLE:
        raise InvalidArguments(f"opcode 0x{frame.opcode:02x} with a durability, which only changes of documents have")
    bucket = session.selected()
    if bucket.spec.plain_cache:
        raise NotSupported("durability in a plain cache")
    replicas = bucket.spec.replicas
    if replicas:
        text = f"a majority of {replicas + 1} copies, of which there is one"
        raise status_error(
            Status.DURABILITY_IMPOSSIBLE if replicas <= _MOST_REPLICAS else Status.DURABILITY_INVALID_LEVEL, text
        )
    if wanted.level > DurabilityLevel.MAJORITY and not bucket.spec.persistent:
        text = f"durability level {wanted.level.name} in a bucket of type {bucket.spec.kind}; expected MAJORITY"
        raise status_error(Status.DURABILITY_INVALID_LEVEL, text)


def when_durable(session: Session, frame: Frame, answer: bytes, wanted: Durability) -> bytes:
    """Return the answer to a change that has been made, if it is as durable as was asked for.

    Raises Parked where that is to be waited for; at the end of the time for that, the outcome is ambiguous.
    """
    bucket = session.selected()
    if wanted.level == DurabilityLevel.MAJORITY or bucket.flusher is None:
        return answer
    vbucket = bucket.store.find(frame.specific)
    seqno = vbucket.changes.high_seqno
    return bucket.flusher.waits.until(
        vbucket,
        lambda: vbucket.history.persisted_seqno >= seqno,
        answer,
        patience=None if wanted.timeout_ms is None else wanted.timeout_ms / 1000,
        too_late=status_error(Status.SYNC_WRITE_AMBIGUOUS, "stored, but not known to be on disk in time"),
    )
