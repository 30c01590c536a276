"""The messages of DCP (opcodes 0x50-0x67).

Source: kv_engine docs/dcp, one page for each command; include/memcached/protocol_binary.h for the forms of older
releases.
"""

from __future__ import annotations

from struct import Struct, calcsize

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.frame import HEADER, HEADER_NAMES
from penstock.wire.codec.layout import MAYBE, PRESENT, Message, Request, Response, message, u8, u16, u32, u64
from penstock.wire.codec.opcodes import Opcode


@message(Opcode.DCP_OPEN, key=PRESENT, value=MAYBE, cas=MAYBE)
class Open(Request):
    """Make this a change-stream connection. The key is its name, 1 to 200 bytes.

    A second connection of the same name ends the first.
    """

    seqno: int = u32("reserved, 0", default=0)
    flags: int = u32("an OpenFlag", default=0)


@message(Opcode.DCP_ADD_STREAM, cas=MAYBE)
class AddStream(Request):
    """To a consumer: request a stream of this vbucket from your producer."""

    flags: int = u32("a StreamFlag", default=0)


@message(Opcode.DCP_ADD_STREAM, value=MAYBE, cas=MAYBE)
class AddStreamReply(Response):
    """The producer has accepted the stream, or refused it with this status."""

    stream_opaque: int | None = u32("the opaque of the stream; not with every error", default=None)


@message(Opcode.DCP_CLOSE_STREAM, cas=MAYBE)
class CloseStream(Request):
    """Consumer to producer: stop sending this vbucket."""


@message(Opcode.DCP_STREAM_REQ, value=MAYBE, cas=MAYBE)
class StreamReq(Request):
    """Consumer to producer: send this vbucket's changes. All messages of the stream have the request's opaque."""

    flags: int = u32("a StreamFlag", default=0)
    reserved: int = u32("0", default=0)
    start_seqno: int = u64("the consumer has everything up to here")
    end_seqno: int = u64("the last seqno to send; 2^64-1: never ends")
    vbuuid: int = u64("branch in which start_seqno was received; 0: the consumer has nothing", default=0)
    snap_start: int = u64("lowest seqno of the snapshot that start_seqno lies in", default=0)
    snap_end: int = u64("highest seqno of that snapshot", default=0)


@message(Opcode.DCP_GET_FAILOVER_LOG, cas=MAYBE)
class DcpGetFailoverLog(Request):
    """Consumer to producer: the failover log of a vbucket."""


@message(Opcode.DCP_STREAM_END, cas=MAYBE)
class StreamEnd(Request):
    """Producer to consumer: the last message of a stream."""

    reason: int = u32("a StreamEndReason")


@message(Opcode.DCP_SNAPSHOT_MARKER, cas=MAYBE)
class SnapshotMarker(Request):
    """Producer to consumer: the changes that follow, up to end_seqno, are one consistent state when all have come.

    Form V1. Some seqnos of the range may be missing: if a document changed again, its older version is left out.
    """

    start_seqno: int = u64("lowest seqno that the snapshot may hold")
    end_seqno: int = u64("highest, included")
    flags: int = u32("a SnapshotFlag", default=0)


@message(Opcode.DCP_SNAPSHOT_MARKER, cas=MAYBE)
class SnapshotMarkerV2(Request):
    """As SnapshotMarker. Form V2.0 has 36 bytes of value, V2.2 has 52. 44 bytes were specified and never sent."""

    version: int = u8("0: V2.0, 2: V2.2", default=0)
    start_seqno: int = u64("lowest seqno that the snapshot may hold", within="value")
    end_seqno: int = u64("highest, included", within="value")
    flags: int = u32("a SnapshotFlag", default=0, within="value")
    max_visible_seqno: int = u64("highest seqno that is neither a prepare nor an abort", default=0, within="value")
    high_completed_seqno: int = u64("with DISK: highest prepare that is decided", default=0, within="value")
    purge_seqno: int | None = u64("highest seqno of a tombstone that was dropped", default=None, within="value")
    high_prepared_seqno: int | None = u64("with DISK: highest prepare that holds here", default=None, within="value")

    def fault(self) -> str | None:
        """Return the fault of a version that contradicts the value's length, None otherwise."""
        version = 0 if self.purge_seqno is None else 2
        return None if self.version == version else f"version {self.version}, its value is of version {version}"


@message(Opcode.DCP_MUTATION, key=PRESENT, value=MAYBE, cas=MAYBE)
class Mutation(Request):
    """Producer to consumer: a document was stored. The datatype describes the value."""

    by_seqno: int = u64("place in the vbucket's history")
    rev_seqno: int = u64("how many times the document changed", default=0)
    flags: int = u32("the client's own 4 bytes, as they were stored", default=0)
    expiry: int = u32("epoch seconds; 0: never", default=0)
    lock_time: int = u32("0", default=0)
    nmeta: int = u16("bytes of extended meta data behind the value, 0", default=0)
    nru: int = u8("how cold the document is", default=0)


@message(Opcode.DCP_MUTATION, key=PRESENT, value=MAYBE, cas=MAYBE)
class PrototypeMutation(Mutation):
    """As Mutation, in the collections prototype: the key is `name::key`. Source: mutation.md of the prototype."""

    collection_length: int = u8(
        "bytes of the collection's name, which begins the key; 0: the default collection", default=0
    )

    def fault(self) -> str | None:
        """Return the fault of a key without the separator after the collection's name, None otherwise."""
        if self.collection_length and self.key[self.collection_length :][:2] != COLLECTION_SEPARATOR:
            return f"no {COLLECTION_SEPARATOR!r} behind the first {self.collection_length} bytes of key {self.key!r}"
        return None


COLLECTION_SEPARATOR = b"::"
"""Stands between the collection's name and the key in the collections prototype."""


@message(Opcode.DCP_DELETION, key=PRESENT, value=MAYBE, cas=MAYBE)
class Deletion(Request):
    """Producer to consumer: a document was removed. Form V1."""

    by_seqno: int = u64("place in the vbucket's history")
    rev_seqno: int = u64("how many times the document changed, this change included", default=0)
    nmeta: int = u16("bytes of extended meta data behind the value, 0", default=0)


@message(Opcode.DCP_DELETION, key=PRESENT, value=MAYBE, cas=MAYBE)
class DeletionV2(Request):
    """As Deletion, to a consumer that asked for INCLUDE_DELETE_TIMES."""

    by_seqno: int = u64("place in the vbucket's history")
    rev_seqno: int = u64("how many times the document changed, this change included", default=0)
    delete_time: int = u32("epoch seconds; 0: not known", default=0)
    unused: int = u8("0", default=0)


@message(Opcode.DCP_EXPIRATION, key=PRESENT, value=MAYBE, cas=MAYBE)
class Expiration(Request):
    """Producer to consumer: a document reached its expiry. A consumer without this option gets a deletion."""

    by_seqno: int = u64("place in the vbucket's history")
    rev_seqno: int = u64("how many times the document changed, this change included", default=0)
    delete_time: int = u32("epoch seconds; 0: not known", default=0)


@message(Opcode.DCP_EXPIRATION, key=PRESENT, value=MAYBE, cas=MAYBE)
class OldExpiration(Deletion):
    """As Expiration, in the form that releases up to 6.0 accepted."""


@message(Opcode.DCP_FLUSH, cas=MAYBE)
class DcpFlush(Request):
    """Producer to consumer: the vbucket was emptied. No release sends or accepts it."""


@message(Opcode.DCP_SET_VBUCKET_STATE, cas=MAYBE)
class SetVbucketState(Request):
    """Producer to consumer: set the state of the vbucket. Answered."""

    state: int = u8("a VbucketState")


@message(Opcode.DCP_NOOP, cas=MAYBE)
class DcpNoop(Request):
    """Producer to consumer: check that the consumer is alive. Answered with the same opaque."""


@message(Opcode.DCP_BUFFER_ACK, cas=MAYBE)
class BufferAck(Request):
    """Consumer to producer: this many bytes of stream messages have been processed. Not answered."""

    nbytes: int = u32("bytes processed since the last BUFFER_ACK")


@message(Opcode.DCP_CONTROL, key=PRESENT, value=PRESENT, cas=MAYBE)
class Control(Request):
    """Consumer to producer: a setting of this connection. The key is its name, the value its text."""


@message(Opcode.DCP_SYSTEM_EVENT, key=MAYBE, value=MAYBE, cas=MAYBE)
class SystemEvent(Request):
    """Producer to consumer: a collection or scope began, changed or ended. The key is its name, if the event has one.

    For the value see penstock.wire.messages.system_event.
    """

    by_seqno: int = u64("place in the vbucket's history")
    event: int = u32("a SystemEventKind")
    version: int = u8("0, 1: fixed fields; 2: a FlatBuffers table", default=0)


@message(Opcode.DCP_PREPARE, key=PRESENT, value=MAYBE, cas=PRESENT)
class Prepare(Request):
    """Producer to replica: a synchronous write that is not decided yet. Flow control counts 2 bytes more for it."""

    by_seqno: int = u64("place in the vbucket's history")
    rev_seqno: int = u64("how many times the document changed, this change included", default=0)
    flags: int = u32("the client's own 4 bytes, as they were stored", default=0)
    expiry: int = u32("epoch seconds; 0: never", default=0)
    lock_time: int = u32("0", default=0)
    nru: int = u8("how cold the document is", default=0)
    deleted: int = u8("1: the write is a deletion", default=0)
    durability: int = u8("1: majority, 2: majority and on the active's disk, 3: on a majority's disks", default=1)


@message(Opcode.DCP_SEQNO_ACKNOWLEDGED)
class SeqnoAcknowledged(Request):
    """Replica to producer: the replica holds all prepares up to this one."""

    prepared_seqno: int = u64("seqno of that prepare")


@message(Opcode.DCP_COMMIT, key=PRESENT)
class Commit(Request):
    """Producer to replica: a prepare is committed."""

    prepared_seqno: int = u64("seqno of the prepare; in an abort 0, if the prepare was left out")
    by_seqno: int = u64("place in the vbucket's history")


@message(Opcode.DCP_ABORT, key=PRESENT)
class Abort(Commit):
    """Producer to replica: a prepare is aborted."""


@message(Opcode.DCP_SEQNO_ADVANCED, cas=MAYBE)
class SeqnoAdvanced(Request):
    """Producer to consumer: this stream has no further change up to this seqno. May complete a snapshot."""

    by_seqno: int = u64("the consumer has everything up to here")


@message(Opcode.DCP_OSO_SNAPSHOT, cas=MAYBE)
class OsoSnapshot(Request):
    """Producer to consumer: the changes up to the end message are one state of a collection, in the order of keys."""

    flags: int = u32("an OsoFlag")


@message(Opcode.DCP_CACHE_TRANSFER, value=PRESENT)
class CacheTransfer(Request):
    """Producer to consumer: documents from the producer's memory, in no order. For the value see `dcp_values`."""


@message(Opcode.DCP_CACHE_TRANSFER_END)
class CacheTransferEnd(Request):
    """Producer to consumer: the documents in memory are complete; the history follows."""


@message(
    *(Opcode.DCP_OPEN, Opcode.DCP_CLOSE_STREAM, Opcode.DCP_STREAM_REQ, Opcode.DCP_GET_FAILOVER_LOG, Opcode.DCP_CONTROL),
    *(Opcode.DCP_NOOP, Opcode.DCP_STREAM_END, Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION, Opcode.DCP_DELETION),
    *(Opcode.DCP_BUFFER_ACK, Opcode.DCP_EXPIRATION, Opcode.DCP_FLUSH, Opcode.DCP_SET_VBUCKET_STATE),
    *(Opcode.DCP_SYSTEM_EVENT, Opcode.DCP_PREPARE, Opcode.DCP_SEQNO_ACKNOWLEDGED, Opcode.DCP_COMMIT, Opcode.DCP_ABORT),
    *(Opcode.DCP_SEQNO_ADVANCED, Opcode.DCP_OSO_SNAPSHOT, Opcode.DCP_CACHE_TRANSFER, Opcode.DCP_CACHE_TRANSFER_END),
    key=MAYBE,
    value=MAYBE,
    cas=MAYBE,
)
class DcpReply(Response):
    """A reply: a failover log after STREAM_REQ and GET_FAILOVER_LOG, 8 bytes after ROLLBACK, otherwise empty."""


_SEQNO = Struct(">Q")


def pack_rollback(seqno: int) -> bytes:
    """Return the value of a ROLLBACK reply."""
    return _SEQNO.pack(seqno)


def unpack_rollback(value: bytes) -> int:
    """Return the seqno of a ROLLBACK reply.

    Raises:
        RemoteProtocolError: the value does not have 8 bytes.
    """
    if len(value) != _SEQNO.size:
        raise RemoteProtocolError(f"ROLLBACK with {len(value)} bytes, expected {_SEQNO.size}")
    seqno: int = _SEQNO.unpack(value)[0]
    return seqno


def list_head_fields(message: type[Message]) -> list[tuple[str, str]]:
    """Return (name, struct code) of the header's fields and of the message's own, in the order of the bytes."""
    layout = message.layouts[max(message.layouts)]
    header = [layout.specific_name if name == "specific" else name for name in HEADER_NAMES]
    private = ["engine_length"] * layout.private
    return list(zip([*header, *private, *layout.names], HEADER.format[1:] + layout.extras.format[1:], strict=True))


def make_head_struct(message: type[Message], *chosen: str) -> Struct:
    """Return one Struct over header and extras; with names chosen, one that reads only those fields."""
    fields = list_head_fields(message)
    skipped = {name: f"{calcsize('>' + code)}x" for name, code in fields if chosen and name not in chosen}
    return Struct(">" + "".join(skipped.get(name, code) for name, code in fields))


MUTATION_HEAD = make_head_struct(Mutation)
DELETION_HEAD = make_head_struct(Deletion)
