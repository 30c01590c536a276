"""The backlog of one TAP consumer: notices, changes that it has refused, and vbuckets with changes to send."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.node.tap.tap_stream import TapStream
from penstock.node.tap_state.tap_clients import TapClient, TapPhase, TapPosition
from penstock.wire.messages.tap import TapMessage


@dataclass(frozen=True, slots=True)
class TapNotice:
    """A message that is not a change.

    Attributes:
        message: the message.
        positions: the positions of the consumer once it has acknowledged the message.
    """

    message: TapMessage
    positions: tuple[tuple[TapStream, TapPosition], ...] = ()

    def acknowledge(self) -> None:
        """Move the acknowledged positions of the streams."""
        for stream, place in self.positions:
            stream.acked_position = place


class TapNotices:
    """The notices that wait, in order. A limit protects against a consumer that takes none."""

    def __init__(self, limit: int, on_overflow: Callable[[str], None]) -> None:
        """Create an empty queue.

        Args:
            limit: most notices that may wait.
            on_overflow: closes the connection, with a reason. It is called once.
        """
        self._limit = limit
        self._on_overflow = on_overflow
        self._has_overflowed = False
        self._waiting: deque[TapNotice] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: TapMessage, *streams: TapStream) -> None:
        """Add a notice about some streams, with their present positions."""
        if len(self._waiting) < self._limit:
            self._waiting.append(TapNotice(message, tuple((stream, stream.position) for stream in streams)))
        elif not self._has_overflowed:
            self._has_overflowed = True
            self._on_overflow(f"{self._limit} notices wait for a TAP consumer that reads none")

    def put_back(self, notice: TapNotice) -> None:
        """Put a notice that the consumer has refused before all other notices."""
        self._waiting.appendleft(notice)

    def pop_notice(self) -> TapNotice:
        """Return the next notice, and remove it."""
        return self._waiting.popleft()


class TapRefusals:
    """Changes that the consumer has refused for the moment. They are read from the history and sent again.

    The client keeps each of them until the consumer accepts it. Those that were not sent again yet wait here.
    """

    def __init__(self, client: TapClient) -> None:
        self._client = client
        self._waiting: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def restore(self, vbuckets: dict[int, TapStream]) -> None:
        """Continue with the refused changes of a returned client, in the vbuckets that it still requests."""
        self._waiting.extend(refused for refused in self._client.refused if refused[0] in vbuckets)
        self._client.refused = dict.fromkeys(self._waiting)

    def add(self, vbucket: int, seqno: int) -> None:
        """Add a change that the consumer has refused."""
        self._client.refused[vbucket, seqno] = None
        self._waiting.append((vbucket, seqno))

    def pop_change(self) -> tuple[int, int]:
        """Return the vbucket and seqno of the next change, and remove it."""
        return self._waiting.popleft()

    def remove_change(self, vbucket: int, seqno: int) -> None:
        """Forget a change that the consumer has accepted, or that was superseded."""
        self._client.refused.pop((vbucket, seqno), None)

    def remove_vbucket(self, vbucket: int) -> None:
        """Forget all changes of a vbucket."""
        for refused in [refused for refused in self._client.refused if refused[0] == vbucket]:
            del self._client.refused[refused]
        self._waiting = deque(refused for refused in self._waiting if refused[0] != vbucket)


class TapBacklog:
    """All pending messages of one connection.

    Attributes:
        notices: the notices that wait.
        refusals: the refused changes that wait.
        backfill: the streams with a backfill to send, in order.
        filled: the streams with a completed backfill, before the message about its end.
        live: the streams that may have new changes, in the order of their turns.
    """

    def __init__(self, notices: TapNotices, refusals: TapRefusals) -> None:
        self.notices = notices
        self.refusals = refusals
        self.backfill: deque[TapStream] = deque()
        self.filled: deque[TapStream] = deque()
        self.live: deque[TapStream] = deque()

    def __len__(self) -> int:
        streams = len(self.backfill) + len(self.filled) + len(self.live)
        return len(self.notices) + len(self.refusals) + streams

    @property
    def has_old_changes(self) -> bool:
        """Whether something waits beside new changes."""
        return bool(self.notices or self.refusals or self.backfill or self.filled)

    def add(self, stream: TapStream) -> None:
        """Add a stream to the queue of its phase."""
        (self.live if stream.position.phase is TapPhase.LIVE else self.backfill).append(stream)

    def remove(self, stream: TapStream) -> None:
        """Remove a stream from its queue, and forget its refused changes."""
        for queue in (self.live, self.backfill, self.filled):
            if stream in queue:
                queue.remove(stream)
        self.refusals.remove_vbucket(stream.vbucket.id)
