"""The consumer without its socket, for the dialects with one stream for each vbucket: DCP, UPR and the UPR draft.

A Feed receives the events of one connection after another. It opens streams, checks their messages, makes batches of
the changes, and counts bytes for flow control. It keeps the position of every vbucket. So a new connection continues
where the last one ended: no change is lost, and none arrives twice. A rollback is a row like any other.

- StreamSet: the streams by vbucket, with position, end and state.
- StreamRequests: the streams that are due, requested or open, and the connection of each.
- StreamAnswers: processes the answers to requests, according to each stream's ResumePolicy.
- StreamMessages: processes snapshots, flushes, events and ends.
- StreamChanges: processes changes.
- StreamOutput: the deliveries and their acknowledgements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from penstock.client.feeds.collection_selection import PLAIN_CONTENT, CollectionFilter, KnownCollections, StreamContent
from penstock.client.feeds.consumer_feed import ConsumerFeed, DumpProgress, FeedState
from penstock.client.feeds.dialect_rules import DIALECT_RULES
from penstock.client.feeds.stream_messages import StreamMessages
from penstock.client.feeds.stream_requests import StreamRequests
from penstock.client.feeds.stream_set import StreamOutput, StreamSet
from penstock.client.feeds.vbucket_stream import EndRule, StreamTarget
from penstock.errors import UsageError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.layout import Request


class Feed(ConsumerFeed):
    """The streams of some vbuckets, each from its own position. The attributes are those of ConsumerFeed."""

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
        """Create a feed without a connection; all its streams are due.

        Args:
            vbuckets: the number of vbuckets of the bucket.
            targets: vbucket -> the part of its changes to read.
            window: bytes of the flow control window.
            dialect: any dialect except TAP.
            end_rule: where the streams end.
            deliver_positions: whether positions that move without a change make a delivery without changes.
            content: the parts of the changes that the streams contain.

        Raises:
            UsageError: the bucket does not have a vbucket of `targets`.
        """
        if foreign := [vb for vb in targets if not 0 <= vb < vbuckets]:
            raise UsageError(f"vbucket {foreign[0]}, expected one below {vbuckets}")
        rules = DIALECT_RULES[dialect]
        output = StreamOutput(window, flow_control=rules.flow_control, deliver_positions=deliver_positions)
        state = FeedState(dialect, vbuckets, window, output)
        self._filter = None if content.selection is None else CollectionFilter(content.selection, content)
        self._streams = StreamSet(state, output, targets, end_rule)
        self._requests = StreamRequests(state, self._streams, self._filter)
        self._acknowledged = output
        parts = state, output, self._streams, self._requests, self._filter
        arrivals = StreamMessages(*parts, end_rule=end_rule, out_of_order=content.out_of_order)
        super().__init__(state, {vb: each.position for vb, each in targets.items()}, content, arrivals, DumpProgress())
        self.noop = rules.noop
        if self._filter is not None:
            self.outdated_collections = self._filter.outdated
        self.forget_connection()

    def use_collections(self, known: KnownCollections | None, connection_id: int = 0) -> tuple[str, ...]:
        """Use the collections of a connection's node.

        Args:
            known: the scopes and collections of the node; None if the connection has no collections.
            connection_id: the number of the connection.

        Returns:
            The selected scopes and collections that the connected nodes do not have.

        Raises:
            UsageError: the node has no collections, or lacks selected ones and the streams do not follow names.
        """
        if self._filter is None:
            return ()
        self._state.context.collections = self._filter.resolve_names(known, connection_id)
        return self._filter.missing

    def find_unfinished(self) -> Collection[int]:
        """Return the vbuckets that will send more changes."""
        return self._streams.unfinished

    @property
    def is_done(self) -> bool:
        """Whether the streams will send no more changes."""
        return not self._streams.unfinished

    @property
    def is_reusable(self) -> bool:
        """Whether all streams have ended, and no producer still sends messages of them."""
        return self.is_done and not self._requests.by_opaque and not self._requests.has_abandoned_stream

    @property
    def is_endless(self) -> bool:
        """Whether all streams continue without an end."""
        return self._streams.is_endless

    def count_unanswered(self, connection_id: int) -> int:
        """Return the number of unanswered requests on a connection."""
        return self._requests.count_unanswered(connection_id)

    def take_requests(self, allocate_opaque: Callable[[], int], held: Collection[int] = ()) -> list[Request]:
        """Return the requests that are due, for streams and for failover logs."""
        return self._requests.take_due_requests(allocate_opaque, held)

    def forget_connection(self, connection_id: int | None = None) -> Collection[int]:
        """Forget the state of a connection, and make its unfinished vbuckets due.

        Args:
            connection_id: its number; None: all connections.

        Returns:
            The unfinished vbuckets of the connection.
        """
        lost = super().forget_connection(connection_id)
        self._acknowledged.forget_unacked(connection_id)
        if self._filter is not None:
            self._filter.forget_connection(connection_id)
        self._requests.forget_connection(connection_id, lost)
        return lost

    def request_again(self, vbuckets: Collection[int]) -> None:
        """Make the streams of these vbuckets due, unless they are open."""
        self._requests.request_again(vbuckets)

    def release_streams(self, vbuckets: Iterable[int]) -> bytes:
        """Forget the streams of unfinished vbuckets, which other nodes have now, until `request_again`.

        Returns:
            The messages that close the streams at their present node.
        """
        return b"".join(map(self._requests.release, vbuckets))

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        """Set the last seqno to read of a vbucket of `pending_ends`."""
        self._streams.set_end(vbucket, end_seqno)

    def skip_vbucket(self, vbucket: int) -> None:
        """Finish a vbucket of `pending_ends` that no node serves. The read continues without it."""
        self._streams.skip_vbucket(vbucket)
