"""The consumer that a ChangeStream reads from: without a socket, with one interface for all dialects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from penstock.client.connect.dropped_frames import DropCounter, DropReason
from penstock.client.feeds.collection_selection import KnownCollections, StreamContent
from penstock.client.feeds.deliveries import Delivery, DeliveryQueue
from penstock.client.feeds.stream_order import StreamOpaques
from penstock.client.feeds.stream_position import Position
from penstock.client.topology.item_counts import ItemCounts
from penstock.errors import Error, OrderViolation, UsageError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Request
from penstock.wire.columns.heads import Run, StreamContext
from penstock.wire.protocol.frame_receiver import ReceiveEvent


class StreamFailure(NamedTuple):
    """A stream that ended or was refused. Another attempt may succeed.

    Attributes:
        vbucket: the vbucket of the stream; None: all vbuckets of the connection.
        connection_id: the number of the connection.
        error: the reason.
        was_open: whether the producer had accepted the stream.
    """

    vbucket: int | None
    connection_id: int
    error: Error
    was_open: bool = False


class StreamFailures:
    """The failures of streams that were not handled yet."""

    def __init__(self) -> None:
        self._failures: list[StreamFailure] = []

    def __bool__(self) -> bool:
        return bool(self._failures)

    @property
    def newest(self) -> Error | None:
        """The error of the newest failure, None without failures."""
        return self._failures[-1].error if self._failures else None

    def add(self, failure: StreamFailure) -> None:
        """Add a failure."""
        self._failures.append(failure)

    def pop_all(self) -> list[StreamFailure]:
        """Return all failures, and remove them."""
        failures, self._failures = self._failures, []
        return failures

    def forget(self, connection_id: int | None) -> None:
        """Remove the failures of a connection.

        Args:
            connection_id: its number; None: all connections.
        """
        self._failures = [each for each in self._failures if connection_id not in (None, each.connection_id)]


class OpaqueRegister(dict[int, StreamOpaques]):
    """Connection number -> opaques of its streams. A missing entry is created."""

    def __init__(self, dropped: DropCounter) -> None:
        super().__init__()
        self._dropped = dropped

    def __missing__(self, connection_id: int) -> StreamOpaques:
        opaques = self[connection_id] = StreamOpaques(self._dropped)
        return opaques


class FeedState:
    """The state that the parts of a feed share.

    Attributes:
        dialect: the dialect of the streams.
        vbuckets: the number of vbuckets of the bucket.
        window: bytes that may wait for the caller.
        output: deliveries for the caller, and bytes for the producer.
        connection_ids: vbucket -> number of the connection to its node; 0 for a vbucket without an entry.
        failures: streams that ended or were refused. Another attempt may succeed.
        recovering: the vbuckets of such streams, until the stream has sent a change again.
        given_up: the vbuckets whose producer has a history other than the expected one.
        pending_ends: vbuckets whose stream ends at the producer's current seqno. The caller requests the seqno, and
            passes it to `set_end`.
        dropped: counts the frames and changes that were received and not delivered.
        opaques: connection number -> opaques that messages of streams may have.
        context: facts that the rows of a stream share.
    """

    def __init__(self, dialect: Dialect, vbuckets: int, window: int, output: DeliveryQueue) -> None:
        self.dialect = dialect
        self.vbuckets = vbuckets
        self.window = window
        self.output = output
        self.connection_ids: dict[int, int] = {}
        self.failures = StreamFailures()
        self.recovering: set[int] = set()
        self.given_up: list[int] = []
        self.pending_ends: set[int] = set()
        self.dropped = DropCounter()
        self.opaques = OpaqueRegister(self.dropped)
        self.context = StreamContext(vbuckets)

    def find_connection_id(self, vbucket: int) -> int:
        """Return the number of the connection to a vbucket's node; 0 if none is set."""
        return self.connection_ids.get(vbucket, 0)


class FeedHandler(Protocol):
    """Handles the messages that arrive."""

    def on_run(self, run: Run) -> None:
        """Handle consecutive data messages."""

    def on_frame(self, frame: Frame) -> None:
        """Handle any other message."""


class DumpProgress:
    """Decides whether all existing changes have arrived, in a dialect that has no message for this.

    This base class is for the dialects that have such a message: it decides nothing.

    Attributes:
        needs_counts: the caller must request the item counts of the vbuckets, and pass them to `set_counts`.
    """

    needs_counts = False

    @property
    def is_unsettled(self) -> bool:
        """Whether the producer may have sent all existing changes, although no message reports it."""
        return False

    def record_silence(self) -> None:
        """Record that nothing has arrived for a while."""

    def set_counts(self, counts: ItemCounts | None) -> str:
        """Compare the stream with the item counts. Raises Unreachable if the stream stays incomplete.

        Args:
            counts: the item counts; None if the server does not report them.

        Returns:
            A warning, or an empty string.
        """
        return ""

    def record_connection_end(self) -> bool:
        """Record that the producer closed the connection without an error.

        Returns:
            Whether this is the end of the stream. If not, the connection was lost.
        """
        return False


class ConsumerFeed(ABC):
    """The streams of one consumer, over one connection after another to each node of the bucket.

    Attributes:
        positions: vbucket -> position from which its stream starts.
        noop: whether the producer sends signs of life, so that its silence means a failure.
        content: the parts of the changes that the streams contain. Each connection negotiates them, if its node
            supports them.
        deliveries: deliveries that were not handed out yet; the oldest is on the left.
        dump: decides whether all existing changes have arrived.
        outdated_collections: numbers of the connections whose stream requests wait until `use_collections` gets the
            collections of their node again.
        dialect, vbuckets, window, connection_ids, failures, recovering: as in FeedState.
        given_up, pending_ends, dropped: as in FeedState.
    """

    noop = False

    def __init__(
        self,
        state: FeedState,
        positions: dict[int, Position],
        content: StreamContent,
        arrivals: FeedHandler,
        dump: DumpProgress,
    ) -> None:
        """Create a feed without a connection.

        Args:
            state: the state that the parts of the feed share.
            positions: vbucket -> position from which its stream starts.
            content: the parts of the changes that the streams contain.
            arrivals: handles the messages that arrive.
            dump: decides whether all existing changes have arrived.
        """
        self.positions = positions
        self.content = content
        state.context.xattrs, state.context.values = content.xattrs, content.values
        self.dump = dump
        self.outdated_collections: Collection[int] = ()
        self.dialect, self.vbuckets, self.window = state.dialect, state.vbuckets, state.window
        self.deliveries = state.output.deliveries
        self.connection_ids, self.failures, self.recovering = state.connection_ids, state.failures, state.recovering
        self.given_up, self.pending_ends, self.dropped = state.given_up, state.pending_ends, state.dropped
        self._state = state
        self._output = state.output
        self._arrivals = arrivals

    @property
    def queued_bytes(self) -> int:
        """Bytes of the deliveries that were not consumed yet. A producer may count them against the window."""
        return self._output.queued_bytes

    # requests

    @abstractmethod
    def find_unfinished(self) -> Collection[int]:
        """Return the vbuckets that will send more changes."""

    def use_collections(self, known: KnownCollections | None, connection_id: int = 0) -> tuple[str, ...]:
        """Use the collections of a connection's node.

        Args:
            known: the scopes and collections of the node; None if the connection has no collections.
            connection_id: the number of the connection.

        Returns:
            The selected scopes and collections that the connected nodes do not have.

        Raises:
            UsageError: the dialect does not support collections.
        """
        if known is not None:
            raise UsageError(f"{self.dialect} knows no collections")
        return ()

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether the streams will send no more changes."""

    def count_unanswered(self, connection_id: int) -> int:
        """Return the number of unanswered requests on a connection."""
        return 0

    @property
    @abstractmethod
    def is_endless(self) -> bool:
        """Whether all streams continue without an end."""

    @property
    def is_reusable(self) -> bool:
        """Whether another stream may use the connections, because no message of these streams can still arrive."""
        return False

    @property
    def can_resume(self) -> bool:
        """Whether the streams of a lost connection can continue on another connection."""
        return True

    @abstractmethod
    def take_requests(self, allocate_opaque: Callable[[], int], held: Collection[int] = ()) -> Sequence[Request]:
        """Return the requests that are due.

        Args:
            allocate_opaque: returns an unused opaque.
            held: vbuckets without requests for now, because their node is not available.
        """

    def forget_connection(self, connection_id: int | None = None) -> Collection[int]:
        """Forget the state of a connection. The changes that were received over it are kept.

        Args:
            connection_id: its number; None: all connections.

        Returns:
            The unfinished vbuckets of the connection.
        """
        state, known = self._state, {*self._output.generations, *self._state.opaques, *self.connection_ids.values(), 0}
        connection_ids = known if connection_id is None else {connection_id}
        self._output.forget_connections(connection_ids)
        for each in connection_ids:
            state.opaques.pop(each, None)
        state.failures.forget(connection_id)
        return {vb for vb in self.find_unfinished() if connection_id in (None, state.find_connection_id(vb))}

    def request_again(self, vbuckets: Collection[int]) -> None:  # noqa: B027 - nothing to do where streams have no states
        """Make the streams of these vbuckets due, unless they are open."""

    def release_streams(self, vbuckets: Iterable[int]) -> bytes:
        """Forget the streams of unfinished vbuckets, which other nodes have now, until `request_again`.

        Returns:
            The messages that close the streams at their present node.
        """
        return b""

    def tolerate_opaques(self, earlier: int, connection_id: int = 0) -> None:
        """Drop messages with old opaques without an error: they belong to an earlier user of the connection.

        Args:
            earlier: opaques below it are old.
            connection_id: the number of the connection.
        """
        self._state.opaques[connection_id].earlier = max(self._state.opaques[connection_id].earlier, earlier)

    @abstractmethod
    def set_end(self, vbucket: int, end_seqno: int) -> None:
        """Set the last seqno to read of a vbucket of `pending_ends`."""

    @abstractmethod
    def skip_vbucket(self, vbucket: int) -> None:
        """Finish a vbucket of `pending_ends` that no node serves. The read continues without it."""

    # messages and acknowledgements

    def receive(self, events: Iterable[ReceiveEvent], connection_id: int = 0) -> bytes:
        """Process the events of one read.

        Args:
            events: the events, in the order of their arrival.
            connection_id: the number of the connection that was read.

        Returns:
            Bytes to send at once over the same connection: replies to NOOPs, and acknowledgements.

        Raises:
            Error: OrderViolation if the producer violates the order of its streams. ConnectionClosed if a stream cannot
                continue over this connection, but may continue over a new one. StatusError if the producer refuses a
                stream, and a retry does not help. RemoteProtocolError for any other violation of the protocol.
        """
        output, arrivals = self._output, self._arrivals
        output.connection_id = connection_id
        events = iter(events)
        try:
            for event in events:
                if isinstance(event, Run):
                    arrivals.on_run(event)
                elif isinstance(event, Frame):
                    arrivals.on_frame(event)
        except Error as error:
            if isinstance(error, OrderViolation) and error.vbucket in self.find_unfinished():
                self.recovering.add(error.vbucket)
            output.flush()  # the changes before the error are valid
            left = sum(len(event.offsets) if isinstance(event, Run) else 1 for event in events)
            is_violation = isinstance(error, OrderViolation)
            self.dropped.add(DropReason.AFTER_VIOLATION if is_violation else DropReason.AFTER_ERROR, left)
            output.arrived_bytes = 0  # this connection gets no more acknowledgements
            raise
        output.flush()
        output.acknowledge(output.take_bytes())
        return output.take_outgoing()

    def acknowledge(self, delivery: Delivery) -> bytes:
        """Record that the caller has consumed a delivery.

        Returns:
            The acknowledgement for the connection that the delivery came from; may be empty.
        """
        return self._output.consume(delivery)

    def take_positions(self) -> dict[int, Position]:
        """Return the positions that have moved without a change; nothing while changes wait for delivery."""
        return {} if self.deliveries or self._output.rows else self._output.take_positions()

    def take_last_acknowledgement(self, connection_id: int = 0) -> bytes:
        """Return the last acknowledgement of a connection, to be sent before another stream uses the connection."""
        self._output.connection_id = connection_id
        self._output.acknowledge(0, at_once=True)
        return self._output.take_outgoing()
