"""The consumer of TAP without its socket: one stream for all vbuckets, without positions and without an end message.

TAP cannot resume. A producer begins a vbucket again with INITIAL_VBUCKET_STREAM; a rollback row to 0 then cuts off what
the vbucket had. Only what the producer announces, or flushes, is cut off: after a crash, ep-engine 3.1.6 announces
nothing, sends no backfill and goes on. A lost connection ends a stream of what comes from now on.
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

__all__ = ["TapFeed"]

_FUTURE = 2**64 - 1
"""As the date of a backfill: only what comes. Source: TAP, "Backfill"."""


class TapFeed(ConsumerFeed):
    """What one TAP connection after another sends. Attributes as of ConsumerFeed; there are no positions."""

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
        """Begin with the stream due.

        Args:
            vbuckets: how many the bucket has.
            chosen: the vbuckets to follow.
            window: bytes that may wait for the caller.
            from_now: nothing of what exists.
            until_now: nothing of what comes.
            content: with values, or without where the node can leave them out.

        Raises UsageError for a vbucket that the bucket does not have.
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
        return self._tap_dump.chosen

    @property
    def is_done(self) -> bool:
        return self._tap_dump.is_done

    @property
    def can_resume(self) -> bool:
        return not (self._from_now and self._tap_dump.is_requested)

    @property
    def is_endless(self) -> bool:
        return not self._until_now

    def forget_connection(self, connection_id: int | None = None) -> Collection[int]:
        lost = super().forget_connection(connection_id)
        self._connections += 1
        self._tap_dump.forget_connection()
        # TAP has no seqnos to end at; but a dump must not pass over vbuckets that are not served.
        self.pending_ends.clear()
        if self._until_now and not self.is_done:
            self.pending_ends.update(self._tap_dump.due)
        if self._connections > 1 and not self.is_done:
            self.recovering.update(self._tap_dump.chosen)
        return lost

    def set_end(self, vbucket: int, end_seqno: int) -> None:
        self.pending_ends.discard(vbucket)

    def skip_vbucket(self, vbucket: int) -> None:
        self.pending_ends.discard(vbucket)
        self._tap_dump.skip_vbucket(vbucket)

    def take_requests(self, allocate_opaque: Callable[[], int], held: Collection[int] = ()) -> list[TapConnect]:
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
