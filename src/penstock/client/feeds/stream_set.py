"""The streams of a consumer: which are open, asked for, or due to be asked for, and over which connection.

A stream is known by the opaque of its request. Where a dialect has to know the failover log first, the log is asked
for, then the stream, and then the log again (see penstock.client.feeds.feed). What arrives is dealt with there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from penstock.client.feeds.dialects import SPEECHES, LogFirst
from penstock.client.feeds.follower import Failure, Follower
from penstock.client.feeds.selection import Filter, Selection
from penstock.client.feeds.vbucket_stream import StreamTarget, VbucketStream, is_nothing
from penstock.errors import Error, UsageError
from penstock.store.failover import FailoverLog
from penstock.wire.constants import MAX_SEQNO, Dialect
from penstock.wire.layout import Request
from penstock.wire.stream import StreamState

__all__ = ["AskedLog", "StreamTable"]


class AskedLog(NamedTuple):
    """A failover log that was asked for. of: the opaque of the stream that it was asked about."""

    stream: VbucketStream
    then: Callable[[VbucketStream, FailoverLog], None]
    of: int


class StreamTable(Follower):
    """The streams of some vbuckets. Attributes as of Follower; arguments and errors as of Feed."""

    def __init__(
        self,
        vbuckets: int,
        wanted: Mapping[int, StreamTarget],
        window: int,
        dialect: Dialect,
        *,
        ends_now: bool,
        selection: Selection | None,
    ) -> None:
        if foreign := [vb for vb in wanted if not 0 <= vb < vbuckets]:
            raise UsageError(f"vbucket {foreign[0]}, expected one below {vbuckets}")
        super().__init__(dialect, vbuckets, window, {vb: each.position for vb, each in wanted.items()})
        self._speech = SPEECHES[dialect]
        self._log_first = self._speech if isinstance(self._speech, LogFirst) else None
        self.noop = self._speech.noop
        self._ends_now = ends_now
        self._filter = None if selection is None else Filter(selection)
        self.collections = selection is not None
        self._streams = {
            vb: VbucketStream(vb, each.policy, each.position, each.end_seqno) for vb, each in wanted.items()
        }
        nothing = {vb for vb, each in wanted.items() if is_nothing(each.position, each.end_seqno)}
        self._unfinished = set(wanted) - (set() if ends_now else nothing)
        self._due: set[int] = set()
        self._by_opaque: dict[int, VbucketStream] = {}
        self._logs_due: dict[int, Callable[[VbucketStream, FailoverLog], None]] = {}
        self._logs: dict[int, AskedLog] = {}
        self._requested: set[int] = set()
        self._unacked: Counter[int] = Counter()
        self._is_untidy = False  # a producer goes on with a stream that nobody wants

    @abstractmethod
    def _decide(self, stream: VbucketStream, log: FailoverLog) -> None:
        """Find out where to go on with the producer of this log, and ask for the stream."""

    @abstractmethod
    def _confirm(self, stream: VbucketStream, log: FailoverLog) -> None:
        """Compare the log behind a stream request with the one in front of it."""

    def unfinished(self) -> Collection[int]:
        return self._unfinished

    @property
    def is_done(self) -> bool:
        return not self._unfinished

    @property
    def is_tidy(self) -> bool:
        return self.is_done and not self._by_opaque and not self._is_untidy

    @property
    def is_endless(self) -> bool:
        return not self._ends_now and all(stream.end_seqno == MAX_SEQNO for stream in self._streams.values())

    @property
    def awaits_replies(self) -> bool:
        return bool(self._requested or self._logs)

    def unanswered(self, via: int) -> int:
        streams = [self._by_opaque[opaque] for opaque in self._requested] + [
            each.stream for each in self._logs.values()
        ]
        return sum(stream.via == via for stream in streams)

    def connection_lost(self, via: int | None = None) -> Collection[int]:
        lost = super().connection_lost(via)
        for opaque in [opaque for opaque, stream in self._by_opaque.items() if via in (None, stream.via)]:
            self._forget(opaque)
        self._logs = {opaque: each for opaque, each in self._logs.items() if via not in (None, each.stream.via)}
        self._is_untidy = self._is_untidy and bool(self._by_opaque)
        for each in {*self._unacked} if via is None else {via}:
            del self._unacked[each]
        if self._ends_now:
            self.needs_end.update(lost)
        for vbucket in self._streams if via is None else lost:
            stream = self._streams[vbucket]
            stream.state = StreamState.ENDED
            stream.opaque, stream.has_ended = 0, False
            self._logs_due.pop(vbucket, None)
        self._due.difference_update(lost)
        for vbucket in lost:
            self._make_due(vbucket)
        return lost

    def ask_again(self, vbuckets: Collection[int]) -> None:
        for vbucket in self._unfinished.intersection(vbuckets):
            stream = self._streams[vbucket]
            if stream.state is StreamState.ENDED and not stream.has_ended:
                self._make_due(vbucket)

    def _forget(self, opaque: int) -> None:
        """Take no more messages of a stream."""
        self._by_opaque.pop(opaque, None)
        self._requested.discard(opaque)

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        stream = self._streams[vbucket]
        stream.end_seqno = end_seqno
        self.needs_end.discard(vbucket)
        if is_nothing(stream.position, end_seqno) and stream.requested_seqno is None:
            self._finish(stream)

    def leave_out(self, vbucket: int) -> None:
        self.needs_end.discard(vbucket)
        self._finish(self._streams[vbucket])

    def requests(self, take_opaque: Callable[[], int], held: Collection[int] = ()) -> list[Request]:
        """Return the requests that are due: one for each stream that is neither open nor at its end.

        Where the failover log has to be known first it is that which is asked for, and then the stream. held: as of
        Follower.
        """
        if not (self._due or self._logs_due):
            return []
        waiting = self.needs_end.union(held)
        due, self._due = sorted(self._due - waiting), self._due & waiting
        requests = [self._ask(self._streams[vbucket], self._fresh(take_opaque)) for vbucket in due]
        logs = {vb: then for vb, then in self._logs_due.items() if vb not in held}
        self._logs_due = {vb: then for vb, then in self._logs_due.items() if vb in held}
        if self._log_first is not None:
            for vbucket, then in sorted(logs.items(), key=itemgetter(0)):
                opaque, stream = self._fresh(take_opaque), self._streams[vbucket]
                if (before := self._logs.get(stream.log_opaque)) is not None and before.stream is stream:
                    del self._logs[stream.log_opaque]  # it asked about what is over; one question each is enough
                stream.log_opaque = opaque
                if stream.state is StreamState.ENDED:
                    stream.via = self.vias.get(vbucket, 0)
                self._logs[opaque] = AskedLog(stream, then, stream.opaque)
                requests.append(self._log_first.log_request(vbucket, opaque))
        return requests

    def _fresh(self, take_opaque: Callable[[], int]) -> int:
        """Return an opaque that nothing has: all messages of a stream are known by it alone."""
        while (opaque := take_opaque()) in self._by_opaque or opaque in self._logs:
            continue
        return opaque

    def _make_due(self, vbucket: int) -> None:
        if self._log_first is None:
            self._due.add(vbucket)
        else:
            self._logs_due[vbucket] = self._decide

    def _ask(self, stream: VbucketStream, opaque: int) -> Request:
        stream.opaque = opaque
        stream.via = self.vias.get(stream.vbucket, 0)
        stream.state = StreamState.REQUESTED
        stream.is_whole = False
        stream.least_start = stream.position.snap_start
        if self._log_first is not None:
            stream.is_confirmed = False
            self._logs_due[stream.vbucket] = self._confirm
        self._by_opaque[opaque] = stream
        self._opaques[stream.via].add(opaque)
        self._requested.add(opaque)
        request = self._speech.stream_request(stream.vbucket, stream.position, stream.end_seqno, opaque, stream.log)
        return replace(request, value=self._filter.value) if self._filter and self._filter.value else request

    def _finish(self, stream: VbucketStream) -> None:
        self._unfinished.discard(stream.vbucket)
        self._due.discard(stream.vbucket)
        self._logs_due.pop(stream.vbucket, None)
        self.troubled.discard(stream.vbucket)

    def _fail(self, stream: VbucketStream, error: Error, *, was_open: bool = False) -> None:
        """Ask again for a stream, but later, when `ask_again` says so: at once would be a busy loop."""
        self.failures.append(Failure(stream.vbucket, stream.via, error, was_open))
        self.troubled.add(stream.vbucket)
