"""The consumer of TAP without its socket: one stream for all vbuckets, without positions and without an end message.

TAP cannot resume. A producer begins a vbucket anew with INITIAL_VBUCKET_STREAM; a rollback row to 0 then cuts off what
the vbucket had. Only what the producer announces, or flushes, is cut off: after a crash, ep-engine 3.1.6 announces
nothing, sends no backfill and goes on. A lost connection ends a stream of what comes from now on.

A dump ends when the producer closes the connection. Item counts tell whether the dump is complete. Vbuckets that lack
documents are cut off and dumped again; the others are not asked for a second time.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable

import numpy as np
import pyarrow as pa

from penstock.client.connect.dropped import DropReason
from penstock.client.feeds.follower import Failure, Follower
from penstock.client.feeds.item_counts import ItemCounts, Shortfall, describe_shortfalls, find_shortfalls
from penstock.errors import ConnectionClosed, RemoteProtocolError, Unreachable, UsageError, status_error
from penstock.wire.columns import SMALL_RUN, columns_of, decode_messages
from penstock.wire.constants import Dialect, Magic, Opcode, TapConnectFlag, TapFlag, TapOpaque
from penstock.wire.frame import HEADER, HEADER_BYTES, Buffer, Frame, opcode_name, status_name
from penstock.wire.heads import Run
from penstock.wire.inflated import inflate_run, plain_heads
from penstock.wire.layout import decode
from penstock.wire.schema import Change, Event
from penstock.wire.stream import EVENTS, StreamEvent, StreamState, advance
from penstock.wire.tap import TapConnect, TapMessage, TapOpaqueMessage, TapOptions, TapReply

_FUTURE = 2**64 - 1
"""As the date of a backfill: only what comes. Source: TAP, "Backfill"."""

_MOST_LOOKS = 5
"""Dumps in a row that bring a bounded read no nearer to its end. ep-engine dumps what is on disk, which may lag."""

_REMARKS: dict[int, StreamEvent] = {
    TapOpaque.INITIAL_VBUCKET_STREAM: StreamEvent.BACKFILL_START,
    TapOpaque.CLOSE_BACKFILL: StreamEvent.BACKFILL_END,
}
"""The remarks of a producer's engine that mean something here. The others are acknowledged."""


class TapFeed(Follower):
    """What one TAP connection after another says. Attributes as of Follower; there are no positions."""

    def __init__(
        self,
        vbuckets: int,
        chosen: Collection[int],
        *,
        window: int,
        from_now: bool = False,
        until_now: bool = False,
        values: bool = True,
    ) -> None:
        """chosen: the vbuckets to follow. from_now: nothing of what exists. until_now: nothing of what comes. values:
        with values; if not, a node that can leaves them out.

        Raises UsageError for a vbucket that the bucket does not have.
        """
        if foreign := [vb for vb in chosen if not 0 <= vb < vbuckets]:
            raise UsageError(f"vbucket {foreign[0]}, expected one below {vbuckets}")
        super().__init__(Dialect.TAP, vbuckets, window, {})
        self._chosen = self._due = frozenset(chosen)
        self._from_now = from_now
        self._until_now = until_now
        self.values = self._context.values = values
        self._is_done = not self._chosen or (from_now and until_now)
        self._states: dict[int, StreamState] = {}
        self._stored, self._deleted = np.zeros((2, vbuckets), np.int64)
        """By vbucket, the changes since it was cut off, of either kind."""
        self._before: ItemCounts | None = None
        self._is_to_judge = False
        self._looks, self._lacking = 0, sys.maxsize
        self._has_rows: set[int] = set()
        self._cut_off: set[int] = set()
        self._connections = 0
        self._acks: list[bytes] = []
        self._tied: deque[tuple[int, bytes]] = deque()
        self.connection_lost()

    # what is asked for

    def unfinished(self) -> Collection[int]:
        return self._chosen

    @property
    def is_done(self) -> bool:
        return self._is_done

    @property
    def can_go_on(self) -> bool:
        return not (self._from_now and self._is_asked)

    @property
    def is_endless(self) -> bool:
        return not self._until_now

    def connection_lost(self, via: int | None = None) -> Collection[int]:
        lost = super().connection_lost(via)
        self._connections += 1
        self._is_asked = self._has_ended = self._is_checked = False
        self.needs_counts = not (self._from_now or self._is_done)
        # TAP has no seqnos to end at; but a dump must not pass over vbuckets that are not served.
        self.needs_end = set(self._due) if self._until_now and not self._is_done else set()
        self._acks.clear()
        self._tied.clear()
        if self._connections > 1 and not self._is_done:
            self.troubled = set(self._chosen)
        return lost

    def connection_ended(self) -> bool:
        """As of Follower. A dump ends with its connection; the counts, asked for once, tell whether it is complete."""
        if not self._has_ended:
            self._has_ended = self.needs_counts = self._until_now and self._has_begun
        return self._has_ended

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        self.needs_end.discard(vbucket)

    def leave_out(self, vbucket: int) -> None:
        self.needs_end.discard(vbucket)
        self._chosen -= {vbucket}
        self._due -= {vbucket}
        self._is_done = self._is_done or not self._due

    def requests(self, take_opaque: Callable[[], int], held: Collection[int] = ()) -> list[TapConnect]:
        if self._is_asked or self._is_done or held:
            return []
        self._is_asked, self._is_to_judge = True, self._until_now
        self._has_begun = self._has_closed = False
        self._states = dict.fromkeys(self._due, advance(StreamState.REQUESTED, StreamEvent.ACCEPTED, 0, self.dialect))
        flags = TapConnectFlag.SUPPORT_ACK | TapConnectFlag.FIX_FLAG_BYTEORDER
        if self._from_now:
            flags |= TapConnectFlag.BACKFILL
        if self._until_now:
            flags |= TapConnectFlag.DUMP
        if not self.values:
            flags |= TapConnectFlag.REQUEST_KEYS_ONLY
        if len(self._due) < self.vbuckets:
            flags |= TapConnectFlag.LIST_VBUCKETS
        options = TapOptions(flags, backfill=_FUTURE, vbuckets=tuple(sorted(self._due)))
        return [TapConnect(flags=flags, value=options.pack(), opaque=take_opaque())]

    # is it complete?

    @property
    def unsettled(self) -> bool:
        is_followed = self._is_asked and not (self._is_checked or self._from_now or self._until_now)
        return is_followed and StreamState.IN_BACKFILL not in self._states.values()

    def settle(self) -> None:
        if self.unsettled:
            self._is_checked = self.needs_counts = True

    def set_counts(self, counts: ItemCounts | None) -> str:
        self.needs_counts = False
        if self._has_ended:
            self._end(counts)
            return ""
        if self._is_asked:
            if StreamState.IN_BACKFILL in self._states.values():
                self._is_checked = False  # the producer began a vbucket anew meanwhile: what it had is cut off
                return ""
            return self._warning(counts)
        if self._is_to_judge:
            self._dump_again(counts)
        self._before = counts
        return ""

    def _warning(self, counts: ItemCounts | None) -> str:
        """Return what a stream that follows lacks. Deletions count: ep-engine sends expired documents as such."""
        if counts is None or self._before is None:
            return ""
        received = (self._stored + self._deleted).tolist()
        lacking = find_shortfalls(self._chosen, received, self._before, counts)
        if not lacking:
            return ""
        return (
            f"the TAP stream has {describe_shortfalls(lacking)}, and the producer sends no more of them; "
            "a dump (stop 'now') reads what is on disk"
        )

    def _end(self, counts: ItemCounts | None) -> None:
        """Decide whether a dump that ended in order is complete.

        Vbuckets that lack documents are looked at once more before they are dumped again: ep-engine sends expired
        documents as deletions, and counts them for a moment longer.
        """
        incomplete, reason = self._incomplete(counts)
        self._due = frozenset(incomplete)
        self._is_done = not incomplete
        if incomplete:
            self.failures.append(Failure(None, self._via, ConnectionClosed(reason)))

    def _dump_again(self, counts: ItemCounts | None) -> None:
        """Decide which vbuckets of a dump that fell short, or was lost, are dumped again. Raises Unreachable."""
        self._is_to_judge = False
        incomplete, reason = self._incomplete(counts)
        self._due = frozenset(incomplete)
        self._is_done = not incomplete
        lacking = sum(max(each.counted - each.received, 0) for each in incomplete.values())
        self._looks = 0 if lacking < self._lacking else self._looks + self._has_begun
        self._lacking = lacking
        if incomplete and self._looks >= _MOST_LOOKS:
            raise Unreachable(f"{self._looks} TAP dumps in a row brought no more: {reason}")
        self._restart(self._due & self._has_rows)
        self._flush()

    def _incomplete(self, counts: ItemCounts | None) -> tuple[dict[int, Shortfall], str]:
        """Return the vbuckets to be dumped again, and why. Without counts a clean end is the end."""
        if counts is not None and self._before is not None:
            lacking = find_shortfalls(self._due, self._stored.tolist(), self._before, counts)
            return lacking, f"the dump has {describe_shortfalls(lacking)}"
        is_whole = self._has_ended and not (self._has_closed and StreamState.IN_BACKFILL in self._states.values())
        found = {} if is_whole else {vb: Shortfall(int(self._stored[vb]), 0) for vb in self._due}
        return found, "the producer closed the connection during a backfill"

    # what arrives

    def _on_run(self, run: Run) -> None:
        self._has_begun = True
        nbytes = run.end - int(run.offsets[0])
        offsets = np.asarray(run.offsets)
        octets = np.frombuffer(run.buffer, np.uint8)
        flags, stored = octets[offsets + _LOW_FLAGS_AT], octets[offsets + _OPCODE_AT] == Opcode.TAP_MUTATION
        acks = [_ack_of(run.buffer, offset) for offset in offsets[flags & TapFlag.ACK != 0].tolist()]
        if len(offsets) < SMALL_RUN:
            self._nbytes += nbytes
            changes = decode_messages(inflate_run(run), self._context)
            self._take({change.vbucket for change in changes})
            for change in changes:
                kind = self._stored if change.event == Event.MUTATION else self._deleted
                kind[change.vbucket] += 1
            self._rows += changes
            self._acks += acks
            return
        self._flush()
        self._nbytes += nbytes
        run, heads = plain_heads(run)
        batch = columns_of(run, heads, self._context)
        self._take(np.unique(heads.vbucket).tolist())
        for kind, rows in ((self._stored, stored), (self._deleted, ~stored)):
            kind += np.bincount(heads.vbucket[rows], minlength=self.vbuckets)
        self._acks += acks
        self._deliver(batch)

    def _take(self, vbuckets: Iterable[int]) -> None:
        for vbucket in vbuckets:
            self._advance(vbucket, StreamEvent.DATA)
            self._has_rows.add(vbucket)
            self._cut_off.discard(vbucket)
            if self._states[vbucket] is not StreamState.IN_BACKFILL:
                self.troubled.clear()
                self.settle()

    def _on_frame(self, frame: Frame) -> None:
        if frame.magic == Magic.RESPONSE:
            self._on_answer(frame)
            return
        if frame.opcode == Opcode.NOOP:
            return  # a sign of life, which asks for no answer
        message = decode(frame, self.dialect)
        event = EVENTS[self.dialect].get(type(message))
        if not isinstance(message, TapMessage) or (event is None and not isinstance(message, TapOpaqueMessage)):
            raise RemoteProtocolError(f"{opcode_name(frame.opcode)} from a producer")
        self._has_begun = True
        self._nbytes += frame.size
        if isinstance(message, TapOpaqueMessage):
            self._on_remark(message)
        elif event is StreamEvent.FLUSH:
            # Of the whole bucket, whatever vbucket stands in the header; but not twice for nothing in between.
            self._restart(self._chosen - self._cut_off)
        elif event is not None:
            self._advance(message.vbucket, event)
            if event is StreamEvent.STATE:
                self.dropped.add(DropReason.STATE)
        if message.tap_flags & TapFlag.ACK:
            self._acks.append(_ack(frame.opcode, frame.opaque))

    def _on_answer(self, frame: Frame) -> None:
        """A producer answers TAP_CONNECT only where it refuses it."""
        if frame.opcode != Opcode.TAP_CONNECT or not frame.specific:
            self.dropped.add(DropReason.UNEXPECTED_REPLY)
        else:
            error = status_error(frame.specific, f"TAP_CONNECT refused, {status_name(frame.specific)}")
            if not error.retriable:
                raise error
            self.failures.append(Failure(None, self._via, error))

    def _on_remark(self, message: TapOpaqueMessage) -> None:
        event = _REMARKS.get(int.from_bytes(message.engine_private, "big"))
        if event is None or len(message.engine_private) != _REMARK_BYTES:
            self.dropped.add(DropReason.REMARK)
            return
        self._advance(message.vbucket, event)
        if event is StreamEvent.BACKFILL_START:
            self._restart({message.vbucket} & self._has_rows)
        else:
            self._has_closed = True
            self.troubled.clear()
            self.settle()

    def _advance(self, vbucket: int, event: StreamEvent) -> None:
        state = self._states.get(vbucket)
        if state is None:
            raise RemoteProtocolError(f"{event.value} of vbucket {vbucket}, which was not asked for")
        self._states[vbucket] = advance(state, event, vbucket, self.dialect)

    def _restart(self, vbuckets: Collection[int]) -> None:
        """Cut off what the vbuckets had up to here."""
        for vbucket in sorted(vbuckets):
            self._context.history[vbucket] += 1
            history = int(self._context.history[vbucket])
            self._rows.append(Change(vbucket, None, 0, event=Event.ROLLBACK, history=history, requested_seqno=0))
            self._stored[vbucket] = self._deleted[vbucket] = 0
        self._has_rows = self._has_rows.difference(vbuckets)
        self._cut_off = self._cut_off.union(vbuckets)

    # what is dealt with

    def _deliver(self, content: pa.RecordBatch | list[Change]) -> None:
        super()._deliver(content)
        self._tie_acks()

    def _tie_acks(self) -> None:
        """Let what is to be acknowledged wait for the delivery that holds it, or the last one in front of it."""
        acks, self._acks = self._acks, []
        self._tied += [(self._delivered, ack) for ack in acks]

    def _dealt_with(self, nbytes: int, *, at_once: bool = False) -> None:
        self._tie_acks()
        while self._tied and self._tied[0][0] <= self._consumed:
            self._outgoing.append(self._tied.popleft()[1])


_OPCODE_AT = 1

_LOW_FLAGS_AT = HEADER_BYTES + 3
"""Where the lower byte of the flags lies: behind the header and the length of the engine-private data."""

_REMARK_BYTES = 4


def _ack_of(buffer: Buffer, offset: int) -> bytes:
    _, opcode, *_, opaque, _ = HEADER.unpack_from(buffer, offset)
    return _ack(opcode, opaque)


def _ack(opcode: int, opaque: int) -> bytes:
    """Return the answer to a message, which acknowledges all before it as well."""
    return TapReply(opaque=opaque).encode(Opcode(opcode))
