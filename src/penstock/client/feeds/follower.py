"""What a ChangeStream follows: the consumer without its socket, whatever the dialect, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from penstock.client.connect.dropped import Dropped, DropReason
from penstock.client.feeds.item_counts import ItemCounts
from penstock.client.feeds.order import Opaques
from penstock.client.feeds.selection import KnownCollections
from penstock.client.feeds.stream_position import Position
from penstock.errors import ConnectionClosed, Error, OrderViolation, UsageError
from penstock.store.failover import FailoverLog
from penstock.wire.columns import batch_of, changes_of
from penstock.wire.connection import ReceiveEvent
from penstock.wire.constants import Dialect
from penstock.wire.frame import Frame
from penstock.wire.heads import Run, StreamContext
from penstock.wire.layout import Request
from penstock.wire.schema import Change


class Delivery(NamedTuple):
    """What a caller gets at once.

    positions: those behind the changes. nbytes: what the changes took on the wire; connection: the number of the one
    that they came by, to which they are acknowledged, and of several at a time `via` which. logs: the failover logs,
    newest entry first, of the streams that began in front of these changes.
    """

    content: pa.RecordBatch | list[Change]
    positions: dict[int, Position]
    nbytes: int
    connection: int
    logs: Mapping[int, FailoverLog]
    via: int = 0

    @property
    def batch(self) -> pa.RecordBatch:
        return batch_of(self.content) if isinstance(self.content, list) else self.content

    @property
    def changes(self) -> list[Change]:
        return self.content if isinstance(self.content, list) else changes_of(self.content)


class Failure(NamedTuple):
    """A stream that ended or was refused, which another try may mend. vbucket: None for all of the connection."""

    vbucket: int | None
    via: int
    error: Error
    was_open: bool = False


class Follower(ABC):
    """The streams of one consumer, over one connection after another, each of them with every node there is.

    vbuckets: how many the bucket has. window: bytes that may wait for the caller. positions: where the streams begin.
    noop: the producer gives signs of life, so that its silence means something. deliveries: what has arrived and not
    been handed out, to be taken from the left. queued_bytes: what of them, and of deliveries that are not consumed
    yet, a producer may count against the window. given_up: the vbuckets whose producer has another history than the
    expected one. needs_end: vbuckets whose end is what the producer has now, to be asked for and given to `set_end`.
    needs_counts: the item counts of the vbuckets are to be asked for and given to `set_counts`.
    failures: streams that ended or were refused, which another try may mend; troubled: the vbuckets to which that
    happened, until they have sent a change again. vias: by vbucket, the number of the connection to its node; 0 where
    nothing is said. dropped: what was received and not handed out. collections, xattrs, values: what a connection is to
    agree on, where the node has it.
    """

    noop = False
    collections = xattrs = False
    needs_counts = False
    values = True

    def __init__(self, dialect: Dialect, vbuckets: int, window: int, positions: dict[int, Position]) -> None:
        self.dialect = dialect
        self.vbuckets = vbuckets
        self.window = window
        self.positions = positions
        self.deliveries: deque[Delivery] = deque()
        self.queued_bytes = 0
        self.given_up: list[int] = []
        self.needs_end: set[int] = set()
        self.failures: list[Failure] = []
        self.vias: dict[int, int] = {}
        self.dropped = Dropped()
        self.troubled: set[int] = set()
        self._context = StreamContext(vbuckets)
        self._rows: list[Change] = []
        self._outgoing: list[bytes] = []
        self._via = 0
        self._generations: Counter[int] = Counter()
        self._delivered = self._consumed = 0
        self._nbytes = 0
        self._opaques: defaultdict[int, Opaques] = defaultdict(partial(Opaques, self.dropped))

    # what is asked for

    @abstractmethod
    def unfinished(self) -> Collection[int]:
        """Return the vbuckets of which there is more to come."""

    def use_collections(self, known: KnownCollections | None) -> None:
        """Learn what the node of a new connection has for collections; None: it has agreed on none."""
        if known is not None:
            raise UsageError(f"{self.dialect} knows no collections")

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Has everything arrived that is to come?"""

    @property
    def awaits_replies(self) -> bool:
        """Is a request unanswered?"""
        return False

    def unanswered(self, via: int) -> int:
        """Return how many requests on this connection are unanswered."""
        return 0

    @property
    def is_endless(self) -> bool:
        """Do all streams go on for ever?"""
        return False

    @property
    def is_tidy(self) -> bool:
        """May somebody else use its connections, because nothing comes by them any more that belongs to a stream?"""
        return False

    @property
    def can_go_on(self) -> bool:
        """May another connection take up what this one breaks off?"""
        return True

    @abstractmethod
    def requests(self, take_opaque: Callable[[], int], held: Collection[int] = ()) -> Sequence[Request]:
        """Return the requests that are due, but for those of the vbuckets that are held: their node is away."""

    def connection_lost(self, via: int | None = None) -> Collection[int]:
        """Forget what belongs to a connection (None: to any), not what has been received over it.

        Returns the unfinished vbuckets that it had.
        """
        for each in {*self._generations, *self._opaques, *self.vias.values(), 0} if via is None else {via}:
            self._generations[each] += 1
            self._opaques.pop(each, None)
        self._delivered = self._consumed = self._nbytes = 0
        lost = self._vbuckets_of(via)
        self.failures = [each for each in self.failures if via not in (None, each.via)]
        return lost

    def _vbuckets_of(self, via: int | None) -> set[int]:
        return {vb for vb in self.unfinished() if via in (None, self.vias.get(vb, 0))}

    @property
    def failure(self) -> Error | None:
        """The newest of the failures."""
        return self.failures[-1].error if self.failures else None

    def take_failures(self) -> list[Failure]:
        """Return the failures since this was asked last."""
        failures, self.failures = self.failures, []
        return failures

    def ask_again(self, vbuckets: Collection[int]) -> None:  # noqa: B027 - nothing to do where streams have no states
        """Make due the streams of these vbuckets, as far as they are not open."""

    def tolerate_opaques(self, earlier: int, via: int = 0) -> None:
        """Leave out messages under opaques below `earlier`: they belong to an earlier user of a connection."""
        self._opaques[via].earlier = max(self._opaques[via].earlier, earlier)

    def connection_ended(self) -> bool:
        """Take note that the producer ended the connection in order. Return whether that is an end, not a loss."""
        return False

    @abstractmethod
    def set_end(self, vbucket: int, end_seqno: int) -> None:
        """Say where a vbucket of `needs_end` ends."""

    @abstractmethod
    def leave_out(self, vbucket: int) -> None:
        """Expect nothing more of a vbucket of `needs_end`: no node serves it, and the read goes on without it."""

    def set_counts(self, counts: ItemCounts | None) -> str:
        """Take the item counts of `needs_counts`, None if the server has none. Return a warning, or nothing.

        Raises Unreachable if the stream stays incomplete.
        """
        return ""

    @property
    def unsettled(self) -> bool:
        """May everything have been sent that existed, though no message says so?"""
        return False

    def settle(self) -> None:
        """Note that nothing has come for a while."""
        self.needs_counts = self.unsettled

    # what arrives

    def receive(self, events: Iterable[ReceiveEvent], via: int = 0) -> bytes:
        """Take the events of one read and return what must be sent at once: answers to noops, acknowledgements.

        via: of several connections at a time, which one it was; there the answer goes.
        Raises OrderViolation if the producer breaks the order of its streams, ConnectionClosed if a stream cannot go on
        over this connection: another one may mend that.
        Raises RemoteProtocolError for any other rule that it breaks, StatusError for a refusal that no retry mends.
        """
        self._via = via
        events = iter(events)
        try:
            for event in events:
                if isinstance(event, Run):
                    self._on_run(event)
                elif isinstance(event, Frame):
                    self._on_frame(event)
        except (OrderViolation, ConnectionClosed) as error:
            if isinstance(error, OrderViolation) and error.vbucket in self.unfinished():
                self.troubled.add(error.vbucket)
            self._flush()  # what came before it holds
            left = sum(len(event.offsets) if isinstance(event, Run) else 1 for event in events)
            self.dropped.add(DropReason.BEHIND_VIOLATION, left)
            self._nbytes = 0  # nothing more is acknowledged to this connection
            raise
        self._flush()
        self._dealt_with(self._take_count())
        return self._take_outgoing()

    def consumed(self, delivery: Delivery) -> bytes:
        """Note that the caller is done with a delivery; return what acknowledges it where it came from."""
        self._via = delivery.via
        self.queued_bytes -= delivery.nbytes
        if delivery.connection == self._generations[delivery.via]:
            self._consumed += 1
            self._dealt_with(delivery.nbytes)
        return self._take_outgoing()

    def take_positions(self) -> dict[int, Position]:
        """Return the positions that have moved without a change; nothing while a change is still to be handed out."""
        return {}

    def leave(self, via: int = 0) -> bytes:
        """Return the last that has to be sent by a connection before somebody else uses it."""
        self._via = via
        self._dealt_with(0, at_once=True)
        return self._take_outgoing()

    @abstractmethod
    def _on_run(self, run: Run) -> None:
        """Take consecutive data messages."""

    @abstractmethod
    def _on_frame(self, frame: Frame) -> None:
        """Take any other message."""

    @abstractmethod
    def _dealt_with(self, nbytes: int, *, at_once: bool = False) -> None:
        """Note that so many bytes were consumed, or held nothing to hand out; send what that makes due.

        at_once: send also what could wait.
        """

    # what is handed out

    def _take_count(self) -> int:
        """Return the bytes that arrived since the last delivery: what they held was dropped or dealt with."""
        nbytes, self._nbytes = self._nbytes, 0
        return nbytes

    def _take_outgoing(self) -> bytes:
        outgoing, self._outgoing = b"".join(self._outgoing), []
        return outgoing

    def _flush(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._deliver(rows)

    def _moved_positions(self) -> dict[int, Position]:
        """Return the positions that have moved since this was asked last."""
        return {}

    def _new_logs(self) -> dict[int, FailoverLog]:
        """Return the failover logs that have become known since this was asked last."""
        return {}

    def _deliver(self, content: pa.RecordBatch | list[Change]) -> None:
        positions, logs = self._moved_positions(), self._new_logs()
        delivery = Delivery(content, positions, self._take_count(), self._generations[self._via], logs, self._via)
        self.queued_bytes += delivery.nbytes
        self._delivered += 1
        self.deliveries.append(delivery)
