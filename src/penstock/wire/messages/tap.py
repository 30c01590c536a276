"""The messages of TAP (opcodes 0x40-0x47) and the commands beside it.

Source: TAP, one section for each message; ep-engine 2.5 tapconnection.cc for the engine-private data. These data lie
between extras and key, and other producers may put anything there. All messages are requests, also those of producers.
The opaque counts a connection's messages, and an answer to one message acknowledges all before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.flags import TapConnectFlag
from penstock.wire.codec.frozen_fields import freeze_fields
from penstock.wire.codec.layout import MAYBE, PRESENT, Request, Response, message, u8, u16, u32, u64
from penstock.wire.codec.opcodes import Opcode


@message(Opcode.TAP_CONNECT, key=MAYBE, value=MAYBE)
class TapConnect(Request):
    """Consumer to producer: send changes, all in one stream. The key is the consumer's name, for resuming later."""

    flags: int | None = u32(
        "a TapConnectFlag; the value has the data of flags that need some, lowest flag first", default=None
    )


@freeze_fields
class TapMessage(Request):
    """Fields of every message in a TAP stream."""

    engine_private: bytes = b""
    tap_flags: int = u16("a TapFlag", default=0)
    ttl: int = u8("hops that are left, 255 from the node where the change was made", default=0xFF)
    reserved: int = u8("0", default=0)
    reserved_too: int = u16("0", default=0)


@message(Opcode.TAP_MUTATION, key=PRESENT, value=MAYBE, cas=MAYBE, private=True)
class TapMutation(TapMessage):
    """Producer to consumer: a document was stored. Engine-private: rev_seqno u64, nru u8."""

    flags: int = u32("the client's own 4 bytes; without NETWORK_BYTE_ORDER their order may be reversed", default=0)
    expiry: int = u32("epoch seconds; 0: never", default=0)


@message(Opcode.TAP_DELETE, key=PRESENT, value=MAYBE, cas=MAYBE, private=True)
class TapDelete(TapMessage):
    """Producer to consumer: a document was removed, or expired. Engine-private: rev_seqno u64."""


@message(Opcode.TAP_FLUSH, private=True)
class TapFlush(TapMessage):
    """Producer to consumer: the bucket was emptied."""


@message(Opcode.TAP_OPAQUE, private=True)
class TapOpaqueMessage(TapMessage):
    """Producer to consumer: a command of the producer's engine. Engine-private: a TapOpaque, u32."""


@message(Opcode.TAP_VBUCKET_SET, private=True)
class TapVbucketSet(TapMessage):
    """Producer to consumer: set the state of the vbucket. Engine-private: a VbucketState, u32."""


@message(Opcode.TAP_CHECKPOINT_START, key=MAYBE, value=MAYBE, cas=MAYBE, private=True)
class TapCheckpointStart(TapMessage):
    """Producer to consumer: a checkpoint begins. The value is its id, u64; the key is the message's name in letters.

    Engine-private: the highest rev_seqno of the deleted documents, u64.
    """

    flags: int | None = u32("0", default=None)
    expiry: int | None = u32("0", default=None)


@message(Opcode.TAP_CHECKPOINT_END, key=MAYBE, value=MAYBE, cas=MAYBE, private=True)
class TapCheckpointEnd(TapCheckpointStart):
    """Producer to consumer: the checkpoint ends, key and value as at its start."""


@message(
    *(Opcode.TAP_CONNECT, Opcode.TAP_MUTATION, Opcode.TAP_DELETE, Opcode.TAP_FLUSH, Opcode.TAP_OPAQUE),
    *(Opcode.TAP_VBUCKET_SET, Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END),
    key=MAYBE,
    value=MAYBE,
)
class TapReply(Response):
    """Consumer to producer: all messages up to this opaque were processed, or must be sent again (EBUSY, ETMPFAIL).

    A producer answers TAP_CONNECT only if it refuses it.
    """


@message(Opcode.LAST_CLOSED_CHECKPOINT)
class LastClosedCheckpoint(Request):
    """Answered with the id of the vbucket's newest closed checkpoint, u64."""


@message(Opcode.DEREGISTER_TAP_CLIENT, key=PRESENT)
class DeregisterTapClient(Request):
    """Forget a registered client. The key is its name."""


@message(Opcode.RESET_REPLICATION_CHAIN)
class ResetReplicationChain(Request):
    """Restart all streams that this node sends."""


@message(Opcode.CREATE_CHECKPOINT)
class CreateCheckpoint(Request):
    """Close the vbucket's open checkpoint and open a new one."""


@message(Opcode.CHANGE_VB_FILTER, key=PRESENT, value=PRESENT)
class ChangeVbFilter(Request):
    """Change the vbuckets of a stream. The key is the stream's name; for the value see `pack_checkpoints`."""


@message(Opcode.CHECKPOINT_PERSISTENCE)
class CheckpointPersistence(Request):
    """Answered once a checkpoint is on disk."""

    checkpoint_id: int = u64("the checkpoint", within="value")


@message(
    *(Opcode.LAST_CLOSED_CHECKPOINT, Opcode.DEREGISTER_TAP_CLIENT, Opcode.RESET_REPLICATION_CHAIN),
    *(Opcode.CREATE_CHECKPOINT, Opcode.CHANGE_VB_FILTER, Opcode.CHECKPOINT_PERSISTENCE),
    key=MAYBE,
    value=MAYBE,
)
class TapCommandReply(Response):
    """A reply without extras: its value holds the whole answer."""


# Contents of values and engine-private data

_DATE = Struct(">Q")
_COUNT = Struct(">H")
_VBUCKET = Struct(">H")
_CHECKPOINT = Struct(">HQ")


class TapOptions(NamedTuple):
    """The options of TAP_CONNECT.

    Attributes:
        flags: a TapConnectFlag.
        backfill: epoch seconds; changes from before need not be sent. None: all stored changes are sent, then new ones.
        vbuckets: None or empty: all.
        checkpoints: (vbucket, id of the last checkpoint that the consumer has closed).
        closed_only: send a registered client only closed checkpoints.
    """

    flags: int = 0
    backfill: int | None = None
    vbuckets: tuple[int, ...] | None = None
    checkpoints: tuple[tuple[int, int], ...] | None = None
    closed_only: bool | None = None

    def pack(self) -> bytes:
        """Return the value of a TAP_CONNECT with these flags. Raises struct.error for a number that does not fit."""
        parts = []
        if self.flags & TapConnectFlag.BACKFILL:
            parts.append(_DATE.pack(self.backfill or 0))
        if self.flags & TapConnectFlag.LIST_VBUCKETS:
            vbuckets = self.vbuckets or ()
            parts += [_COUNT.pack(len(vbuckets)), *map(_VBUCKET.pack, vbuckets)]
        if self.flags & TapConnectFlag.CHECKPOINT and self.checkpoints is not None:
            parts.append(pack_checkpoints(self.checkpoints))
        if self.flags & TapConnectFlag.REGISTERED_CLIENT and self.closed_only is not None:
            parts.append(bytes([self.closed_only]))
        return b"".join(parts)


def unpack_tap_options(flags: int, value: bytes) -> TapOptions:
    """Return the options of a TAP_CONNECT. Bytes after the last option are ignored, as servers do.

    Raises:
        RemoteProtocolError: a count contradicts the bytes after it (not fatal), or the date of BACKFILL is cut off.
            The latter is fatal, since servers then close the connection without a reply.
    """
    at = 0
    backfill = vbuckets = checkpoints = closed_only = None
    if flags & TapConnectFlag.BACKFILL:
        if len(value) < _DATE.size:
            raise RemoteProtocolError(f"TAP_CONNECT: backfill date of {len(value)} bytes, expected {_DATE.size}")
        (backfill,) = _DATE.unpack_from(value)
        at = _DATE.size
    if flags & TapConnectFlag.LIST_VBUCKETS:
        pairs, at = _unpack_list(value, at, _VBUCKET)
        vbuckets = tuple(vbucket for (vbucket,) in pairs)
    if flags & TapConnectFlag.CHECKPOINT and len(value) - at >= _COUNT.size:
        # cbadm-tap-registration leaves the list out, and one byte of REGISTERED_CLIENT follows.
        pairs, at = _unpack_list(value, at, _CHECKPOINT)
        checkpoints = tuple((vbucket, checkpoint) for vbucket, checkpoint in pairs)
    if flags & TapConnectFlag.REGISTERED_CLIENT and at < len(value):
        closed_only = bool(value[at])
    return TapOptions(flags, backfill, vbuckets, checkpoints, closed_only)


def _unpack_list(value: bytes, at: int, element: Struct) -> tuple[list[tuple[int, ...]], int]:
    """Return the counted elements at `at`, and where they end.

    Raises:
        RemoteProtocolError: the list is cut off.
    """
    count = int.from_bytes(value[at : at + _COUNT.size], "big")
    begin = at + _COUNT.size
    end = begin + count * element.size
    if len(value) < begin:
        raise RemoteProtocolError(f"TAP list: count in {len(value) - at} bytes, expected {_COUNT.size}", fatal=False)
    if len(value) < end:
        raise RemoteProtocolError(
            f"TAP list of {count} elements in {len(value) - begin} bytes, expected {count * element.size}", fatal=False
        )
    return list(element.iter_unpack(value[begin:end])), end


def pack_checkpoints(checkpoints: Sequence[tuple[int, int]]) -> bytes:
    """Return the value of CHANGE_VB_FILTER, given (vbucket, id of the last checkpoint that was closed)."""
    return b"".join((_COUNT.pack(len(checkpoints)), *(_CHECKPOINT.pack(*each) for each in checkpoints)))


def unpack_checkpoints(value: bytes) -> tuple[tuple[int, int], ...]:
    """Return the (vbucket, checkpoint id) pairs in a CHANGE_VB_FILTER.

    Raises:
        RemoteProtocolError: the count contradicts the length of the value.
    """
    pairs, end = _unpack_list(value, 0, _CHECKPOINT)
    if end != len(value) or not value:
        raise RemoteProtocolError(f"CHANGE_VB_FILTER: {len(value)} bytes, expected {end}", fatal=False)
    return tuple((vbucket, checkpoint) for vbucket, checkpoint in pairs)
