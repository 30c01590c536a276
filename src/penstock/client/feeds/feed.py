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

from penstock.client.feeds.collection_selection import PLAIN_CONTENT, CollectionFilter, KnownCollections, StreamContent
from penstock.client.feeds.consumer_feed import ConsumerFeed, DumpProgress, FeedState
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.dialect_rules import DIALECT_RULES
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
        deliver_positions: a position that moves without a change makes a delivery as well, without any.
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
        deliver_positions: bool = False,
        content: StreamContent = PLAIN_CONTENT,
    ) -> None:
        if foreign := [vb for vb in targets if not 0 <= vb < vbuckets]:
            raise UsageError(f"vbucket {foreign[0]}, expected one below {vbuckets}")
        rules = DIALECT_RULES[dialect]
        output = StreamOutput(window, flow_control=rules.flow_control, deliver_positions=deliver_positions)
        state = FeedState(dialect, vbuckets, window, output)
        self._filter = None if content.selection is None else CollectionFilter(content.selection)
        self._streams = StreamSet(state, output, targets, end_rule)
        self._requests = StreamRequests(state, self._streams, self._filter)
        self._acknowledged = output
        arrivals = StreamMessages(state, output, self._streams, self._requests, self._filter, end_rule=end_rule)
        super().__init__(state, {vb: each.position for vb, each in targets.items()}, content, arrivals, DumpProgress())
        self.noop = rules.noop
        self.forget_connection()

    def use_collections(self, known: KnownCollections | None) -> None:
        """As of ConsumerFeed. Raises UsageError for what is wanted and not there."""
        if self._filter is not None:
            self._state.context.collections = self._filter.resolve_names(known)

    def find_unfinished(self) -> Collection[int]:
        return self._streams.unfinished

    @property
    def is_done(self) -> bool:
        return not self._streams.unfinished

    @property
    def is_reusable(self) -> bool:
        return self.is_done and not self._requests.by_opaque and not self._requests.has_abandoned_stream

    @property
    def is_endless(self) -> bool:
        return self._streams.is_endless

    def count_unanswered(self, connection_id: int) -> int:
        return self._requests.count_unanswered(connection_id)

    def take_requests(self, allocate_opaque: Callable[[], int], held: Collection[int] = ()) -> list[Request]:
        return self._requests.take_due_requests(allocate_opaque, held)

    def forget_connection(self, connection_id: int | None = None) -> Collection[int]:
        lost = super().forget_connection(connection_id)
        self._acknowledged.forget_unacked(connection_id)
        self._requests.forget_connection(connection_id, lost)
        return lost

    def request_again(self, vbuckets: Collection[int]) -> None:
        self._requests.request_again(vbuckets)

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        self._streams.set_end(vbucket, end_seqno)

    def skip_vbucket(self, vbucket: int) -> None:
        self._streams.skip_vbucket(vbucket)
