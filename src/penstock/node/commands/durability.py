"""Durable writes: the write is prepared, and answered once it is committed.

A majority of the vbucket's nodes must have stored the prepare before. The topology of SET_VBUCKET names these nodes.
Without a topology, a bucket without replicas has one node, which is a majority of one. In a bucket of type `couchbase`
in memory, a change is persisted as soon as it is stored. Source: kv_engine docs/Durability.md; durability_monitor.h.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.errors import NotSupported, make_status_error
from penstock.node.answers import Answer
from penstock.node.session.replies import replace_token_seqno
from penstock.node.session.session import Session
from penstock.store.documents.preparing_writer import prepare_changes
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import Durability

_MAX_REPLICAS = 2
"""Replicas of a bucket that can have durable writes, in kv_engine."""


def serve_durable_write(session: Session, number: int, durability: Durability, serve: Callable[[], Answer]) -> Answer:
    """Return the reply to a command that changes a document, once the change is as durable as requested.

    Args:
        session: the session of the client.
        number: the number of the vbucket.
        durability: the durability of the request.
        serve: serves the command.

    Returns:
        The reply.

    Raises:
        Parked: the write is undecided.
        NotMyVbucket: the vbucket is not active.
        StatusError: the bucket does not support the durability, or the write was aborted.
    """
    _check_bucket(session, durability)
    bucket = session.require_bucket()
    vbucket = bucket.store.find(number)
    bucket.sync_writes.check_possible(vbucket)
    with prepare_changes(vbucket, durability.level) as writer:
        answer = serve()
    if writer.key is None:  # nothing was written
        return answer
    assert isinstance(answer, bytes), "a change has a short reply"
    make_reply = partial(replace_token_seqno, answer) if session.sends_tokens else lambda _: answer
    timeout = None if durability.timeout_ms is None else durability.timeout_ms / 1000
    return bucket.sync_writes.begin(vbucket, writer.key, make_reply, timeout)


def _check_bucket(session: Session, durability: Durability) -> None:
    """Raise StatusError if the bucket does not support the durability."""
    bucket = session.require_bucket()
    if bucket.spec.is_plain_cache:
        raise NotSupported("durability in a plain cache")
    if (replicas := bucket.spec.replicas) > _MAX_REPLICAS:
        text = f"durability in a bucket with {replicas} replicas, expected at most {_MAX_REPLICAS}"
        raise make_status_error(Status.DURABILITY_INVALID_LEVEL, text)
    if durability.level > DurabilityLevel.MAJORITY and not bucket.spec.is_persistent:
        text = f"durability level {durability.level.name} in a bucket of type {bucket.spec.kind}; expected MAJORITY"
        raise make_status_error(Status.DURABILITY_INVALID_LEVEL, text)
