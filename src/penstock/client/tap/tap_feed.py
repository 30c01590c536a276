"""The consumer of TAP without its socket: one stream for all vbuckets, without positions and without an end message.

TAP cannot resume. A producer restarts a vbucket with INITIAL_VBUCKET_STREAM. The feed then emits a rollback row to 0,
which makes the earlier changes of the vbucket void. It does so only for vbuckets that the producer announces or
flushes: after a crash, ep-engine 3.1.6 announces nothing, sends no backfill and goes on.
A stream that starts "now" ends when its connection is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.client.feeds.collection_selection import PLAIN_CONTENT, StreamContent
from penstock.client.feeds.consumer_feed import ConsumerFeed, FeedState
from penstock.client.tap.tap_dump import TapDump
from penstock.client.tap.tap_messages import TapMessages, TapOutput
from penstock.client.tap.tap_vbuckets import TapVbuckets
from penstock.errors import UsageError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import TapConnectFlag
from penstock.wire.messages.tap import TapConnect, TapOptions

_FUTURE = 2**64 - 1
"""As the date of a backfill: no existing documents, only later changes. Source: TAP, "Backfill"."""


class TapFeed(ConsumerFeed):
    """A TAP stream over consecutive connections. Its attributes are those of ConsumerFeed, without positions."""

    def __init__(
        self,
        vbuckets: int,
        chosen: Collection[int],
        *,
        window: int,
        from_now: bool = False,
        until_now: bool = False,
        content: StreamContent = PLAIN_CONTENT,
    ) -> None:
        """Create a feed whose stream is due.

        Args:
            vbuckets: the number of vbuckets of the bucket.
            chosen: the vbuckets to read.
            window: bytes of changes that may wait for the caller.
            from_now: leave out documents that exist already.
            until_now: leave out changes that come later.
            content: with or without values; a node that cannot leave values out sends them.

        Raises:
            UsageError: the bucket does not have a chosen vbucket.
        """
        if foreign := [vb for vb in chosen if not 0 <= vb < vbuckets]:
            raise UsageError(f"vbucket {foreign[0]}, expected one below {vbuckets}")
        output = TapOutput()
        state = FeedState(Dialect.TAP, vbuckets, window, output)
        self._vbuckets = TapVbuckets(state)
        self._tap_dump = TapDump(state, self._vbuckets, chosen, from_now=from_now, until_now=until_now)
        arrivals = TapMessages(state, output, self._vbuckets, self._tap_dump)
        super().__init__(state, {}, content, arrivals, self._tap_dump)
        self._from_now = from_now
        self._until_now = until_now
        self._connections = 0
        self.forget_connection()

    def find_unfinished(self) -> Collection[int]:
        """Return the vbuckets to read: a TAP stream ends for all vbuckets at once."""
        return self._tap_dump.chosen

    @property
    def is_done(self) -> bool:
        """Whether a dump is complete; a stream without end never is."""
        return self._tap_dump.is_done

    @property
    def can_resume(self) -> bool:
        """Whether another connection may repeat the stream. A stream that starts "now" would miss changes."""
        return not (self._from_now and self._tap_dump.is_requested)

    @property
    def is_endless(self) -> bool:
        """Whether the stream has no end."""
        return not self._until_now

    def forget_connection(self, connection_id: int | None = None) -> Collection[int]:
        """Return the vbuckets of a lost connection, and make the stream due again. See ConsumerFeed."""
        lost = super().forget_connection(connection_id)
        self._connections += 1
        self._tap_dump.forget_connection()
        # TAP has no end seqnos. But the request of end seqnos fails for vbuckets that are not served, or skips them.
        self.pending_ends.clear()
        if self._until_now and not self.is_done:
            self.pending_ends.update(self._tap_dump.due)
        if self._connections > 1 and not self.is_done:
            self.recovering.update(self._tap_dump.chosen)
        return lost

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        """Record that a vbucket is served. The end seqno is not used."""
        self.pending_ends.discard(vbucket)

    def skip_vbucket(self, vbucket: int) -> None:
        """Leave a vbucket out, because no node serves it."""
        self.pending_ends.discard(vbucket)
        self._tap_dump.skip_vbucket(vbucket)

    def take_requests(self, allocate_opaque: Callable[[], int], held: Collection[int] = ()) -> list[TapConnect]:
        """Return the request of the stream if it is due. While any vbucket is held, the request waits."""
        dump = self._tap_dump
        if dump.is_requested or dump.is_done or held:
            return []
        dump.begin()
        self._vbuckets.begin(dump.due)
        flags = TapConnectFlag.SUPPORT_ACK | TapConnectFlag.FIX_FLAG_BYTEORDER
        if self._from_now:
            flags |= TapConnectFlag.BACKFILL
        if self._until_now:
            flags |= TapConnectFlag.DUMP
        if not self.content.values:
            flags |= TapConnectFlag.REQUEST_KEYS_ONLY
        if len(dump.due) < self.vbuckets:
            flags |= TapConnectFlag.LIST_VBUCKETS
        options = TapOptions(flags, backfill=_FUTURE, vbuckets=tuple(sorted(dump.due)))
        return [TapConnect(flags=flags, value=options.pack(), opaque=allocate_opaque())]
