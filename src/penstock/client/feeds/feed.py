"""The consumer without its socket, of the dialects that stream by vbucket: DCP, UPR and its draft.

A Feed is given the events of one connection after another. It opens streams, checks what they send, turns it into
batches, counts bytes for flow control, and keeps the position of every vbucket, so that a new connection goes on where
the last one ended: nothing is lost, nothing comes twice. A rollback is a row like any other.

    StreamSet       the streams by vbucket: position, end, state
    StreamRequests  which of them are due, asked for, or open, and by which connection
    StreamAnswers   what the answers to requests do to them, by their ResumePolicy
    StreamMessages  what snapshots, flushes, events and ends do
    StreamChanges   what changes do
    StreamOutput    what is handed out and acknowledged
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from penstock.client.feeds.consumer_feed import ConsumerFeed, DumpProgress, FeedState
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.dialects import DIALECT_RULES
from penstock.client.feeds.selection import PLAIN_CONTENT, CollectionFilter, KnownCollections, StreamContent
from penstock.client.feeds.stream_messages import StreamMessages
from penstock.client.feeds.stream_requests import StreamRequests
from penstock.client.feeds.stream_set import StreamOutput, StreamSet
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
from penstock.errors import UsageError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.layout import Request

__all__ = ["Delivery", "EndRule", "Feed", "StreamTarget"]


class Feed(ConsumerFeed):
    """The streams of some vbuckets, each from its own position. Attributes as of ConsumerFeed.

    Args:
        vbuckets: how many the bucket has.
        targets: what to read, by vbucket.
        window: flow control, bytes.
        dialect: any but TAP.
        end_rule: where the streams end.
        every_move: a position that moves without a change makes a delivery as well, without any.
        content: what the streams have of the changes.

    Raises UsageError for a vbucket that the bucket does not have.
    """

    def __init__(
        self,
        vbuckets: int,
        targets: Mapping[int, StreamTarget],
        *,
        window: int,
        dialect: Dialect = Dialect.DCP,
        end_rule: EndRule = EndRule.SNAPSHOT,
        every_move: bool = False,
        content: StreamContent = PLAIN_CONTENT,
    ) -> None:
        if foreign := [vb for vb in targets if not 0 <= vb < vbuckets]:
            raise UsageError(f"vbucket {foreign[0]}, expected one below {vbuckets}")
        rules = DIALECT_RULES[dialect]
        output = StreamOutput(window, flow_control=rules.flow_control, every_move=every_move)
        state = FeedState(dialect, vbuckets, window, output)
        self._filter = None if content.selection is None else CollectionFilter(content.selection)
        self._streams = StreamSet(state, output, targets, end_rule)
        self._requests = StreamRequests(state, self._streams, self._filter)
        self._acknowledged = output
        arrivals = StreamMessages(state, output, self._streams, self._requests, self._filter, end_rule=end_rule)
        super().__init__(state, {vb: each.position for vb, each in targets.items()}, content, arrivals, DumpProgress())
        self.noop = rules.noop
        self.connection_lost()

    def use_collections(self, known: KnownCollections | None) -> None:
        """As of ConsumerFeed. Raises UsageError for what is wanted and not there."""
        if self._filter is not None:
            self._state.context.collections = self._filter.use(known)

    def unfinished(self) -> Collection[int]:
        return self._streams.unfinished

    @property
    def is_done(self) -> bool:
        return not self._streams.unfinished

    @property
    def is_tidy(self) -> bool:
        return self.is_done and not self._requests.by_opaque and not self._requests.is_untidy

    @property
    def is_endless(self) -> bool:
        return self._streams.is_endless

    def unanswered(self, via: int) -> int:
        return self._requests.unanswered(via)

    def requests(self, take_opaque: Callable[[], int], held: Collection[int] = ()) -> list[Request]:
        return self._requests.take_due(take_opaque, held)

    def connection_lost(self, via: int | None = None) -> Collection[int]:
        lost = super().connection_lost(via)
        self._acknowledged.forget_unacked(via)
        self._requests.connection_lost(via, lost)
        return lost

    def ask_again(self, vbuckets: Collection[int]) -> None:
        self._requests.ask_again(vbuckets)

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        self._streams.set_end(vbucket, end_seqno)

    def leave_out(self, vbucket: int) -> None:
        self._streams.leave_out(vbucket)
