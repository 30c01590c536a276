"""The consumer without its socket: what was asked for, what arrived, and what to send next.

A Feed is given the events of one connection after another. It opens streams, checks what they send, turns it into
batches, counts bytes for flow control, and keeps the position of every vbucket, so that a new connection goes on where
the last one ended: nothing is lost, nothing comes twice. A rollback is a row like any other.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.position import BEGINNING, Position, accepted, advance_to, roll_back, stream_request
from penstock.errors import ConnectionClosed, Error, RemoteProtocolError, UsageError, status_error
from penstock.store.failover import FailoverLog
from penstock.wire.columns import (
    SMALL_RUN,
    Heads,
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
from penstock.wire.dcp import BufferAck, CloseStream, DcpNoop, SnapshotMarker, StreamEnd, StreamReq, unpack_rollback
from penstock.wire.frame import Frame, join_frame, opcode_name, status_name
from penstock.wire.kv import unpack_failover_log
from penstock.wire.layout import Request, decode
from penstock.wire.schema import Change, Event, signed64
from penstock.wire.stream import StreamEvent, StreamState, advance, reply_event


@dataclass(frozen=True, slots=True, kw_only=True)
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
    end_seqno: int
    state: StreamState = StreamState.ENDED
    opaque: int = 0
    log: FailoverLog = ()
    """The producer's, newest entry first, from when it accepted the stream last."""
    snap_end: int = 0
    """Where the snapshot of the last marker is complete."""
    requested_seqno: int | None = None
    """What the producer's last ROLLBACK said, until the stream is accepted again."""
    received: int = 0
    """Changes up to here were handed out before the stream began again at 0."""


class Delivery(NamedTuple):
    """What a caller gets at once.

    positions: those behind the changes. nbytes: what the changes took on the wire; connection: the number of the one
    that they came by, to which they are acknowledged.
    """

    content: pa.RecordBatch | list[Change]
    positions: dict[int, Position]
    nbytes: int
    connection: int

    @property
    def batch(self) -> pa.RecordBatch:
        return batch_of(self.content) if isinstance(self.content, list) else self.content

    @property
    def changes(self) -> list[Change]:
        return self.content if isinstance(self.content, list) else changes_of(self.content)


class Feed:
    """The streams of one consumer on one node.

    deliveries: what has arrived and not been handed out, to be taken from the left. queued_bytes: what of them, and of
    deliveries that are not consumed yet, a producer may count against the window. given_up: the vbuckets whose
    producer has another history than `expect_vbuuid`. needs_end: vbuckets whose end is what the producer has now, to
    be asked for and given to `set_end`. failure: why a stream ended or was refused that another try may mend; troubled:
    the vbuckets to which that happened, until they have sent a change again.
    """

    def __init__(
        self,
        vbuckets: int,
        wanted: Mapping[int, Wanted],
        *,
        window: int,
        exact_end: bool = False,
        ends_now: bool = False,
    ) -> None:
        """vbuckets: how many the bucket has. window: flow control, bytes.

        exact_end: leave out changes behind end_seqno, which a producer may send to complete a snapshot. ends_now:
        each connection's first act is to find out where the streams end; the end_seqno of `wanted` says nothing.
        Raises UsageError for a vbucket that the bucket does not have.
        """
        if foreign := [vb for vb in wanted if not 0 <= vb < vbuckets]:
            raise UsageError(f"vbucket {foreign[0]}, expected one below {vbuckets}")
        self.vbuckets = vbuckets
        self.wanted = wanted
        self.window = window
        self.deliveries: deque[Delivery] = deque()
        self.queued_bytes = 0
        self.given_up: list[int] = []
        self.needs_end: set[int] = set()
        self.failure: Error | None = None
        self.troubled: set[int] = set()
        self._exact_end = exact_end
        self._ends_now = ends_now
        self._context = StreamContext(vbuckets)
        self._streams = {vb: _Stream(vb, each, each.position, each.end_seqno) for vb, each in wanted.items()}
        nothing = {vb for vb, each in wanted.items() if _is_nothing(each.position, each.end_seqno)}
        self._unfinished = set(wanted) - (set() if ends_now else nothing)
        self._due: set[int] = set()
        self._by_opaque: dict[int, _Stream] = {}
        self._unanswered = 0
        self._rows: list[Change] = []
        self._moved: set[int] = set()
        self._outgoing: list[bytes] = []
        self._connection = 0
        self._nbytes = 0
        self._unacked = 0
        self.connection_lost()

    # what is asked for

    @property
    def is_done(self) -> bool:
        return not self._unfinished

    @property
    def awaits_replies(self) -> bool:
        """Is a stream request unanswered?"""
        return self._unanswered > 0

    def connection_lost(self) -> None:
        """Forget the streams of a connection, not their positions; the next one goes on behind them."""
        self._connection += 1
        self._by_opaque.clear()
        self._unanswered = self._unacked = 0
        self.failure = None
        self._due = set(self._unfinished)
        self.needs_end = set(self._unfinished) if self._ends_now else set()
        for stream in self._streams.values():
            stream.state = StreamState.ENDED

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        """Say where a vbucket of `needs_end` ends."""
        stream = self._streams[vbucket]
        stream.end_seqno = end_seqno
        self.needs_end.discard(vbucket)
        if _is_nothing(stream.position, end_seqno) and stream.requested_seqno is None:
            self._finish(stream)

    def requests(self, take_opaque: Callable[[], int]) -> list[StreamReq]:
        """Return the stream requests that are due: one for each stream that is neither open nor at its end."""
        due, self._due = sorted(self._due - self.needs_end), self._due & self.needs_end
        return [self._ask(self._streams[vbucket], take_opaque()) for vbucket in due]

    def _ask(self, stream: _Stream, opaque: int) -> StreamReq:
        stream.opaque = opaque
        stream.state = StreamState.REQUESTED
        self._by_opaque[opaque] = stream
        self._unanswered += 1
        return stream_request(stream.vbucket, stream.position, stream.end_seqno, opaque)

    def _finish(self, stream: _Stream) -> None:
        self._unfinished.discard(stream.vbucket)
        self._due.discard(stream.vbucket)
        self.troubled.discard(stream.vbucket)

    def _fail(self, stream: _Stream, failure: Error) -> None:
        """Ask again for a stream, but only on another connection and later: at once would be a busy loop."""
        self.failure = failure
        self.troubled.add(stream.vbucket)

    # what arrives

    def receive(self, events: Iterable[ReceiveEvent]) -> bytes:
        """Take the events of one read and return what must be sent at once: answers to noops, acknowledgements.

        Raises RemoteProtocolError if the producer breaks a rule, StatusError for a refusal that no retry mends.
        """
        for event in events:
            if isinstance(event, Run):
                self._on_run(event)
            elif isinstance(event, Frame):
                self._on_frame(event)
        self._flush()
        self._acknowledge(self._take_count())
        return self._take_outgoing()

    def consumed(self, delivery: Delivery) -> bytes:
        """Note that the caller is done with a delivery; return the acknowledgement to send, if one is due."""
        self.queued_bytes -= delivery.nbytes
        if delivery.connection == self._connection:
            self._acknowledge(delivery.nbytes)
        return self._take_outgoing()

    def _take_count(self) -> int:
        """Return the bytes that arrived since the last delivery: what they held was dropped or dealt with."""
        nbytes, self._nbytes = self._nbytes, 0
        return nbytes

    def _acknowledge(self, nbytes: int, *, at_once: bool = False) -> None:
        """Count bytes as dealt with, and tell the producer when they are a fifth of the window.

        Source: docs/dcp, flow-control.md. What is less is told with the next answer to a NOOP.
        """
        self._unacked += nbytes
        if self._unacked and (at_once or self._unacked * 5 >= self.window):
            self._outgoing.append(BufferAck(nbytes=self._unacked).encode())
            self._unacked = 0

    def _take_outgoing(self) -> bytes:
        outgoing, self._outgoing = b"".join(self._outgoing), []
        return outgoing

    def _on_frame(self, frame: Frame) -> None:
        if frame.magic == Magic.RESPONSE:
            self._on_reply(frame)
            return
        message = decode(frame)
        if isinstance(message, DcpNoop):
            self._outgoing.append(join_frame(Frame(Magic.RESPONSE, frame.opcode, opaque=frame.opaque)))
            self._acknowledge(0, at_once=True)
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
        self._unanswered -= 1
        if event is StreamEvent.ACCEPTED:
            self._on_accepted(stream, unpack_failover_log(frame.value))
            return
        del self._by_opaque[frame.opaque]
        if event is StreamEvent.ROLLBACK:
            self._due.add(stream.vbucket)
            self._roll_back(stream, unpack_rollback(frame.value))
        else:
            self._on_refused(stream, frame.specific)

    def _on_refused(self, stream: _Stream, status: int) -> None:
        about = f"vbucket {stream.vbucket}: stream from {stream.position.seqno} refused, {status_name(status)}"
        error = status_error(status, about, opaque=stream.opaque, vbucket=stream.vbucket)
        if not error.retriable:
            raise error
        self._fail(stream, error)

    def _on_accepted(self, stream: _Stream, log: FailoverLog) -> None:
        vbucket, vbuuid = stream.vbucket, log[0].vbuuid
        if stream.wanted.expect_vbuuid not in (None, vbuuid):
            self._close(stream)
            self.given_up.append(vbucket)
            return
        position = accepted(stream.position, log)
        if stream.requested_seqno is not None:
            position = replace(position, history=position.history + 1)
            self._rows.append(
                Change(
                    vbucket=vbucket,
                    vbuuid=vbuuid,
                    seqno=position.seqno,
                    event=Event.ROLLBACK,
                    history=position.history,
                    requested_seqno=stream.requested_seqno,
                )
            )
            stream.requested_seqno = None
        stream.position, stream.log = position, log
        self._context.vbuuid[vbucket] = signed64(vbuuid)
        self._context.history[vbucket] = position.history
        self._moved.add(vbucket)

    def _roll_back(self, stream: _Stream, requested_seqno: int) -> None:
        position = stream.position
        if not position.seqno:
            raise RemoteProtocolError(f"vbucket {stream.vbucket}: ROLLBACK to {requested_seqno} of a stream from 0")
        if stream.wanted.expect_vbuuid is not None:
            if position.seqno < stream.wanted.purge_seqno:
                stream.received = max(stream.received, position.seqno)
                stream.position = Position(history=position.history)
            else:
                self._finish(stream)
                self.given_up.append(stream.vbucket)
            return
        if stream.requested_seqno is not None:
            requested_seqno = min(requested_seqno, stream.requested_seqno)
        stream.requested_seqno = requested_seqno
        stream.position = roll_back(position, requested_seqno)
        if self._ends_now:
            self.needs_end.add(stream.vbucket)

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
        stream.snap_end = max(marker.end_seqno, position.snap_end)
        self._context.snapshot_start[vbucket] = signed64(marker.start_seqno)
        self._context.snapshot_end[vbucket] = signed64(marker.end_seqno)
        self._context.snapshot_flags[vbucket] = marker.flags

    def _on_end(self, message: StreamEnd, nbytes: int) -> None:
        self._count(nbytes)
        stream = self._stream_of(message)
        if stream is None:
            return
        stream.state = advance(stream.state, StreamEvent.END, stream.vbucket)
        del self._by_opaque[message.opaque]
        at_end = stream.position.seqno >= stream.end_seqno or stream.position.is_complete
        if message.reason == StreamEndReason.OK and stream.end_seqno != MAX_SEQNO and at_end:
            self._finish(stream)
            return
        reasons = StreamEndReason._value2member_map_
        reason = StreamEndReason(message.reason).name if message.reason in reasons else f"reason {message.reason}"
        about = f"vbucket {stream.vbucket}: the producer ended the stream at {stream.position.seqno}, {reason}"
        self._fail(stream, ConnectionClosed(about))

    def _on_run(self, run: Run) -> None:
        nbytes = run.end - int(run.offsets[0])
        if len(run.offsets) < SMALL_RUN:
            self._count(nbytes)
            for change, offset in zip(decode_messages(run, self._context), run.offsets, strict=True):
                opaque = int.from_bytes(run.buffer[offset + 12 : offset + 16], "big")
                seqno = change.seqno or 0
                first, last = self._take(change.vbucket, opaque, seqno, seqno)
                if first <= last:
                    self._rows.append(change)
            return
        self._flush()  # first, or the rows of smaller runs would be handed out with positions behind this one
        self._count(nbytes)
        heads = heads_of(run)
        batch = columns_of(run, heads, self._context)
        keep = self._check(heads)
        if keep is not None:
            batch = batch.filter(keep)
        if batch.num_rows:
            self._deliver(batch)

    def _check(self, heads: Heads) -> pa.Array | None:
        """Check the order of a run, move the positions of its vbuckets, and return which rows stay (None: all)."""
        vbucket, opaque, seqno = heads.vbucket, heads.opaque, heads.by_seqno
        assert seqno is not None
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
        if stream.vbucket != vbucket:
            raise RemoteProtocolError(f"change of vbucket {vbucket} under the opaque of {stream.vbucket}")
        stream.state = advance(stream.state, StreamEvent.DATA, vbucket)
        if least <= stream.position.seqno:
            raise _not_above(vbucket, least, stream.position.seqno)
        if most > stream.snap_end:
            raise RemoteProtocolError(f"vbucket {vbucket}: by_seqno {most} behind its snapshot's end {stream.snap_end}")
        last = min(most, stream.end_seqno) if self._exact_end else most
        if last > stream.position.seqno:
            stream.position = advance_to(stream.position, last, stream.snap_end, stream.log)
            self._moved.add(vbucket)
        self.troubled.discard(vbucket)
        if self._exact_end and most >= stream.end_seqno and stream.snap_end > stream.end_seqno:
            self._close(stream)
        return (max(least, stream.received + 1), last)

    def _close(self, stream: _Stream) -> None:
        """Tell the producer that what is still to come is not wanted."""
        del self._by_opaque[stream.opaque]
        stream.state = advance(stream.state, StreamEvent.CLOSED, stream.vbucket)
        self._finish(stream)
        self._outgoing.append(CloseStream(vbucket=stream.vbucket).encode())

    def _count(self, nbytes: int) -> None:
        self._nbytes += nbytes

    def _flush(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._deliver(rows)

    def _deliver(self, content: pa.RecordBatch | list[Change]) -> None:
        positions = {vbucket: self._streams[vbucket].position for vbucket in self._moved}
        self._moved.clear()
        delivery = Delivery(content, positions, self._take_count(), self._connection)
        self.queued_bytes += delivery.nbytes
        self.deliveries.append(delivery)


def _is_nothing(position: Position, end_seqno: int) -> bool:
    """Is there nothing to stream? Behind seqno 0 a producer is asked in any case: its history may be another one."""
    return position.seqno == end_seqno == 0


def _not_above(vbucket: int, seqno: int, last: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"vbucket {vbucket}: by_seqno {seqno} after {last}", status=Status.ERANGE)
