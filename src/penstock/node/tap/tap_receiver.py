"""The receiver of TAP messages: stores changes that another node sends.

The sender needs no TAP_CONNECT. A message is answered if it asks for an answer (ACK), or if it fails. Answers have no
body. Source: TAP, "Message order" and "ACK"; memcached.c, process_bin_tap_packet; ep-engine 2.5 tapconnection.cc,
TapConsumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from struct import Struct
from typing import TypeVar

from penstock.errors import InvalidArguments, NotMyVbucket, OutOfRange, RemoteProtocolError, StatusError
from penstock.node.answers import Answer, CloseConnection
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.client_values import detect_document_datatype
from penstock.node.session.command_table import REPLICATE, CommandTable
from penstock.node.session.replies import encode_reply
from penstock.node.session.session import Handler, Session
from penstock.store.documents.incoming_changes import LAST_SEQNO
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.vbucket_history import CopyFeed
from penstock.wire.codec.constants import MAX_KEY, MAX_VALUE, TapOpaque, VbucketState
from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.frame import Frame, name_opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.tap import (
    TapCheckpointEnd,
    TapCheckpointStart,
    TapDelete,
    TapFlush,
    TapMessage,
    TapMutation,
    TapOpaqueMessage,
    TapVbucketSet,
)
from penstock.wire.values.collection_key import DEFAULT_PREFIX

logger = logging.getLogger("penstock.node")

_REVISION = Struct(">Q")
_NRU_AT = _REVISION.size  # ep-engine's "not recently used" value follows the revision
_NUMBER_BYTES = 4  # of an opaque command, and of a vbucket state
_ID_BYTES = 8  # of a checkpoint id


def _reply_errors(handler: Handler) -> Handler:
    """Return a handler that replies to each malformed or refused message with its status."""

    def answer(session: Session, frame: Frame) -> Answer:
        bucket = session.require_bucket()
        try:
            return handler(session, frame)
        except (StatusError, RemoteProtocolError) as error:
            logger.debug("%s", error)
            bucket.tap.refused += 1
            return encode_reply(frame, error.status)

    return answer


MESSAGES = CommandTable(_reply_errors)

M = TypeVar("M", bound=TapMessage)


def _make_receiver(apply: Callable[[ServedBucket, M], Vbucket | None]) -> Callable[[Session, M], bytes]:
    """Return the handler of a message: it applies the message, and replies if the message asks for an answer.

    Args:
        apply: applies the message to the bucket, and returns the vbucket that it is about, None for no vbucket. May
            raise CloseConnection and StatusError.
    """

    @wraps(apply)
    def receive(session: Session, message: M) -> bytes:
        if not message.ttl:
            raise InvalidArguments(f"{name_opcode(message.received_as)} that has no hop left")
        vbucket = apply(session.require_bucket(), message)
        if vbucket is not None and vbucket.history.state is not VbucketState.ACTIVE:
            vbucket.history.feed = CopyFeed(session.node.machine.monotonic_ns)
        return encode_reply(message) if message.tap_flags & TapFlag.ACK else b""

    return receive


def _find_vbucket(bucket: ServedBucket, number: int) -> Vbucket:
    """Return a vbucket that accepts changes. Raises NotMyVbucket for a dead or unknown one."""
    vbucket = bucket.store.find_existing(number)
    if vbucket.history.state is VbucketState.DEAD:
        raise NotMyVbucket(f"vbucket {number} is dead", vbucket=number)
    return vbucket


def _check_key(message: TapMessage) -> None:
    if not 0 < len(message.key) <= MAX_KEY or len(message.value) > MAX_VALUE:
        raise InvalidArguments(
            f"key of {len(message.key)} bytes (limit {MAX_KEY}), value of {len(message.value)} (limit {MAX_VALUE})"
        )


def _read_revision(message: TapMessage) -> int | None:
    """Return the producer's rev_seqno of a change, None without one. Raises OutOfRange."""
    if len(message.engine_private) < _REVISION.size:
        return None
    (revision,) = _REVISION.unpack_from(message.engine_private)
    return _check_countable("rev_seqno", revision)


def _check_countable(name: str, number: int) -> int:
    """Return the number. Raises OutOfRange if the node could not count further."""
    if number > LAST_SEQNO:
        raise OutOfRange(f"{name} {number}, limit {LAST_SEQNO}")
    return number


@MESSAGES.serve(needs=REPLICATE)
@_make_receiver
def store_mutation(bucket: ServedBucket, message: TapMutation) -> Vbucket:
    """Return the vbucket of a mutation, which is stored."""
    vbucket = _find_vbucket(bucket, message.vbucket)
    _check_key(message)
    rev_seqno = _read_revision(message)
    key = DEFAULT_PREFIX + message.key
    old = vbucket.get(key)
    if old is not None and (old.cas, old.rev_seqno) == (message.cas, rev_seqno):
        return vbucket  # it has returned through a circle of nodes
    private = message.engine_private
    stored = vbucket.incoming.apply(
        Event.MUTATION,
        key,
        message.value,
        cas=message.cas or vbucket.changes.clock.last + 1,
        rev_seqno=rev_seqno if rev_seqno is not None else old.rev_seqno + 1 if old else 1,
        flags=_read_item_flags(message),
        expiry=message.expiry,
        nru=private[_NRU_AT] if len(private) > _NRU_AT else 0,
        datatype=detect_document_datatype(message.datatype, message.value),
    )
    _record_change(bucket, vbucket, stored.seqno, message)
    return vbucket


def _read_item_flags(message: TapMutation) -> int:
    """Return the client's flags of a document. Producers without NETWORK_BYTE_ORDER send them reversed."""
    if message.tap_flags & TapFlag.NETWORK_BYTE_ORDER:
        return message.flags
    return int.from_bytes(message.flags.to_bytes(4, "big"), "little")


@MESSAGES.serve(needs=REPLICATE)
@_make_receiver
def store_deletion(bucket: ServedBucket, message: TapDelete) -> Vbucket:
    """Return the vbucket of a deletion, which is stored. A deletion of a missing document is ignored."""
    vbucket = _find_vbucket(bucket, message.vbucket)
    _check_key(message)
    key = DEFAULT_PREFIX + message.key
    old = vbucket.get(key)
    if old is None:
        return vbucket
    rev_seqno = _read_revision(message)
    stored = vbucket.incoming.apply(
        Event.DELETION,
        key,
        message.value,
        cas=message.cas or vbucket.changes.clock.last + 1,
        rev_seqno=rev_seqno if rev_seqno is not None else old.rev_seqno + 1,
        datatype=message.datatype,
    )
    _record_change(bucket, vbucket, stored.seqno, message)
    return vbucket


def _record_change(bucket: ServedBucket, vbucket: Vbucket, seqno: int, message: TapMessage) -> None:
    bucket.tap.record_received(vbucket.id, seqno, message.ttl - 1)
    bucket.changed.add(vbucket.id)


@MESSAGES.serve(needs=REPLICATE)
@_make_receiver
def flush_vbuckets(bucket: ServedBucket, message: TapFlush) -> None:
    """Delete all documents, with the history of each vbucket."""
    for vbucket in bucket.store.vbuckets:
        if vbucket.history.state is not None:
            _reset_vbucket(bucket, vbucket)


def _reset_vbucket(bucket: ServedBucket, vbucket: Vbucket) -> None:
    vbucket.reset()
    bucket.report_event(vbucket, VbucketEvent.FLUSHED)


@MESSAGES.serve(needs=REPLICATE)
@_make_receiver
def handle_opaque(bucket: ServedBucket, message: TapOpaqueMessage) -> Vbucket | None:
    """Return the vbucket of INITIAL_VBUCKET_STREAM, which is emptied. All other opaque commands are ignored.

    Raises:
        NotMyVbucket: the vbucket does not accept changes, or is active and would lose its own changes.
    """
    command = int.from_bytes(message.engine_private, "big")
    if len(message.engine_private) != _NUMBER_BYTES:
        logger.info("TAP_OPAQUE of %d bytes, expected %d", len(message.engine_private), _NUMBER_BYTES)
    elif command == TapOpaque.INITIAL_VBUCKET_STREAM:
        vbucket = _find_vbucket(bucket, message.vbucket)
        high_seqno = vbucket.changes.high_seqno
        if vbucket.history.state is VbucketState.ACTIVE and high_seqno:
            text = f"vbucket {vbucket.id} is active and has {high_seqno} changes, expected a replica"
            raise NotMyVbucket(text, vbucket=vbucket.id)
        _reset_vbucket(bucket, vbucket)
        return vbucket
    return None


@MESSAGES.serve(needs=REPLICATE)
@_make_receiver
def set_vbucket_state(bucket: ServedBucket, message: TapVbucketSet) -> Vbucket:
    """Return a vbucket, whose state is set. Raises CloseConnection for an invalid state."""
    number = int.from_bytes(message.engine_private, "big")
    nbytes = len(message.engine_private)
    if nbytes != _NUMBER_BYTES:
        raise CloseConnection(f"TAP_VBUCKET_SET with a state of {nbytes} bytes, expected {_NUMBER_BYTES}")
    if number not in set(VbucketState):
        raise CloseConnection(f"TAP_VBUCKET_SET with state {number}, expected 1 to {max(VbucketState)}")
    vbuckets, state = bucket.store.vbuckets, VbucketState(number)
    if message.vbucket >= len(vbuckets):
        raise NotMyVbucket(f"vbucket {message.vbucket} of {len(vbuckets)}", vbucket=message.vbucket)
    vbucket = vbuckets[message.vbucket]
    if vbucket.history.state is not state:
        # TAP copies have branches of their own, which a takeover continues.
        vbucket.set_state(state, takeover=vbucket.history.whole_seqno == vbucket.changes.high_seqno)
        bucket.report_event(vbucket, VbucketEvent.STATE_CHANGED)
    return vbucket


@MESSAGES.serve(needs=REPLICATE)
@_make_receiver
def update_checkpoint(bucket: ServedBucket, message: TapCheckpointStart | TapCheckpointEnd) -> Vbucket:
    """Return the vbucket of a checkpoint, which starts or ends in a copy of the producer's vbucket.

    Raises:
        CloseConnection: the id is malformed, or the checkpoint is not open.
    """
    vbucket = bucket.store.find_existing(message.vbucket)
    if vbucket.history.state is VbucketState.ACTIVE:
        return vbucket
    # In the documentation, the id is engine-private data, without flags. No server sends this form.
    text = message.value or (message.engine_private if message.flags is None else b"")
    if len(text) != _ID_BYTES:
        raise CloseConnection(
            f"{name_opcode(message.received_as)} with an id of {len(text)} bytes, expected {_ID_BYTES}"
        )
    checkpoint, checkpoints = (
        _check_countable("checkpoint", int.from_bytes(text, "big")),
        bucket.tap.get_checkpoints(vbucket),
    )
    if isinstance(message, TapCheckpointEnd):
        if checkpoint != checkpoints.open_id:
            raise CloseConnection(f"end of checkpoint {checkpoint} while {checkpoints.open_id} is open")
    elif checkpoint and checkpoint != checkpoints.open_id:
        checkpoints.open_checkpoint(checkpoint)
        bucket.changed.add(vbucket.id)  # wakes streams that announce checkpoints
    return vbucket
