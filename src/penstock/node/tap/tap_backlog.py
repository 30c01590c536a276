"""What waits to be sent to one TAP consumer: notices, changes that it refused, and vbuckets with changes to send."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.node.tap.tap_stream import TapStream
from penstock.node.tap_state.tap_clients import Phase, TapClient, TapPosition
from penstock.wire.messages.tap import TapMessage

__all__ = ["TapBacklog", "TapNotice", "TapNotices", "TapRefusals"]


@dataclass(frozen=True, slots=True)
class TapNotice:
    """A message that is no change.

    Attributes:
        places: where the consumer is with these vbuckets once it has acknowledged the message.
    """

    message: TapMessage
    places: tuple[tuple[TapStream, TapPosition], ...] = ()

    def acknowledge(self) -> None:
        for stream, place in self.places:
            stream.acked = place


class TapNotices:
    """The notices that wait, in order. There is a limit, for a consumer that takes none."""

    def __init__(self, limit: int, give_up: Callable[[str], None]) -> None:
        """give_up: ends the connection, with a reason. It is called once."""
        self._limit = limit
        self._give_up = give_up
        self._has_given_up = False
        self._waiting: deque[TapNotice] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: TapMessage, *streams: TapStream) -> None:
        """Add a notice about some streams, and where they are now."""
        if len(self._waiting) < self._limit:
            self._waiting.append(TapNotice(message, tuple((stream, stream.place) for stream in streams)))
        elif not self._has_given_up:
            self._has_given_up = True
            self._give_up(f"{self._limit} remarks wait for a TAP consumer that takes none")

    def put_back(self, notice: TapNotice) -> None:
        """Put a notice that the consumer refused before all others."""
        self._waiting.appendleft(notice)

    def take(self) -> TapNotice:
        return self._waiting.popleft()


class TapRefusals:
    """The changes that the consumer refused for the moment. They are read from the history again, and sent again.

    The client keeps all of them until it takes them. Those that are not sent again yet wait here.
    """

    def __init__(self, client: TapClient) -> None:
        self._client = client
        self._waiting: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def restore(self, vbuckets: dict[int, TapStream]) -> None:
        """Continue with what the client refused before it came back, of the vbuckets that it still asks for."""
        self._waiting.extend(refused for refused in self._client.refused if refused[0] in vbuckets)
        self._client.refused = dict.fromkeys(self._waiting)

    def add(self, vbucket: int, seqno: int) -> None:
        self._client.refused[vbucket, seqno] = None
        self._waiting.append((vbucket, seqno))

    def take(self) -> tuple[int, int]:
        """Return the vbucket and the seqno of the change that is sent again next."""
        return self._waiting.popleft()

    def settle(self, vbucket: int, seqno: int) -> None:
        """Forget a change: the client has taken it, or it counts no more."""
        self._client.refused.pop((vbucket, seqno), None)

    def drop(self, vbucket: int) -> None:
        """Forget all changes of a vbucket."""
        for refused in [refused for refused in self._client.refused if refused[0] == vbucket]:
            del self._client.refused[refused]
        self._waiting = deque(refused for refused in self._waiting if refused[0] != vbucket)


class TapBacklog:
    """All that waits to be sent over one connection.

    Attributes:
        backfill: the streams whose backfill is to be sent, in order.
        filled: the streams whose backfill was sent. The consumer is yet to be told that it is complete.
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
        """Whether something waits beside the streams that are up to date, or nearly so."""
        return bool(self.notices or self.refusals or self.backfill or self.filled)

    def add(self, stream: TapStream) -> None:
        """Put a stream where its phase says."""
        (self.live if stream.place.phase is Phase.LIVE else self.backfill).append(stream)

    def remove(self, stream: TapStream) -> None:
        """Take a stream out of wherever it waits, and forget what was refused of it."""
        for queue in (self.live, self.backfill, self.filled):
            if stream in queue:
                queue.remove(stream)
        self.refusals.drop(stream.vbucket.id)
