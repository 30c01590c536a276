"""The requests of a consumer: the streams that are due, requested or open, and the connection of each.

The opaque of its request identifies a stream. In a dialect that needs the failover log first, the consumer requests
the log, then the stream, then the log again. Only if both logs are equal, the stream began in the history that the
consumer decided on. Until then no snapshot counts as complete.
"""

from __future__ import annotations

import json
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


class LogPurpose(Enum):
    """The reason for the request of a failover log."""

    DECIDE_START = "before a stream request: where does the stream continue?"
    CONFIRM = "after a stream request: is the history still the same?"
    LEARN_BRANCHES = "after a flush: which vbuuids do its branches have?"


class LogRequest(NamedTuple):
    """The pending request of a failover log.

    Attributes:
        stream: the stream of the vbucket.
        purpose: the reason for the request.
        stream_opaque: the stream's opaque at the time of the request. A log for an earlier opaque is outdated.
    """

    stream: VbucketStream
    purpose: LogPurpose
    stream_opaque: int


class StreamRequests:
    """The requests of a set of streams.

    Attributes:
        rules: the rules of the dialect.
        log_first: the same rules, if the dialect needs requests of failover logs; else None.
        by_opaque: opaque -> stream whose messages are accepted.
        has_abandoned_stream: whether a producer still sends a closed stream, because its dialect cannot close streams.
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
        """Return the number of unanswered requests on a connection."""
        streams = [self.by_opaque[opaque] for opaque in self._requested]
        streams += [each.stream for each in self._logs.values()]
        return sum(stream.connection_id == connection_id for stream in streams)

    def forget_connection(self, connection_id: int | None, lost: Collection[int]) -> None:
        """Forget the streams of a connection, and make its unfinished vbuckets due.

        Args:
            connection_id: its number; None: all connections.
            lost: the unfinished vbuckets of the connection.
        """
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
        """Make the streams of these vbuckets due, unless they are open."""
        for vbucket in self._streams.unfinished.intersection(vbuckets):
            stream = self._streams.by_vbucket[vbucket]
            if stream.state is StreamState.ENDED and not stream.has_ended:
                self.schedule(vbucket)

    def schedule(self, vbucket: int) -> None:
        """Make a stream due, or first the failover log, if the dialect needs the log."""
        if self.log_first is None:
            self._due.add(vbucket)
        else:
            self._logs_due[vbucket] = LogPurpose.DECIDE_START

    def schedule_stream(self, vbucket: int) -> None:
        """Make a stream due without a request of the failover log before it."""
        self._due.add(vbucket)

    def schedule_log(self, vbucket: int, use: LogPurpose) -> None:
        """Make the request of a failover log due.

        Args:
            vbucket: the vbucket.
            use: the reason for the request.
        """
        self._logs_due[vbucket] = use

    def take_due_requests(self, allocate_opaque: Callable[[], int], held: Collection[int]) -> list[Request]:
        """Return the requests that are due: one for each stream that is neither open nor at its end.

        Args:
            allocate_opaque: returns an unused opaque.
            held: vbuckets without requests for now, because their node is not available.
        """
        if not (self._due or self._logs_due):
            return []
        unfinished, waiting = self._streams.unfinished, self._state.pending_ends.union(held)
        self._due &= unfinished
        if self._filter is not None and self._filter.outdated:
            find_connection_id = self._state.find_connection_id
            waiting |= {vb for vb in self._due if find_connection_id(vb) in self._filter.outdated}
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
        """Return an opaque of no stream and no log request: the opaque alone identifies messages of a stream."""
        while (opaque := allocate_opaque()) in self.by_opaque or opaque in self._logs:
            continue
        return opaque

    def _request_stream(self, stream: VbucketStream, opaque: int) -> Request:
        self._restart_unordered(stream)
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
        value = b""
        if self._filter is not None:
            stream.requested = self._filter.take_request(stream.vbucket, stream.connection_id)
            value = stream.requested.value
        if 0 < stream.position.seqno < stream.purge_seqno:
            # Else a producer rolls back to 0. The snapshot was made after this purge, so the purge hides nothing of it.
            value = json.dumps({**json.loads(value or b"{}"), "purge_seqno": str(stream.purge_seqno)}).encode()
        return replace(request, value=value) if value else request

    @staticmethod
    def _restart_unordered(stream: VbucketStream) -> None:
        """Make the changes of an incomplete snapshot out of order void, since it begins again.

        The documents may have changed since, and no position describes which of them were sent.
        """
        delivered, stream.unordered_seqno = stream.unordered_seqno, None
        if delivered:
            decision = stream.policy.decide_on_flush(replace(stream.position, seqno=delivered))
            if decision is not None:
                stream.position, stream.requested_seqno = decision.position, decision.requested_seqno

    def _request_log(self, vbucket: int, use: LogPurpose, opaque: int) -> Request:
        assert self.log_first is not None
        stream = self._streams.by_vbucket[vbucket]
        if (before := self._logs.get(stream.log_opaque)) is not None and before.stream is stream:
            del self._logs[stream.log_opaque]  # outdated: one pending log request for each stream is enough
        stream.log_opaque = opaque
        if stream.state is StreamState.ENDED:
            stream.connection_id = self._state.find_connection_id(vbucket)
        self._logs[opaque] = LogRequest(stream, use, stream.opaque)
        return self.log_first.make_log_request(vbucket, opaque)

    def pop_log_request(self, opaque: int) -> LogRequest | None:
        """Return the log request with this opaque, and remove it; None if there is none."""
        return self._logs.pop(opaque, None)

    def mark_answered(self, opaque: int) -> None:
        """Record that the stream request with this opaque was answered."""
        self._requested.discard(opaque)

    def find_stream(self, opaque: int) -> VbucketStream | None:
        """Return the stream with this opaque; None if it is not on the connection whose messages are processed now."""
        stream = self.by_opaque.get(opaque)
        return stream if stream is not None and stream.connection_id == self._state.output.connection_id else None

    def forget(self, opaque: int) -> None:
        """Stop accepting messages of a stream."""
        self.by_opaque.pop(opaque, None)
        self._requested.discard(opaque)

    def close(self, stream: VbucketStream) -> None:
        """Close a stream, with a message to the producer if the dialect has one for this."""
        self.forget(stream.opaque)
        stream.state = advance_state(stream.state, StreamEvent.CLOSED, stream.vbucket, self._state.dialect)
        closing = self.rules.encode_close_request(stream.vbucket)
        if stream.connection_id == self._state.output.connection_id:
            self._state.output.outgoing.append(closing)
        self.has_abandoned_stream = self.has_abandoned_stream or not closing

    def release(self, vbucket: int) -> bytes:
        """Forget the stream of a vbucket, which another node has now. It is requested there with `request_again`.

        Args:
            vbucket: an unfinished vbucket.

        Returns:
            The message that closes the stream at its present node; empty if it is not open.
        """
        stream = self._streams.by_vbucket[vbucket]
        is_open = self.by_opaque.get(stream.opaque) is stream
        self.forget(stream.opaque)
        self._logs = {opaque: each for opaque, each in self._logs.items() if each.stream is not stream}
        self._logs_due.pop(vbucket, None)
        self._due.discard(vbucket)
        stream.state = StreamState.ENDED
        stream.opaque, stream.has_ended = 0, False
        if self._streams.ends_now:
            self._state.pending_ends.add(vbucket)
        closing = self.rules.encode_close_request(vbucket) if is_open else b""
        self.has_abandoned_stream = self.has_abandoned_stream or (is_open and not closing)
        return closing

    def reopen(self, stream: VbucketStream) -> None:
        """Close a stream, and make it due from its position."""
        self.close(stream)
        self.schedule(stream.vbucket)

    def resume(self, stream: VbucketStream, decision: Resumption | None) -> bool:
        """Continue a stream as its policy has decided.

        Args:
            stream: the stream.
            decision: the point to continue from; None: give the stream up.

        Returns:
            Whether the stream continues.
        """
        if decision is None:
            self.give_up(stream)
            return False
        position, requested_seqno, received = decision
        stream.position = position
        stream.received = max(stream.received, received)
        if requested_seqno is not None:
            stream.purge_seqno = 0
            earlier = stream.requested_seqno
            stream.requested_seqno = requested_seqno if earlier is None else min(requested_seqno, earlier)
            if self._streams.ends_now:
                self._state.pending_ends.add(stream.vbucket)
        return True

    def give_up(self, stream: VbucketStream) -> None:
        """Finish a stream whose producer has a history other than the expected one."""
        if self.by_opaque.get(stream.opaque) is stream:
            self.close(stream)
        self._streams.finish(stream)
        self._state.given_up.append(stream.vbucket)
