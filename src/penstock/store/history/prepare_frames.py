"""Prepares and aborts of synchronous writes, as a vbucket stores them: tombstones in a key namespace of their own.

The value of a prepare is the durability level, then the whole frame that the commit will write. A prepare has the
delete time 0, so that it is never purged. An abort has the time of the abort and the seqno of its prepare. So the
newest change of a key in the namespace is a prepare that may be undecided, or an abort.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from penstock.store.history.tombstone import make_tombstone_head
from penstock.store.history.vbucket_changes import BODY, CAS, EXTRAS_LENGTH, KEY_LENGTH, REV_SEQNO, Newest
from penstock.store.log.logged_frames import Frame, LongFrame
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.codec.frame import EXTRAS_LENGTH_AT, HEADER_BYTES
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import DELETION_HEAD
from penstock.wire.values.collection_key import PREPARED_COLLECTION, pack_collection_id

PREPARED_PREFIX: Final = pack_collection_id(PREPARED_COLLECTION)

PREPARE_BYTES: Final = 128
"""Bytes by which a prepare is longer than the frame of its commit and a key, at most."""

_SEQNO = Struct(">Q")
_VBUCKET_AT = 6


class PendingPrepare(NamedTuple):
    """A synchronous write that is not decided yet.

    Attributes:
        seqno: the seqno of the prepare.
        level: the durability level of the write.
    """

    seqno: int
    level: DurabilityLevel


def is_hidden_frame(buffer: memoryview, at: int) -> bool:
    """Return whether the frame at an offset is a prepare or an abort."""
    return buffer[at + HEADER_BYTES + buffer[at + EXTRAS_LENGTH_AT]] == PREPARED_COLLECTION


def make_prepare_frame(key: bytes, seqno: int, frame: Frame, level: DurabilityLevel) -> Frame:
    """Return the frame of a prepare.

    Args:
        key: the key of the document.
        seqno: the seqno of the prepare.
        frame: the frame of the document, as the commit will write it.
        level: the durability level.
    """
    start = frame.head if isinstance(frame, LongFrame) else frame
    head = DELETION_HEAD.unpack_from(start)
    prepared_key = PREPARED_PREFIX + key
    front = make_tombstone_head(
        Event.DELETION,
        vbucket=int.from_bytes(start[_VBUCKET_AT : _VBUCKET_AT + 2], "big"),
        key_length=len(prepared_key),
        value_length=1 + len(frame),
        cas=head[CAS],
        seqno=seqno,
        rev_seqno=head[REV_SEQNO],
        delete_time=0,
    )
    front += prepared_key + bytes([level])
    return LongFrame(front + frame.head, frame.value) if isinstance(frame, LongFrame) else front + frame


def make_abort_frame(
    key: bytes, prepare: PendingPrepare, old: Newest | None, *, vbucket: int, seqno: int, now: int
) -> bytes:
    """Return the frame of an abort.

    Args:
        key: the key of the document.
        prepare: the aborted prepare.
        old: the change of the prepare, None if the vbucket does not have it.
        vbucket: the vbucket's number.
        seqno: the seqno of the abort.
        now: epoch seconds.
    """
    prepared_key = PREPARED_PREFIX + key
    value = _SEQNO.pack(prepare.seqno)
    head = make_tombstone_head(
        Event.DELETION,
        vbucket=vbucket,
        key_length=len(prepared_key),
        value_length=len(value),
        cas=0 if old is None else old[2][CAS],
        seqno=seqno,
        rev_seqno=0 if old is None else old[2][REV_SEQNO],
        delete_time=now,
    )
    return head + prepared_key + value


def read_prepare(newest: Newest) -> tuple[DurabilityLevel, memoryview] | None:
    """Return the durability level of a prepare and the frame of its commit; None for an abort."""
    rows, row, head = newest
    at = rows.offsets_at[row] + HEADER_BYTES
    return parse_prepare_value(rows.buffer[at + head[EXTRAS_LENGTH] + head[KEY_LENGTH] : at + head[BODY]])


def parse_prepare_value(value: memoryview) -> tuple[DurabilityLevel, memoryview] | None:
    """Return the durability level in the value of a prepare, and the frame of its commit; None for an abort."""
    return None if len(value) == _SEQNO.size else (DurabilityLevel(value[0]), value[1:])


def read_abort_value(value: bytes) -> int:
    """Return the seqno of the prepare that an abort is about."""
    found: int = _SEQNO.unpack(value)[0]
    return found


def make_committed_frame(frame: memoryview, seqno: int) -> bytes:
    """Return the frame of a commit with its seqno.

    Args:
        frame: the frame in the prepare.
        seqno: the seqno of the commit.
    """
    return b"".join((frame[:HEADER_BYTES], _SEQNO.pack(seqno), frame[HEADER_BYTES + _SEQNO.size :]))
