"""The messages of UPR in its first specification (opcodes 0x50-0x5a, which have other meanings in DCP).

Source: UPR transport specification of September 2013, one section for each command. It has no OPEN, flow control or
NOOP; a stream is identified by the opaque of its request.
"""

from __future__ import annotations

from penstock.wire.codec.layout import MAYBE, PRESENT, Request, Response, message, u8, u32, u64
from penstock.wire.codec.opcodes import UprOpcode
from penstock.wire.messages.dcp import unpack_rollback


@message(UprOpcode.UPR_STREAM_REQ, key=MAYBE)
class UprStreamReq(Request):
    """Consumer to producer: send this vbucket's changes. The key is the name of the stream's group."""

    flags: int = u32("none is defined, 0", default=0)
    reserved: int = u32("0", default=0)
    start_seqno: int = u64("the consumer has everything up to here")
    end_seqno: int = u64("the last seqno to send; 2^64-1: never ends")
    vbuuid: int = u64("branch in which start_seqno was received; 0: the consumer has nothing", default=0)
    high_seqno: int = u64("seqno after which that branch began, from the failover log", default=0)


@message(UprOpcode.UPR_STREAM_REQ, key=MAYBE, value=MAYBE)
class UprStreamReply(Response):
    """Empty if the stream begins. With ROLLBACK it has the seqno to go back to; some servers send that as the value."""

    rollback_seqno: int | None = u64("with ROLLBACK: the seqno to go back to", default=None)

    def rollback(self) -> int:
        """Return the seqno of a ROLLBACK, from extras or value. Raises RemoteProtocolError if it stands in neither."""
        return unpack_rollback(self.value) if self.rollback_seqno is None else self.rollback_seqno


@message(UprOpcode.UPR_GET_FAILOVER_LOG)
class UprGetFailoverLog(Request):
    """Consumer to producer: the failover log of a vbucket."""


@message(UprOpcode.UPR_GET_FAILOVER_LOG, value=MAYBE)
class UprFailoverLogReply(Response):
    """The failover log: pairs of a vbuuid and the seqno after which its branch began, newest first."""


@message(UprOpcode.UPR_STREAM_START)
class UprStreamStart(Request):
    """Producer to consumer: the stream begins here."""


@message(UprOpcode.UPR_STREAM_END)
class UprStreamEnd(Request):
    """Producer to consumer: the last message of a stream."""

    reason: int = u32("a UprEndReason")


@message(UprOpcode.UPR_SNAPSHOT_START)
class UprSnapshotStart(Request):
    """Producer to consumer: the changes up to the next SNAPSHOT_END are one snapshot."""


@message(UprOpcode.UPR_SNAPSHOT_END)
class UprSnapshotEnd(Request):
    """Producer to consumer: the changes since SNAPSHOT_START are a consistent state."""


@message(UprOpcode.UPR_MUTATION, key=PRESENT, value=MAYBE, cas=MAYBE)
class UprMutation(Request):
    """Producer to consumer: a document was stored."""

    by_seqno: int = u64("place in the vbucket's history")
    rev_seqno: int = u64("how many times the document changed", default=0)
    flags: int = u32("the client's own 4 bytes, as they were stored", default=0)
    expiry: int = u32("epoch seconds; 0: never", default=0)
    lock_time: int = u32("seconds for which it is locked, 0", default=0)


@message(UprOpcode.UPR_DELETION, key=PRESENT, cas=MAYBE)
class UprDeletion(Request):
    """Producer to consumer: a document was removed."""

    by_seqno: int = u64("place in the vbucket's history")
    rev_seqno: int = u64("how many times the document changed, this change included", default=0)


@message(UprOpcode.UPR_EXPIRATION, key=PRESENT, cas=MAYBE)
class UprExpiration(UprDeletion):
    """Producer to consumer: a document reached its expiry and was deleted."""


@message(UprOpcode.UPR_FLUSH)
class UprFlush(Request):
    """Producer to consumer: the vbucket was emptied, and a new history starts."""


@message(UprOpcode.UPR_SET_VBUCKET_STATE)
class UprSetVbucketState(Request):
    """Producer to consumer: set the state of the vbucket. Not answered."""

    state: int = u8("a VbucketState")
