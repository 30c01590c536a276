"""The requests of a consumer: which streams are due, asked for, or open, and over which connection.

A stream is known by the opaque of its request. Where a dialect has to know the failover log first, the log is asked
for, then the stream, and then the log again: only if both logs are the same did the stream begin in the history that
was decided upon. Until then no snapshot counts as complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from enum import Enum
from operator import itemgetter
from typing import NamedTuple

from penstock.client.feeds.collection_selection import CollectionFilter
from penstock.client.feeds.consumer_feed import FeedState
from penstock.client.feeds.dialect_rules import DIALECT_RULES, LogFirstRules
from penstock.client.feeds.resume_policy import Resumption
from penstock.client.feeds.stream_set import StreamSet
from penstock.client.feeds.vbucket_stream import VbucketStream
from penstock.wire.codec.layout import Request
from penstock.wire.protocol.stream_state import StreamEvent, StreamState, advance_state

__all__ = ["LogPurpose", "LogRequest", "StreamRequests"]


class LogPurpose(Enum):
    """Why a failover log is asked for."""

    DECIDE_START = "in front of a stream request: where does the stream go on?"
    CONFIRM = "behind a stream request: is the history still the same?"
    LEARN_BRANCHES = "behind a flush: what are its branches called?"


class LogRequest(NamedTuple):
    """A failover log that was asked for. of: the opaque of the stream that it was asked about."""

    stream: VbucketStream
    purpose: LogPurpose
    stream_opaque: int


class StreamRequests:
    """The requests of a set of streams.

    Attributes:
        log_first: the dialect, if the consumer has to ask it for failover logs; else None.
        by_opaque: the streams whose messages are taken.
        has_abandoned_stream: a producer goes on with a stream that was given up.
    """

    def __init__(self, state: FeedState, streams: StreamSet, collection_filter: CollectionFilter | None) -> None:
        self.rules = DIALECT_RULES[state.dialect]
        self.log_first = self.rules if isinstance(self.rules, LogFirstRules) else None
        self.by_opaque: dict[int, VbucketStream] = {}
        self.has_abandoned_stream = False
        self._state = state
        self._streams = streams
        self._filter = collection_filter
        self._due: set[int] = set()
        self._logs_due: dict[int, LogPurpose] = {}
        self._logs: dict[int, LogRequest] = {}
        self._requested: set[int] = set()

    def count_unanswered(self, connection_id: int) -> int:
        """Return how many requests on this connection are unanswered."""
        streams = [self.by_opaque[opaque] for opaque in self._requested]
        streams += [each.stream for each in self._logs.values()]
        return sum(stream.connection_id == connection_id for stream in streams)

    def forget_connection(self, connection_id: int | None, lost: Collection[int]) -> None:
        """Forget a connection, None: any, and make its unfinished vbuckets due."""
        for opaque in [
            opaque for opaque, stream in self.by_opaque.items() if connection_id in (None, stream.connection_id)
        ]:
            self.forget(opaque)
        self._logs = {
            opaque: each
            for opaque, each in self._logs.items()
            if connection_id not in (None, each.stream.connection_id)
        }
        self.has_abandoned_stream = self.has_abandoned_stream and bool(self.by_opaque)
        if self._streams.ends_now:
            self._state.pending_ends.update(lost)
        for vbucket in self._streams.by_vbucket if connection_id is None else lost:
            stream = self._streams.by_vbucket[vbucket]
            stream.state = StreamState.ENDED
            stream.opaque, stream.has_ended = 0, False
            self._logs_due.pop(vbucket, None)
        self._due.difference_update(lost)
        for vbucket in lost:
            self.schedule(vbucket)

    def request_again(self, vbuckets: Collection[int]) -> None:
        """Make due the streams of these vbuckets, as far as they are not open."""
        for vbucket in self._streams.unfinished.intersection(vbuckets):
            stream = self._streams.by_vbucket[vbucket]
            if stream.state is StreamState.ENDED and not stream.has_ended:
                self.schedule(vbucket)

    def schedule(self, vbucket: int) -> None:
        """Ask for a stream, or first for what has to be known before."""
        if self.log_first is None:
            self._due.add(vbucket)
        else:
            self._logs_due[vbucket] = LogPurpose.DECIDE_START

    def schedule_stream(self, vbucket: int) -> None:
        """Ask for a stream at once."""
        self._due.add(vbucket)

    def schedule_log(self, vbucket: int, use: LogPurpose) -> None:
        self._logs_due[vbucket] = use

    def take_due_requests(self, allocate_opaque: Callable[[], int], held: Collection[int]) -> list[Request]:
        """Return the requests that are due: one for each stream that is neither open nor at its end.

        held: vbuckets to leave out, since their node is away.
        """
        if not (self._due or self._logs_due):
            return []
        unfinished, waiting = self._streams.unfinished, self._state.pending_ends.union(held)
        self._due &= unfinished
        due, self._due = sorted(self._due - waiting), self._due & waiting
        requests = [
            self._request_stream(self._streams.by_vbucket[vbucket], self._allocate_opaque(allocate_opaque))
            for vbucket in due
        ]
        logs_due = {vb: use for vb, use in self._logs_due.items() if vb in unfinished}
        self._logs_due = {vb: use for vb, use in logs_due.items() if vb in held}
        logs = sorted(((vb, use) for vb, use in logs_due.items() if vb not in held), key=itemgetter(0))
        return requests + [self._request_log(vb, use, self._allocate_opaque(allocate_opaque)) for vb, use in logs]

    def _allocate_opaque(self, allocate_opaque: Callable[[], int]) -> int:
        """Return an opaque that nothing has: all messages of a stream are known by it alone."""
        while (opaque := allocate_opaque()) in self.by_opaque or opaque in self._logs:
            continue
        return opaque

    def _request_stream(self, stream: VbucketStream, opaque: int) -> Request:
        stream.opaque = opaque
        stream.connection_id = self._state.find_connection_id(stream.vbucket)
        stream.state = StreamState.REQUESTED
        stream.is_whole = False
        stream.least_start = stream.position.snap_start
        if self.log_first is not None:
            stream.is_confirmed = False
            self._logs_due[stream.vbucket] = LogPurpose.CONFIRM
        self.by_opaque[opaque] = stream
        self._state.opaques[stream.connection_id].add(opaque)
        self._requested.add(opaque)
        request = self.rules.make_stream_request(stream.vbucket, stream.position, stream.end_seqno, opaque, stream.log)
        return (
            replace(request, value=self._filter.request_value)
            if self._filter and self._filter.request_value
            else request
        )

    def _request_log(self, vbucket: int, use: LogPurpose, opaque: int) -> Request:
        assert self.log_first is not None
        stream = self._streams.by_vbucket[vbucket]
        if (before := self._logs.get(stream.log_opaque)) is not None and before.stream is stream:
            del self._logs[stream.log_opaque]  # it asked about what is over; one question each is enough
        stream.log_opaque = opaque
        if stream.state is StreamState.ENDED:
            stream.connection_id = self._state.find_connection_id(vbucket)
        self._logs[opaque] = LogRequest(stream, use, stream.opaque)
        return self.log_first.make_log_request(vbucket, opaque)

    def pop_log_request(self, opaque: int) -> LogRequest | None:
        """Return the log request that has this opaque, and expect no other answer to it."""
        return self._logs.pop(opaque, None)

    def mark_answered(self, opaque: int) -> None:
        self._requested.discard(opaque)

    def find_stream(self, opaque: int) -> VbucketStream | None:
        """Return the stream that has this opaque on the connection that is dealt with at the moment."""
        stream = self.by_opaque.get(opaque)
        return stream if stream is not None and stream.connection_id == self._state.output.connection_id else None

    def forget(self, opaque: int) -> None:
        """Take no more messages of a stream."""
        self.by_opaque.pop(opaque, None)
        self._requested.discard(opaque)

    def close(self, stream: VbucketStream) -> None:
        """Request that the producer sends nothing more of a stream."""
        self.forget(stream.opaque)
        stream.state = advance_state(stream.state, StreamEvent.CLOSED, stream.vbucket, self._state.dialect)
        closing = self.rules.encode_close_request(stream.vbucket)
        if stream.connection_id == self._state.output.connection_id:
            self._state.output.outgoing.append(closing)
        self.has_abandoned_stream = self.has_abandoned_stream or not closing

    def resume(self, stream: VbucketStream, decision: Resumption | None) -> bool:
        """Let a stream go on as its policy has decided, None: give it up; return whether it goes on."""
        if decision is None:
            self.give_up(stream)
            return False
        position, requested_seqno, received = decision
        stream.position = position
        stream.received = max(stream.received, received)
        if requested_seqno is not None:
            earlier = stream.requested_seqno
            stream.requested_seqno = requested_seqno if earlier is None else min(requested_seqno, earlier)
            if self._streams.ends_now:
                self._state.pending_ends.add(stream.vbucket)
        return True

    def give_up(self, stream: VbucketStream) -> None:
        """Leave a stream alone whose producer has another history than the expected one."""
        if self.by_opaque.get(stream.opaque) is stream:
            self.close(stream)
        self._streams.finish(stream)
        self._state.given_up.append(stream.vbucket)
