"""The handling of messages by a TAP feed: changes, flushes, TAP_OPAQUE commands, and their acknowledgements."""

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

_ENGINE_EVENTS: dict[int, StreamEvent] = {
    TapOpaque.INITIAL_VBUCKET_STREAM: StreamEvent.BACKFILL_START,
    TapOpaque.CLOSE_BACKFILL: StreamEvent.BACKFILL_END,
}
"""Commands of TAP_OPAQUE messages that the feed handles. It acknowledges all others and ignores them."""

_LOW_FLAGS_AT = HEADER_BYTES + 3
"""The offset of the lower byte of the flags: after the header and the length of the engine-private data."""

_COMMAND_BYTES = 4


class TapOutput(DeliveryQueue):
    """Deliveries whose messages are acknowledged one by one.

    Attributes:
        acks: encoded acknowledgements of messages that are not in a delivery yet.
    """

    def __init__(self) -> None:
        super().__init__()
        self.acks: list[bytes] = []
        self._tied: deque[tuple[int, bytes]] = deque()

    def deliver(self, content: pa.RecordBatch | list[Change]) -> None:
        """Add a delivery. The collected acknowledgements wait until the caller has consumed it."""
        super().deliver(content)
        self._tie_acks()

    def forget_connections(self, connection_ids: Iterable[int]) -> None:
        """Delete all waiting acknowledgements: TAP has one connection, and it was lost."""
        super().forget_connections(connection_ids)
        self.acks.clear()
        self._tied.clear()

    def acknowledge(self, nbytes: int, *, at_once: bool = False) -> None:
        """Send the acknowledgements of consumed deliveries. TAP has no flow control, so the arguments are not used."""
        self._tie_acks()
        while self._tied and self._tied[0][0] <= self.consumed:
            self.outgoing.append(self._tied.popleft()[1])

    def _tie_acks(self) -> None:
        """Attach the collected acknowledgements to the last delivery. The caller's consumption of it releases them."""
        acks, self.acks = self.acks, []
        self._tied += [(self.delivered, ack) for ack in acks]


class TapMessages:
    """Handles the messages of a TAP connection: the FeedHandler of a TapFeed."""

    def __init__(self, state: FeedState, output: TapOutput, vbuckets: TapVbuckets, dump: TapDump) -> None:
        self._state = state
        self._output = output
        self._vbuckets = vbuckets
        self._dump = dump

    def on_run(self, run: Run) -> None:
        """Deliver the changes of consecutive data messages; a short run becomes rows, a long run becomes a batch."""
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
        """Record that the stream has passed its backfill: a later change, or the end of the backfill, arrived."""
        self._state.recovering.clear()
        self._dump.record_silence()

    def on_frame(self, frame: Frame) -> None:
        """Handle a message that is not part of a run.

        Raises:
            RemoteProtocolError: a producer may not send this message.
            StatusError: the producer refused the stream permanently.
        """
        if frame.magic == Magic.RESPONSE:
            self._on_answer(frame)
            return
        if frame.opcode == Opcode.NOOP:
            return  # a TAP producer expects no reply to a NOOP
        message = decode_frame(frame, self._state.dialect)
        event = EVENTS[self._state.dialect].get(type(message))
        if not isinstance(message, TapMessage) or (event is None and not isinstance(message, TapOpaqueMessage)):
            raise RemoteProtocolError(f"{name_opcode(frame.opcode)} from a producer")
        self._dump.has_begun = True
        self._output.arrived_bytes += frame.size
        if isinstance(message, TapOpaqueMessage):
            self._on_opaque(message)
        elif event is StreamEvent.FLUSH:
            # A flush applies to the whole bucket; the vbucket of its header has no meaning.
            self._vbuckets.roll_back_all(self._dump.chosen)
        elif event is not None:
            self._vbuckets.advance(message.vbucket, event)
            if event is StreamEvent.STATE:
                self._state.dropped.add(DropReason.VBUCKET_STATE)
        if message.tap_flags & TapFlag.ACK:
            self._output.acks.append(_encode_ack(frame.opcode, frame.opaque))

    def _on_answer(self, frame: Frame) -> None:
        """Handle a response. A producer sends a response to TAP_CONNECT only if it refuses the request."""
        if frame.opcode != Opcode.TAP_CONNECT or not frame.specific:
            self._state.dropped.add(DropReason.UNEXPECTED_REPLY)
        else:
            error = make_status_error(frame.specific, f"TAP_CONNECT refused, {name_status(frame.specific)}")
            if not error.retriable:
                raise error
            self._state.failures.add(StreamFailure(None, self._output.connection_id, error))

    def _on_opaque(self, message: TapOpaqueMessage) -> None:
        event = _ENGINE_EVENTS.get(int.from_bytes(message.engine_private, "big"))
        if event is None or len(message.engine_private) != _COMMAND_BYTES:
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
    """Return the response to a message. It also acknowledges all earlier messages."""
    return TapReply(opaque=opaque).encode(Opcode(opcode))
