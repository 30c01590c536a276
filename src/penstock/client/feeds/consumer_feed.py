"""What a ChangeStream reads from: the consumer without its socket, whatever the dialect."""

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

__all__ = ["ConsumerFeed", "DumpProgress", "FeedHandler", "FeedState", "StreamFailure", "StreamFailures"]


class StreamFailure(NamedTuple):
    """A stream that ended or was refused, which another attempt may mend. vbucket: None for all of the connection."""

    vbucket: int | None
    connection_id: int
    error: Error
    was_open: bool = False


class StreamFailures:
    """Failures that nobody has dealt with yet."""

    def __init__(self) -> None:
        self._failures: list[StreamFailure] = []

    def __bool__(self) -> bool:
        return bool(self._failures)

    @property
    def newest(self) -> Error | None:
        return self._failures[-1].error if self._failures else None

    def add(self, failure: StreamFailure) -> None:
        self._failures.append(failure)

    def pop_all(self) -> list[StreamFailure]:
        """Return the failures since this was asked last."""
        failures, self._failures = self._failures, []
        return failures

    def forget(self, connection_id: int | None) -> None:
        """Forget those of a connection, None: of any."""
        self._failures = [each for each in self._failures if connection_id not in (None, each.connection_id)]


class OpaqueRegister(dict[int, StreamOpaques]):
    """The opaques of each connection, by its number."""

    def __init__(self, dropped: DropCounter) -> None:
        super().__init__()
        self._dropped = dropped

    def __missing__(self, connection_id: int) -> StreamOpaques:
        opaques = self[connection_id] = StreamOpaques(self._dropped)
        return opaques


class FeedState:
    """What the parts of a feed share.

    Attributes:
        vbuckets: how many the bucket has.
        window: bytes that may wait for the caller.
        output: what is handed out, and sent.
        connection_ids: by vbucket, the number of the connection to its node; 0 where nothing is given.
        failures: streams that ended or were refused, which another attempt may mend.
        recovering: the vbuckets to which that happened, until they have sent a change again.
        given_up: the vbuckets whose producer has another history than the expected one.
        pending_ends: vbuckets whose end is what the producer has now, to be asked for and given to `set_end`.
        dropped: what was received and not handed out.
        opaques: those under which messages may come, by connection.
        context: what the rows of a stream have in common.
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
        return self.connection_ids.get(vbucket, 0)


class FeedHandler(Protocol):
    """Takes what arrives."""

    def on_run(self, run: Run) -> None:
        """Take consecutive data messages."""

    def on_frame(self, frame: Frame) -> None:
        """Take any other message."""


class DumpProgress:
    """Whether everything that existed has arrived, in a dialect that has no message for it. Here: one that has.

    Attributes:
        needs_counts: the item counts of the vbuckets are to be asked for and given to `set_counts`.
    """

    needs_counts = False

    @property
    def is_unsettled(self) -> bool:
        """May everything have been sent that existed, though no message reports it?"""
        return False

    def record_silence(self) -> None:
        """Note that nothing has come for a while."""

    def set_counts(self, counts: ItemCounts | None) -> str:
        """Take the item counts, None if the server has none. Return a warning, or nothing.

        Raises Unreachable if the stream stays incomplete.
        """
        return ""

    def record_connection_end(self) -> bool:
        """Note that the producer ended the connection in order. Return whether that is an end, not a loss."""
        return False


class ConsumerFeed(ABC):
    """The streams of one consumer, over one connection after another, each of them with every node there is.

    Attributes:
        positions: where the streams begin.
        noop: the producer gives signs of life, so that its silence means something.
        content: what the streams have of the changes. A connection agrees on it, where the node has it.
        deliveries: what has arrived and not been handed out, to be taken from the left.
        dump: whether everything that existed has arrived.
        dialect, vbuckets, window, connection_ids, failures, recovering: as of FeedState.
        given_up, pending_ends, dropped: as of FeedState.
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
        self.positions = positions
        self.content = content
        state.context.xattrs, state.context.values = content.xattrs, content.values
        self.dump = dump
        self.dialect, self.vbuckets, self.window = state.dialect, state.vbuckets, state.window
        self.deliveries = state.output.deliveries
        self.connection_ids, self.failures, self.recovering = state.connection_ids, state.failures, state.recovering
        self.given_up, self.pending_ends, self.dropped = state.given_up, state.pending_ends, state.dropped
        self._state = state
        self._output = state.output
        self._arrivals = arrivals

    @property
    def queued_bytes(self) -> int:
        """Bytes of deliveries that are not consumed yet, which a producer may count against the window."""
        return self._output.queued_bytes

    # what is asked for

    @abstractmethod
    def find_unfinished(self) -> Collection[int]:
        """Return the vbuckets of which there is more to come."""

    def use_collections(self, known: KnownCollections | None) -> None:
        """Learn what the node of a new connection has for collections; None: it has agreed on none."""
        if known is not None:
            raise UsageError(f"{self.dialect} knows no collections")

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Has everything arrived that is to come?"""

    def count_unanswered(self, connection_id: int) -> int:
        """Return how many requests on this connection are unanswered."""
        return 0

    @property
    @abstractmethod
    def is_endless(self) -> bool:
        """Do all streams go on for ever?"""

    @property
    def is_reusable(self) -> bool:
        """May another stream use its connections, because no message of these streams comes by them any more?"""
        return False

    @property
    def can_resume(self) -> bool:
        """May another connection take up what this one breaks off?"""
        return True

    @abstractmethod
    def take_requests(self, allocate_opaque: Callable[[], int], held: Collection[int] = ()) -> Sequence[Request]:
        """Return the requests that are due, but for those of the vbuckets that are held: their node is away."""

    def forget_connection(self, connection_id: int | None = None) -> Collection[int]:
        """Forget what belongs to a connection (None: to any), not what has been received over it.

        Returns the unfinished vbuckets that it had.
        """
        state, known = self._state, {*self._output.generations, *self._state.opaques, *self.connection_ids.values(), 0}
        connection_ids = known if connection_id is None else {connection_id}
        self._output.forget_connections(connection_ids)
        for each in connection_ids:
            state.opaques.pop(each, None)
        state.failures.forget(connection_id)
        return {vb for vb in self.find_unfinished() if connection_id in (None, state.find_connection_id(vb))}

    def request_again(self, vbuckets: Collection[int]) -> None:  # noqa: B027 - nothing to do where streams have no states
        """Make due the streams of these vbuckets, as far as they are not open."""

    def tolerate_opaques(self, earlier: int, connection_id: int = 0) -> None:
        """Leave out messages under opaques below `earlier`: they belong to an earlier user of a connection."""
        self._state.opaques[connection_id].earlier = max(self._state.opaques[connection_id].earlier, earlier)

    @abstractmethod
    def set_end(self, vbucket: int, end_seqno: int) -> None:
        """Set where a vbucket of `pending_ends` ends."""

    @abstractmethod
    def skip_vbucket(self, vbucket: int) -> None:
        """Expect nothing more of a vbucket of `pending_ends`: no node serves it, and the read goes on without it."""

    # what arrives

    def receive(self, events: Iterable[ReceiveEvent], connection_id: int = 0) -> bytes:
        """Take the events of one read and return what must be sent at once: answers to noops, acknowledgements.

        connection_id: of several connections at a time, which one it was; there the answer goes.
        Raises OrderViolation if the producer breaks the order of its streams, ConnectionClosed if a stream cannot go on
        over this connection: another one may mend that.
        Raises RemoteProtocolError for any other rule that it breaks, StatusError for a refusal that no retry mends.
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
            output.flush()  # what came before it holds
            left = sum(len(event.offsets) if isinstance(event, Run) else 1 for event in events)
            self.dropped.add(DropReason.AFTER_VIOLATION, left)
            output.arrived_bytes = 0  # nothing more is acknowledged to this connection
            raise
        output.flush()
        output.acknowledge(output.take_bytes())
        return output.take_outgoing()

    def acknowledge(self, delivery: Delivery) -> bytes:
        """Note that the caller is done with a delivery; return what acknowledges it where it came from."""
        return self._output.consume(delivery)

    def take_positions(self) -> dict[int, Position]:
        """Return the positions that have moved without a change; nothing while a change is still to be handed out."""
        return {} if self.deliveries or self._output.rows else self._output.take_positions()

    def take_last_acknowledgement(self, connection_id: int = 0) -> bytes:
        """Return the last that has to be sent by a connection before another stream uses it."""
        self._output.connection_id = connection_id
        self._output.acknowledge(0, at_once=True)
        return self._output.take_outgoing()
