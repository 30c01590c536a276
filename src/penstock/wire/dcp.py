"""The messages of DCP (opcodes 0x50-0x5e).

Source: kv_engine docs/dcp, one page a command; include/memcached/protocol_binary.h where a page is older.
"""

from __future__ import annotations

from struct import Struct, calcsize

from penstock.errors import RemoteProtocolError
from penstock.wire.constants import Opcode
from penstock.wire.frame import HEADER, HEADER_NAMES
from penstock.wire.layout import MAYBE, PRESENT, Message, Request, Response, message, u8, u16, u32, u64


@message(Opcode.DCP_OPEN, key=PRESENT, value=MAYBE)
class Open(Request):
    """Make this a change-stream connection. key: its name, 1 to 200 bytes; a second of the same name ends the first."""

    seqno: int = u32("reserved, 0", default=0)
    flags: int = u32("an OpenFlag", default=0)


@message(Opcode.DCP_CLOSE_STREAM)
class CloseStream(Request):
    """Consumer to producer: stop sending this vbucket."""


@message(Opcode.DCP_STREAM_REQ, value=MAYBE)
class StreamReq(Request):
    """Consumer to producer: send this vbucket's changes. Its opaque stands on every message of the stream."""

    flags: int = u32("a StreamFlag", default=0)
    reserved: int = u32("0", default=0)
    start_seqno: int = u64("the consumer has everything up to here")
    end_seqno: int = u64("the last one wanted; 2^64-1: never ends")
    vbuuid: int = u64("branch in which start_seqno was received; 0: the consumer has nothing", default=0)
    snap_start: int = u64("snapshot that start_seqno lies in: its lowest seqno", default=0)
    snap_end: int = u64("and its highest", default=0)


@message(Opcode.DCP_GET_FAILOVER_LOG)
class GetFailoverLog(Request):
    """Consumer to producer: the failover log of a vbucket."""


@message(Opcode.DCP_STREAM_END)
class StreamEnd(Request):
    """Producer to consumer: the last message of a stream."""

    reason: int = u32("a StreamEndReason")


@message(Opcode.DCP_SNAPSHOT_MARKER)
class SnapshotMarker(Request):
    """Producer to consumer: the changes that follow, up to end_seqno, are one consistent state when all have come.

    Form V1. A seqno in the range need not appear: an older version of a document that changed again is left out.
    """

    start_seqno: int = u64("lowest seqno that the snapshot may hold")
    end_seqno: int = u64("highest, included")
    flags: int = u32("a SnapshotFlag", default=0)


@message(Opcode.DCP_MUTATION, key=PRESENT, value=MAYBE, cas=MAYBE)
class Mutation(Request):
    """Producer to consumer: a document was stored. datatype says what the value is made of."""

    by_seqno: int = u64("place in the vbucket's history")
    rev_seqno: int = u64("how many times the document changed", default=0)
    flags: int = u32("the client's own 4 bytes, as they were stored", default=0)
    expiry: int = u32("epoch seconds; 0: never", default=0)
    lock_time: int = u32("0", default=0)
    nmeta: int = u16("bytes of extended meta data behind the value, 0", default=0)
    nru: int = u8("how cold the document is", default=0)


@message(Opcode.DCP_DELETION, key=PRESENT, value=MAYBE, cas=MAYBE)
class Deletion(Request):
    """Producer to consumer: a document was removed. Form V1."""

    by_seqno: int = u64("place in the vbucket's history")
    rev_seqno: int = u64("how many times the document changed, this change included", default=0)
    nmeta: int = u16("bytes of extended meta data behind the value, 0", default=0)


@message(Opcode.DCP_NOOP)
class DcpNoop(Request):
    """Producer to consumer: are you there? Answered with the same opaque."""


@message(Opcode.DCP_BUFFER_ACK)
class BufferAck(Request):
    """Consumer to producer: so many bytes of stream messages have been dealt with. Not answered."""

    nbytes: int = u32("bytes freed since the last one")


@message(Opcode.DCP_CONTROL, key=PRESENT, value=PRESENT)
class Control(Request):
    """Consumer to producer: a setting of this connection; key its name, value its text."""


@message(
    *(Opcode.DCP_OPEN, Opcode.DCP_CLOSE_STREAM, Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG, Opcode.DCP_CONTROL),
    *(Opcode.DCP_NOOP, Opcode.DCP_STREAM_END, Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION, Opcode.DCP_DELETION),
    Opcode.DCP_BUFFER_ACK,
    key=MAYBE,
    value=MAYBE,
    cas=MAYBE,
)
class DcpReply(Response):
    """A reply: a failover log after STREAM_REQ and GET_FAILOVER_LOG, 8 bytes after ROLLBACK, otherwise empty."""


_SEQNO = Struct(">Q")


def pack_rollback(seqno: int) -> bytes:
    return _SEQNO.pack(seqno)


def unpack_rollback(value: bytes) -> int:
    """Return the seqno of a ROLLBACK reply. Raises RemoteProtocolError unless it has 8 bytes."""
    if len(value) != _SEQNO.size:
        raise RemoteProtocolError(f"ROLLBACK with {len(value)} bytes, expected {_SEQNO.size}")
    seqno: int = _SEQNO.unpack(value)[0]
    return seqno


def head_fields(message: type[Message]) -> list[tuple[str, str]]:
    """Return (name, struct code) of the header's fields and of the message's own, in the order of the bytes."""
    layout = message.layouts[max(message.layouts)]
    header = [layout.third if name == "specific" else name for name in HEADER_NAMES]
    return list(zip([*header, *layout.names], HEADER.format[1:] + layout.extras.format[1:], strict=True))


def head_struct(message: type[Message], *chosen: str) -> Struct:
    """Return one Struct over header and extras; with names chosen, one that reads only those of them."""
    fields = head_fields(message)
    skipped = {name: f"{calcsize('>' + code)}x" for name, code in fields if chosen and name not in chosen}
    return Struct(">" + "".join(skipped.get(name, code) for name, code in fields))


MUTATION_HEAD = head_struct(Mutation)
DELETION_HEAD = head_struct(Deletion)
