"""TAP messages that come to the node: changes made elsewhere, to be kept here.

Whoever sends them needs no TAP_CONNECT. A message is answered if it asks for that (ACK), or if it could not be dealt
with; an answer has no body. Source: TAP, "Message order" and "ACK"; memcached.c, process_bin_tap_packet; ep-engine 2.5
tapconnection.cc, TapConsumer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from struct import Struct
from typing import TypeVar

from penstock.errors import InvalidArguments, NotMyVbucket, OutOfRange, RemoteProtocolError, StatusError
from penstock.node.answers import Answer, Goodbye
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.command_table import REPLICATE, CommandTable
from penstock.node.session.replies import reply
from penstock.node.session.session import Handler, Session
from penstock.node.session.shown_values import document_datatype
from penstock.store.documents.incoming_changes import LAST_SEQNO
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_KEY, MAX_VALUE, TapOpaque, VbucketState
from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.frame import Frame, opcode_name
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

__all__ = ["MESSAGES"]

logger = logging.getLogger("penstock.node")

_REVISION = Struct(">Q")
_NRU_AT = _REVISION.size
_NUMBER_BYTES = 4
_ID_BYTES = 8


def _answering(handler: Handler) -> Handler:
    """Let a handler answer every message that cannot be read, or not be dealt with."""

    def answer(session: Session, frame: Frame) -> Answer:
        bucket = session.selected()
        try:
            return handler(session, frame)
        except (StatusError, RemoteProtocolError) as error:
            logger.debug("%s", error)
            bucket.tap.refused += 1
            return reply(frame, error.status)

    return answer


MESSAGES = CommandTable(_answering)

M = TypeVar("M", bound=TapMessage)


def _received(deal: Callable[[ServedBucket, M], None]) -> Callable[[Session, M], bytes]:
    """Make the handler of a message, which is answered if it asks for that. deal: raises Goodbye, StatusError."""

    @wraps(deal)
    def receive(session: Session, message: M) -> bytes:
        if not message.ttl:
            raise InvalidArguments(f"{opcode_name(message.received_as)} that has no hop left")
        deal(session.selected(), message)
        return reply(message) if message.tap_flags & TapFlag.ACK else b""

    return receive


def _found(bucket: ServedBucket, number: int) -> Vbucket:
    """Return a vbucket that takes changes: any but a dead one. Raises NotMyVbucket."""
    vbucket = bucket.store.existing(number)
    if vbucket.history.state is VbucketState.DEAD:
        raise NotMyVbucket(f"vbucket {number} is dead", vbucket=number)
    return vbucket


def _check_key(message: TapMessage) -> None:
    if not 0 < len(message.key) <= MAX_KEY or len(message.value) > MAX_VALUE:
        raise InvalidArguments(
            f"key of {len(message.key)} bytes (limit {MAX_KEY}), value of {len(message.value)} (limit {MAX_VALUE})"
        )


def _revision(message: TapMessage) -> int | None:
    """Return the rev_seqno that the producer gave a change, None if it said none. Raises OutOfRange."""
    if len(message.engine_private) < _REVISION.size:
        return None
    (revision,) = _REVISION.unpack_from(message.engine_private)
    return _countable("rev_seqno", revision)


def _countable(what: str, number: int) -> int:
    """Return the number. Raises OutOfRange for one from which this node could not count on."""
    if number > LAST_SEQNO:
        raise OutOfRange(f"{what} {number}, limit {LAST_SEQNO}")
    return number


@MESSAGES.serve(needs=REPLICATE)
@_received
def take_mutation(bucket: ServedBucket, message: TapMutation) -> None:
    vbucket = _found(bucket, message.vbucket)
    _check_key(message)
    rev_seqno = _revision(message)
    key = DEFAULT_PREFIX + message.key
    old = vbucket.get(key)
    if old is not None and (old.cas, old.rev_seqno) == (message.cas, rev_seqno):
        return  # it has been here before, on its way through a circle of nodes
    private = message.engine_private
    stored = vbucket.incoming.apply(
        Event.MUTATION,
        key,
        message.value,
        cas=message.cas or vbucket.changes.clock.last + 1,
        rev_seqno=rev_seqno if rev_seqno is not None else old.rev_seqno + 1 if old else 1,
        flags=_item_flags(message),
        expiry=message.expiry,
        nru=private[_NRU_AT] if len(private) > _NRU_AT else 0,
        datatype=document_datatype(message.datatype, message.value),
    )
    _note(bucket, vbucket, stored.seqno, message)


def _item_flags(message: TapMutation) -> int:
    """Return the client's own flags. Producers that do not say otherwise send them in reverse."""
    if message.tap_flags & TapFlag.NETWORK_BYTE_ORDER:
        return message.flags
    return int.from_bytes(message.flags.to_bytes(4, "big"), "little")


@MESSAGES.serve(needs=REPLICATE)
@_received
def take_deletion(bucket: ServedBucket, message: TapDelete) -> None:
    vbucket = _found(bucket, message.vbucket)
    _check_key(message)
    key = DEFAULT_PREFIX + message.key
    old = vbucket.get(key)
    if old is None:
        return
    rev_seqno = _revision(message)
    stored = vbucket.incoming.apply(
        Event.DELETION,
        key,
        message.value,
        cas=message.cas or vbucket.changes.clock.last + 1,
        rev_seqno=rev_seqno if rev_seqno is not None else old.rev_seqno + 1,
        datatype=message.datatype,
    )
    _note(bucket, vbucket, stored.seqno, message)


def _note(bucket: ServedBucket, vbucket: Vbucket, seqno: int, message: TapMessage) -> None:
    bucket.tap.received(vbucket.id, seqno, message.ttl - 1)
    bucket.changed.add(vbucket.id)


@MESSAGES.serve(needs=REPLICATE)
@_received
def take_flush(bucket: ServedBucket, message: TapFlush) -> None:
    for vbucket in bucket.store.vbuckets:
        if vbucket.history.state is not None:
            _reset(bucket, vbucket)


def _reset(bucket: ServedBucket, vbucket: Vbucket) -> None:
    vbucket.reset()
    bucket.tell(vbucket, VbucketEvent.FLUSHED)


@MESSAGES.serve(needs=REPLICATE)
@_received
def take_remark(bucket: ServedBucket, message: TapOpaqueMessage) -> None:
    """Take a remark. Those that a consumer does nothing about, and those it does not know, are no error."""
    command = int.from_bytes(message.engine_private, "big")
    if len(message.engine_private) != _NUMBER_BYTES:
        logger.info("TAP_OPAQUE of %d bytes, expected %d", len(message.engine_private), _NUMBER_BYTES)
    elif command == TapOpaque.INITIAL_VBUCKET_STREAM:
        _reset(bucket, _found(bucket, message.vbucket))


@MESSAGES.serve(needs=REPLICATE)
@_received
def take_state(bucket: ServedBucket, message: TapVbucketSet) -> None:
    number = int.from_bytes(message.engine_private, "big")
    nbytes = len(message.engine_private)
    if nbytes != _NUMBER_BYTES:
        raise Goodbye(f"TAP_VBUCKET_SET with a state of {nbytes} bytes, expected {_NUMBER_BYTES}")
    if number not in set(VbucketState):
        raise Goodbye(f"TAP_VBUCKET_SET with state {number}, expected 1 to {max(VbucketState)}")
    vbuckets, state = bucket.store.vbuckets, VbucketState(number)
    if message.vbucket >= len(vbuckets):
        raise NotMyVbucket(f"vbucket {message.vbucket} of {len(vbuckets)}", vbucket=message.vbucket)
    vbucket = vbuckets[message.vbucket]
    if vbucket.history.state is not state:
        vbucket.set_state(state)
        bucket.tell(vbucket, VbucketEvent.STATE_CHANGED)


@MESSAGES.serve(needs=REPLICATE)
@_received
def take_checkpoint(bucket: ServedBucket, message: TapCheckpointStart | TapCheckpointEnd) -> None:
    """Begin or end a checkpoint, in a vbucket that follows the producer's."""
    vbucket = bucket.store.existing(message.vbucket)
    if vbucket.history.state is VbucketState.ACTIVE:
        return
    # A form of the documentation that no server sends has the id as engine-private data, without flags.
    text = message.value or (message.engine_private if message.flags is None else b"")
    if len(text) != _ID_BYTES:
        raise Goodbye(f"{opcode_name(message.received_as)} with an id of {len(text)} bytes, expected {_ID_BYTES}")
    checkpoint, checkpoints = _countable("checkpoint", int.from_bytes(text, "big")), bucket.tap.checkpoints(vbucket)
    if isinstance(message, TapCheckpointEnd):
        if checkpoint != checkpoints.open_id:
            raise Goodbye(f"end of checkpoint {checkpoint} while {checkpoints.open_id} is open")
    elif checkpoint and checkpoint != checkpoints.open_id:
        checkpoints.begin(checkpoint)
        bucket.changed.add(vbucket.id)  # who follows checkpoints here is to hear of it
