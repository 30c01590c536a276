"""What a TAP feed does with what arrives: changes, flushes, remarks of the producer's engine, acknowledgements."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from penstock.client.connect.dropped_frames import DropReason
from penstock.client.feeds.consumer_feed import FeedState, StreamFailure
from penstock.client.feeds.deliveries import DeliveryQueue
from penstock.client.tap.tap_dump import TapDump
from penstock.client.tap.tap_vbuckets import TapVbuckets
from penstock.errors import RemoteProtocolError, make_status_error
from penstock.wire.codec.constants import TapOpaque
from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.frame import HEADER, HEADER_BYTES, OPCODE_AT, Buffer, Frame, name_opcode, name_status
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.heads import Run
from penstock.wire.columns.inflation import gather_plain_heads, inflate_run
from penstock.wire.columns.message_decoder import decode_messages
from penstock.wire.columns.run_decoder import SMALL_RUN, decode_columns
from penstock.wire.columns.schema import Change
from penstock.wire.messages.tap import TapMessage, TapOpaqueMessage, TapReply
from penstock.wire.protocol.stream_state import EVENTS, StreamEvent

__all__ = ["TapMessages", "TapOutput"]

_ENGINE_EVENTS: dict[int, StreamEvent] = {
    TapOpaque.INITIAL_VBUCKET_STREAM: StreamEvent.BACKFILL_START,
    TapOpaque.CLOSE_BACKFILL: StreamEvent.BACKFILL_END,
}
"""The remarks of a producer's engine that mean something here. The others are acknowledged."""

_LOW_FLAGS_AT = HEADER_BYTES + 3
"""Where the lower byte of the flags lies: behind the header and the length of the engine-private data."""

_REMARK_BYTES = 4


class TapOutput(DeliveryQueue):
    """Deliveries, acknowledged message by message.

    Attributes:
        acks: acknowledgements of messages that are in no delivery yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.acks: list[bytes] = []
        self._tied: deque[tuple[int, bytes]] = deque()

    def deliver(self, content: pa.RecordBatch | list[Change]) -> None:
        super().deliver(content)
        self._tie_acks()

    def forget_connections(self, connection_ids: Iterable[int]) -> None:
        super().forget_connections(connection_ids)
        self.acks.clear()
        self._tied.clear()

    def acknowledge(self, nbytes: int, *, at_once: bool = False) -> None:
        self._tie_acks()
        while self._tied and self._tied[0][0] <= self.consumed:
            self.outgoing.append(self._tied.popleft()[1])

    def _tie_acks(self) -> None:
        """Let what is to be acknowledged wait for the delivery that holds it, or the last one in front of it."""
        acks, self.acks = self.acks, []
        self._tied += [(self.delivered, ack) for ack in acks]


class TapMessages:
    """Takes what arrives by TAP."""

    def __init__(self, state: FeedState, output: TapOutput, vbuckets: TapVbuckets, dump: TapDump) -> None:
        self._state = state
        self._output = output
        self._vbuckets = vbuckets
        self._dump = dump

    def on_run(self, run: Run) -> None:
        output, context = self._output, self._state.context
        self._dump.has_begun = True
        nbytes = run.end - int(run.offsets[0])
        offsets = np.asarray(run.offsets)
        octets = np.frombuffer(run.buffer, np.uint8)
        flags, is_stored = octets[offsets + _LOW_FLAGS_AT], octets[offsets + OPCODE_AT] == Opcode.TAP_MUTATION
        acks = [_read_ack(run.buffer, offset) for offset in offsets[flags & TapFlag.ACK != 0].tolist()]
        if len(offsets) < SMALL_RUN:
            output.arrived_bytes += nbytes
            changes = decode_messages(inflate_run(run), context)
            self._receive_vbuckets({change.vbucket for change in changes})
            self._vbuckets.count_rows(changes)
            output.rows += changes
            output.acks += acks
            return
        output.flush()
        output.arrived_bytes += nbytes
        run, heads = gather_plain_heads(run)
        batch = decode_columns(run, heads, context)
        self._receive_vbuckets(np.unique(heads.vbucket).tolist())
        self._vbuckets.count_columns(heads.vbucket, is_stored)
        output.acks += acks
        output.deliver(batch)

    def _receive_vbuckets(self, vbuckets: Iterable[int]) -> None:
        for vbucket in vbuckets:
            if self._vbuckets.receive_changes(vbucket):
                self._record_progress()

    def _record_progress(self) -> None:
        """Note that the stream goes on, behind what existed when it began."""
        self._state.recovering.clear()
        self._dump.record_silence()

    def on_frame(self, frame: Frame) -> None:
        if frame.magic == Magic.RESPONSE:
            self._on_answer(frame)
            return
        if frame.opcode == Opcode.NOOP:
            return  # a sign of life, which asks for no answer
        message = decode_frame(frame, self._state.dialect)
        event = EVENTS[self._state.dialect].get(type(message))
        if not isinstance(message, TapMessage) or (event is None and not isinstance(message, TapOpaqueMessage)):
            raise RemoteProtocolError(f"{name_opcode(frame.opcode)} from a producer")
        self._dump.has_begun = True
        self._output.arrived_bytes += frame.size
        if isinstance(message, TapOpaqueMessage):
            self._on_opaque(message)
        elif event is StreamEvent.FLUSH:
            # Of the whole bucket, whatever vbucket stands in the header.
            self._vbuckets.roll_back_all(self._dump.chosen)
        elif event is not None:
            self._vbuckets.advance(message.vbucket, event)
            if event is StreamEvent.STATE:
                self._state.dropped.add(DropReason.VBUCKET_STATE)
        if message.tap_flags & TapFlag.ACK:
            self._output.acks.append(_encode_ack(frame.opcode, frame.opaque))

    def _on_answer(self, frame: Frame) -> None:
        """A producer answers TAP_CONNECT only where it refuses it."""
        if frame.opcode != Opcode.TAP_CONNECT or not frame.specific:
            self._state.dropped.add(DropReason.UNEXPECTED_REPLY)
        else:
            error = make_status_error(frame.specific, f"TAP_CONNECT refused, {name_status(frame.specific)}")
            if not error.retriable:
                raise error
            self._state.failures.add(StreamFailure(None, self._output.connection_id, error))

    def _on_opaque(self, message: TapOpaqueMessage) -> None:
        event = _ENGINE_EVENTS.get(int.from_bytes(message.engine_private, "big"))
        if event is None or len(message.engine_private) != _REMARK_BYTES:
            self._state.dropped.add(DropReason.TAP_OPAQUE)
            return
        self._vbuckets.advance(message.vbucket, event)
        if event is StreamEvent.BACKFILL_START:
            self._vbuckets.roll_back({message.vbucket} & self._vbuckets.with_rows)
        else:
            self._dump.has_closed = True
            self._record_progress()


def _read_ack(buffer: Buffer, offset: int) -> bytes:
    _, opcode, *_, opaque, _ = HEADER.unpack_from(buffer, offset)
    return _encode_ack(opcode, opaque)


def _encode_ack(opcode: int, opaque: int) -> bytes:
    """Return the answer to a message, which acknowledges all before it as well."""
    return TapReply(opaque=opaque).encode(Opcode(opcode))
