"""The messages of the UPR draft (opcodes 1 to 5, which are key-value commands elsewhere).

Source: UPR protocol draft, "Messages" and "Streams". The header's byte 5 is the kind of request, response or stream
message. Bytes 6-7 are the vbucket in both directions: there is no status and no datatype. All messages of a producer
have the magic of a response, also those of a stream. The opaque is the *request id*.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.wire.codec.frozen_fields import freeze_fields
from penstock.wire.codec.layout import MAYBE, PRESENT, Message, Request, message, u32, u64
from penstock.wire.codec.opcodes import DraftCode, Magic


@freeze_fields
class DraftResponse(Message):
    """A message of a producer."""

    magic: ClassVar[Magic] = Magic.RESPONSE

    vbucket: int = 0


@message(DraftCode.DRAFT_NO_REQUEST)
class DraftNoRequest(Request):
    """A request of kind 0, which the draft shows and does not define. Answered as malformed."""


@message(DraftCode.DRAFT_STREAM_REQ, key=MAYBE)
class DraftStreamReq(Request):
    """Consumer to producer: send this vbucket's changes. The key is the name of the stream's group."""

    start_seqno: int = u64("the consumer has everything up to here")
    end_seqno: int = u64("the last seqno to send; 2^64-1: never ends")
    vbuuid: int = u64("branch in which start_seqno was received; 0: the consumer has nothing", default=0)
    high_seqno: int = u64("seqno after which that branch began, from the failover log", default=0)
    reserved: int | None = u64(
        "8 bytes without a meaning, in the extras of 40 bytes that the draft shows", default=None
    )


@message(DraftCode.DRAFT_GET_FAILOVER_LOG)
class DraftGetFailoverLog(Request):
    """Consumer to producer: the failover log of a vbucket."""


@message(DraftCode.DRAFT_OK)
class DraftOk(DraftResponse):
    """The stream begins."""


@message(DraftCode.DRAFT_NOT_MY_VBUCKET, value=MAYBE)
class DraftFailoverLog(DraftResponse):
    """Empty: the vbucket is not on this node. Otherwise the requested failover log, newest entry first."""


@message(DraftCode.DRAFT_ROLLBACK)
class DraftRollback(DraftResponse):
    """The consumer has to go back to a seqno before the stream can begin."""

    rollback_seqno: int = u64("the seqno to go back to", within="value")


@message(DraftCode.DRAFT_MALFORMED)
class DraftMalformed(DraftResponse):
    """The request could not be understood. This response is Penstock's own: the draft has none for it."""


@message(DraftCode.DRAFT_STREAM_START)
class DraftStreamStart(DraftResponse):
    """The stream begins here."""


@message(DraftCode.DRAFT_SNAPSHOT_START)
class DraftSnapshotStart(DraftResponse):
    """The changes up to the next snapshot end are one snapshot."""


@message(DraftCode.DRAFT_SNAPSHOT_END)
class DraftSnapshotEnd(DraftResponse):
    """The changes since the snapshot's start are a consistent state."""


@message(DraftCode.DRAFT_MUTATION, key=PRESENT, value=MAYBE, cas=MAYBE)
class DraftMutation(DraftResponse):
    """A document was stored."""

    by_seqno: int = u64("place in the vbucket's history")
    rev_seqno: int = u64("how many times the document changed", default=0)
    flags: int = u32("the client's own 4 bytes, as they were stored", default=0)
    expiry: int = u32("epoch seconds; 0: never", default=0)
    lock_time: int = u32("seconds for which it is locked, 0", default=0)


@message(DraftCode.DRAFT_DELETION, key=PRESENT, cas=MAYBE)
class DraftDeletion(DraftMutation):
    """A document was removed. Flags, expiry and lock time are 0."""


@message(DraftCode.DRAFT_EXPIRATION, key=PRESENT, cas=MAYBE)
class DraftExpiration(DraftMutation):
    """A document reached its expiry and was deleted. Flags, expiry and lock time are 0."""


@message(DraftCode.DRAFT_FLUSH)
class DraftFlush(DraftResponse):
    """The vbucket was emptied, and a new history starts."""


@message(DraftCode.DRAFT_STREAM_END_OK)
class DraftStreamEnd(DraftResponse):
    """The last message of a stream: all requested changes have been sent."""


@message(DraftCode.DRAFT_STREAM_END_STATE_CHANGED)
class DraftStateChanged(DraftResponse):
    """The last message of a stream: the vbucket has a new state."""
