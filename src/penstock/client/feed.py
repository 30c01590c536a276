"""The consumer without its socket: what was asked for, what arrived, and what to send next.

A Feed is given the events of one connection after another. It opens streams, checks what they send, turns it into
batches, counts bytes for flow control, and keeps the position of every vbucket, so that a new connection goes on where
the last one ended: nothing is lost, nothing comes twice. A rollback is a row like any other.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.position import BEGINNING, Position, complete, roll_back, stream_request
from penstock.errors import RemoteProtocolError, StatusError, status_error
from penstock.wire.columns import (
    SMALL_RUN,
    Column,
    Run,
    StreamContext,
    batch_of,
    changes_of,
    columns_of,
    decode_messages,
    heads_of,
)
from penstock.wire.connection import ReceiveEvent
from penstock.wire.constants import MAX_SEQNO, Magic, Opcode, Status, StreamEndReason
from penstock.wire.dcp import BufferAck, CloseStream, DcpNoop, SnapshotMarker, StreamEnd, unpack_rollback
from penstock.wire.frame import Frame, join_frame, opcode_name
from penstock.wire.kv import unpack_failover_log
from penstock.wire.layout import Request, decode
from penstock.wire.schema import Change, Event, signed64
from penstock.wire.stream import StreamEvent, StreamState, advance, reply_event

FailoverLog = tuple[tuple[int, int], ...]


@dataclass(slots=True, kw_only=True)
class Wanted:
    """One vbucket's stream, asked for.

    position: go on behind it. end_seqno: the last one wanted. expect_vbuuid: give the stream up, without a row and
    without an error, if the producer answers ROLLBACK or its newest branch is another one. purge_seqno: with
    expect_vbuuid, what the producer had purged when the read was planned; below it only a stream from 0 is served, so
    there a ROLLBACK means to begin again at 0 and to leave out what has been received already.
    """

    position: Position = BEGINNING
    end_seqno: int = MAX_SEQNO
    expect_vbuuid: int | None = None
    purge_seqno: int = 0


@dataclass(slots=True)
class _Stream:
    vbucket: int
    wanted: Wanted
    position: Position
    state: StreamState = StreamState.ENDED
    opaque: int = 0
    requested_seqno: int | None = None
    """What the producer's last ROLLBACK said, until the stream is accepted again."""
    received: int = 0
    """Changes up to here were handed out before the stream began again at 0."""
    is_done: bool = False
    is_given_up: bool = False


class Delivery(NamedTuple):
    """What a caller gets at once: changes, the positions behind them, and the bytes they took on the wire."""

    content: pa.RecordBatch | list[Change]
    positions: dict[int, Position]
    nbytes: int

    @property
    def batch(self) -> pa.RecordBatch:
        return batch_of(self.content) if isinstance(self.content, list) else self.content

    @property
    def changes(self) -> list[Change]:
        return self.content if isinstance(self.content, list) else changes_of(self.content)


@dataclass
class Feed:
    """The streams of one consumer on one node.

    vbuckets: how many the bucket has. exact_end: leave out changes behind end_seqno, which a producer may send to
    complete a snapshot. window: flow control, bytes.
    """

    vbuckets: int
    wanted: Mapping[int, Wanted]
    exact_end: bool = False
    window: int = 0
    deliveries: deque[Delivery] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.context = StreamContext(self.vbuckets)
        self._streams = {vb: _Stream(vb, wanted, wanted.position) for vb, wanted in self.wanted.items()}
        self._by_opaque: dict[int, _Stream] = {}
        self._rows: list[Change] = []
        self._moved: set[int] = set()
        self._outgoing: list[bytes] = []
        self._nbytes = 0
        self._unacked = 0
        self.queued_bytes = 0
        self.refusal: StatusError | None = None
        """The last refusal that a later try may mend."""
        self.needs_end: set[int] = set()
        """Vbuckets that were rolled back: an end that meant "now" may no longer exist there."""
        for stream in self._streams.values():
            self.context.history[stream.vbucket] = stream.position.history
            stream.is_done = stream.position.seqno >= stream.wanted.end_seqno

    # what is asked for

    @property
    def is_done(self) -> bool:
        return all(stream.is_done for stream in self._streams.values())

    @property
    def given_up(self) -> list[int]:
        """The vbuckets whose producer has another history than `expect_vbuuid`."""
        return [stream.vbucket for stream in self._streams.values() if stream.is_given_up]

    def connection_lost(self) -> None:
        """Forget the streams of a connection, not their positions."""
        self._by_opaque.clear()
        self._unacked = self._nbytes = self.queued_bytes = 0
        for stream in self._streams.values():
            stream.state = StreamState.ENDED

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        """Replace the end of a vbucket that was rolled back."""
        stream = self._streams[vbucket]
        stream.wanted.end_seqno = end_seqno
        stream.is_done = stream.position.seqno >= end_seqno and stream.requested_seqno is None
        self.needs_end.discard(vbucket)

    def requests(self, take_opaque: Callable[[], int]) -> list[Request]:
        """Return the stream requests that are due: one for each stream that is neither open nor done."""
        due: list[Request] = []
        for stream in self._streams.values():
            if stream.is_done or stream.state is not StreamState.ENDED or stream.vbucket in self.needs_end:
                continue
            stream.opaque = take_opaque()
            stream.state = StreamState.REQUESTED
            self._by_opaque[stream.opaque] = stream
            request = stream_request(stream.vbucket, stream.position, stream.wanted.end_seqno)
            due.append(replace(request, opaque=stream.opaque))
        return due

    # what arrives

    def receive(self, events: Iterable[ReceiveEvent]) -> bytes:
        """Take the events of one read and return what must be sent at once (answers to noops).

        Raises RemoteProtocolError if the producer breaks a rule, StatusError for a refusal that no retry mends.
        """
        for event in events:
            if isinstance(event, Run):
                self._on_run(event)
            elif isinstance(event, Frame):
                self._on_frame(event)
        self._flush()
        if not self.deliveries:
            self._unacked += self._nbytes
            self.queued_bytes -= self._nbytes
            self._nbytes = 0
            self._acknowledge()
        outgoing, self._outgoing = b"".join(self._outgoing), []
        return outgoing

    def consumed(self, delivery: Delivery) -> bytes:
        """Note that the caller is done with a delivery; return the acknowledgement to send, if one is due."""
        self.queued_bytes -= delivery.nbytes
        self._unacked += delivery.nbytes
        self._acknowledge()
        outgoing, self._outgoing = b"".join(self._outgoing), []
        return outgoing

    def _acknowledge(self) -> None:
        if self.window and self._unacked * 5 >= self.window:
            acked, self._unacked = self._unacked, 0
            self._outgoing.append(BufferAck(nbytes=acked).encode())

    def _on_frame(self, frame: Frame) -> None:
        if frame.magic == Magic.RESPONSE:
            self._on_reply(frame)
            return
        message = decode(frame)
        if isinstance(message, DcpNoop):
            self._outgoing.append(join_frame(Frame(Magic.RESPONSE, frame.opcode, opaque=frame.opaque)))
        elif isinstance(message, SnapshotMarker):
            self._on_marker(message, frame.size)
        elif isinstance(message, StreamEnd):
            self._on_end(message, frame.size)
        else:
            raise RemoteProtocolError(f"{opcode_name(frame.opcode)} from a producer")

    def _on_reply(self, frame: Frame) -> None:
        stream = self._by_opaque.get(frame.opaque)
        if stream is None or frame.opcode != Opcode.DCP_STREAM_REQ:
            return
        event = reply_event(frame.specific)
        stream.state = advance(stream.state, event, stream.vbucket)
        if event is StreamEvent.ACCEPTED:
            self._accepted(stream, unpack_failover_log(frame.value))
            return
        del self._by_opaque[frame.opaque]
        if event is StreamEvent.ROLLBACK:
            self._roll_back(stream, unpack_rollback(frame.value))
        else:
            error = status_error(
                frame.specific,
                f"vbucket {stream.vbucket}: stream from {stream.position.seqno} refused, "
                f"status 0x{frame.specific:02x} {_status_name(frame.specific)}",
                vbucket=stream.vbucket,
            )
            if not error.retriable:
                raise error
            self.refusal = error

    def _accepted(self, stream: _Stream, log: FailoverLog) -> None:
        vbuuid, position = log[0][0], stream.position
        if stream.wanted.expect_vbuuid not in (None, vbuuid):
            self._give_up(stream)
            return
        if stream.requested_seqno is not None:
            position = replace(position, history=position.history + 1)
            self._rows.append(
                Change(
                    vbucket=stream.vbucket,
                    vbuuid=vbuuid,
                    seqno=position.seqno,
                    event=Event.ROLLBACK,
                    history=position.history,
                    requested_seqno=stream.requested_seqno,
                )
            )
            stream.requested_seqno = None
        stream.position = replace(position, vbuuid=vbuuid)
        self.context.vbuuid[stream.vbucket] = signed64(vbuuid)
        self.context.history[stream.vbucket] = position.history
        self._moved.add(stream.vbucket)

    def _roll_back(self, stream: _Stream, requested_seqno: int) -> None:
        if stream.wanted.expect_vbuuid is not None:
            if not 0 < stream.position.seqno < stream.wanted.purge_seqno:
                self._give_up(stream)
                return
            stream.received = max(stream.received, stream.position.seqno)
            stream.position = Position(history=stream.position.history)
            return
        if stream.requested_seqno is not None:
            requested_seqno = min(requested_seqno, stream.requested_seqno)
        if not stream.position.seqno:
            raise RemoteProtocolError(f"vbucket {stream.vbucket}: ROLLBACK to {requested_seqno} of a stream from 0")
        stream.requested_seqno = requested_seqno
        stream.position = roll_back(stream.position, requested_seqno)
        if stream.wanted.end_seqno != MAX_SEQNO:
            self.needs_end.add(stream.vbucket)

    def _give_up(self, stream: _Stream) -> None:
        stream.is_given_up = stream.is_done = True
        self._by_opaque.pop(stream.opaque, None)

    def _stream_of(self, message: Request) -> _Stream | None:
        """Return the message's stream, or None for one that was given up or belongs to an ended one."""
        stream = self._by_opaque.get(message.opaque)
        if stream is not None and stream.vbucket != message.vbucket:
            raise RemoteProtocolError(
                f"{opcode_name(message.opcode)} of vbucket {message.vbucket} under the opaque of {stream.vbucket}"
            )
        return stream

    def _on_marker(self, marker: SnapshotMarker, nbytes: int) -> None:
        self._count(nbytes)
        stream = self._stream_of(marker)
        if stream is None:
            return
        vbucket, position = stream.vbucket, stream.position
        stream.state = advance(stream.state, StreamEvent.MARKER, vbucket)
        if marker.start_seqno > marker.end_seqno or marker.end_seqno < position.seqno:
            raise RemoteProtocolError(
                f"vbucket {vbucket}: snapshot {marker.start_seqno}..{marker.end_seqno} after seqno {position.seqno}",
                status=Status.ERANGE,
            )
        stream.position = replace(
            position, snap_start=min(marker.start_seqno, position.seqno), snap_end=marker.end_seqno
        )
        self.context.snapshot_start[vbucket] = signed64(marker.start_seqno)
        self.context.snapshot_end[vbucket] = signed64(marker.end_seqno)
        self.context.snapshot_flags[vbucket] = marker.flags

    def _on_end(self, message: StreamEnd, nbytes: int) -> None:
        self._count(nbytes)
        stream = self._stream_of(message)
        if stream is None:
            return
        stream.state = advance(stream.state, StreamEvent.END, stream.vbucket)
        del self._by_opaque[message.opaque]
        at_end = stream.position.seqno >= stream.wanted.end_seqno or stream.position.is_complete
        if message.reason == StreamEndReason.OK and stream.wanted.end_seqno != MAX_SEQNO and at_end:
            stream.is_done = True

    def _on_run(self, run: Run) -> None:
        self._count(run.end - int(run.offsets[0]))
        if len(run.offsets) < SMALL_RUN:
            for change, offset in zip(decode_messages(run, self.context), run.offsets, strict=True):
                opaque = int.from_bytes(run.buffer[offset + 12 : offset + 16], "big")
                least, most = self._take(change.vbucket, opaque, change.seqno, change.seqno)
                if least <= most:
                    self._rows.append(change)
            return
        heads = heads_of(run)
        batch = columns_of(run, heads, self.context)
        keep = self._check(heads.fields)
        self._flush()
        if keep is not None:
            batch = batch.filter(keep)
        if batch.num_rows:
            self._deliver(batch)

    def _check(self, fields: Column) -> pa.Array | None:
        """Check the order of a run, move the positions of its vbuckets, and return which rows stay (None: all)."""
        vbucket, opaque, seqno = fields["vbucket"], fields["opaque"], fields["by_seqno"].astype(np.uint64)
        changes = (vbucket[1:] != vbucket[:-1]) | (opaque[1:] != opaque[:-1])
        out_of_order = ~changes & (seqno[1:] <= seqno[:-1])
        if out_of_order.any():
            at = int(np.argmax(out_of_order)) + 1
            raise _not_above(int(vbucket[at]), int(seqno[at]), int(seqno[at - 1]))
        bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(seqno)]
        keep: npt.NDArray[np.bool_] | None = None
        for first, behind in itertools.pairwise(bounds):
            least, most = int(seqno[first]), int(seqno[behind - 1])
            wanted = self._take(int(vbucket[first]), int(opaque[first]), least, most)
            if wanted != (least, most):
                keep = np.ones(len(seqno), bool) if keep is None else keep
                part = seqno[first:behind]
                keep[first:behind] = (part >= wanted[0]) & (part <= wanted[1])
        return None if keep is None else pa.array(keep)

    def _take(self, vbucket: int, opaque: int, least: int, most: int) -> tuple[int, int]:
        """Move a vbucket's position over changes `least` to `most`; return which of them are wanted, as (first, last).

        (1, 0): none, because the stream was given up, closed or ended.
        """
        stream = self._by_opaque.get(opaque)
        if stream is None:
            return (1, 0)
        position = stream.position
        if stream.vbucket != vbucket:
            raise RemoteProtocolError(f"change of vbucket {vbucket} under the opaque of {stream.vbucket}")
        stream.state = advance(stream.state, StreamEvent.DATA, vbucket)
        if least <= position.seqno:
            raise _not_above(vbucket, least, position.seqno)
        if most > position.snap_end:
            raise RemoteProtocolError(
                f"vbucket {vbucket}: by_seqno {most} behind its snapshot's end {position.snap_end}"
            )
        last = min(most, stream.wanted.end_seqno) if self.exact_end else most
        position = replace(position, seqno=last)
        stream.position = complete(position) if last == position.snap_end else position
        self._moved.add(vbucket)
        if last < most:
            self._close(stream)
        return (max(least, stream.received + 1), last)

    def _close(self, stream: _Stream) -> None:
        """Tell the producer that what is still to come of this snapshot is not wanted."""
        del self._by_opaque[stream.opaque]
        stream.state = advance(stream.state, StreamEvent.CLOSED, stream.vbucket)
        stream.is_done = True
        self._outgoing.append(CloseStream(vbucket=stream.vbucket).encode())

    def _count(self, nbytes: int) -> None:
        self._nbytes += nbytes
        self.queued_bytes += nbytes

    def _flush(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._deliver(rows)

    def _deliver(self, content: pa.RecordBatch | list[Change]) -> None:
        positions = {vbucket: self._streams[vbucket].position for vbucket in self._moved}
        self.deliveries.append(Delivery(content, positions, self._nbytes))
        self._nbytes = 0
        self._moved.clear()


def _not_above(vbucket: int, seqno: int, last: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"vbucket {vbucket}: by_seqno {seqno} after {last}", status=Status.ERANGE)


def _status_name(status: int) -> str:
    return Status(status).name if status in Status._value2member_map_ else "unknown"
