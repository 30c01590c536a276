"""What a bucket needs done by itself: loading its keys after a start, ending documents whose time is over, and deleting
old ones while memory is short.

All of it runs on the event loop, in slices of a few milliseconds. The same goes for what a new manifest says to the
vbuckets, and for a flush of all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.errors import TemporaryFailure
from penstock.node.buckets.histogram import Histogram
from penstock.store.bucket_store import BucketStore

__all__ = ["Upkeep", "WhenSpread"]

_LOOK_SECONDS = 5.0
_SPREAD_SECONDS = 0.002  # of events that vbuckets write in one turn; 1,000 of one vbucket's take 5 ms, a seal 10 ms
_REFUSED_SECONDS = 1.0  # until that is tried again while the log takes nothing


WhenSpread = Callable[[TemporaryFailure | None], None]
"""Called when the vbuckets have caught up, or the log takes nothing; with the reason why a flush was given up."""


class Upkeep:
    """Of one bucket. To be made, and used, on the event loop's thread.

    Args:
        look: called every few seconds, and where documents have expired.

    Attributes:
        pages: rounds of the expiry pager.
        pager_times: of the slices of these rounds.
        pager_seconds: from the end of one round to the next.
        pager_enabled: whether there are any rounds.
        keys_loaded: whether the start has left nothing to load.
        load_times: of the slices in which keys are loaded.
        load_seconds: from the opening of the bucket until all keys were loaded.
    """

    def __init__(self, store: BucketStore, *, pager_seconds: float, look: Callable[[], None]) -> None:
        self.store = store
        self.pages = 0
        self.keys_loaded = False
        self.pager_times, self.load_times = Histogram(), Histogram()
        self.load_seconds = 0.0
        self.pager_seconds = pager_seconds
        self.pager_enabled = True
        self._in_round = False  # the last slice has left something to do
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()
        self._loader: asyncio.Handle = self._loop.call_soon(self._load)
        self._pager = self._loop.call_later(pager_seconds, self.page)
        self._looker = self._loop.call_later(_LOOK_SECONDS, self._look_around)
        self._spreader: asyncio.Handle | None = None
        self._awaiting: dict[object, WhenSpread] = {}
        self._freer: asyncio.Handle | None = None

    def free_memory(self) -> None:
        """Begin to delete old documents, if the bucket may do so and memory is short."""
        store = self.store
        if self._freer is None and store.settings.auto_delete and store.log.quota.is_pressed:
            self._freer = self._loop.call_soon(self._free_some)

    def _free_some(self) -> None:
        began = self._loop.time()
        more = self.store.memory.delete_some()
        self._look()
        # As long again for the others.
        self._freer = self._loop.call_later(self._loop.time() - began, self._free_some) if more else None

    def _load(self) -> None:
        began = self._loop.time()
        has_more = self.store.keys.load_some()
        if has_more or not self.keys_loaded:
            self.load_times.record(self._loop.time() - began)
        if has_more:
            # As long again for the others: whoever asks for a document meanwhile waits for one slice at most.
            self._loader = self._loop.call_later(self._loop.time() - began, self._load)
        elif not self.keys_loaded:
            self.keys_loaded = True
            self.load_seconds = self._loop.time() - self._opened_at

    def set_pager(self, *, seconds: float | None = None, enabled: bool | None = None) -> None:
        """Change how often the expiry pager runs, and whether it does; None: as before."""
        self.pager_seconds = self.pager_seconds if seconds is None else seconds
        self.pager_enabled = self.pager_enabled if enabled is None else enabled
        if not self._in_round:
            self._call_pager(self.pager_seconds)

    @property
    def next_page(self) -> float | None:
        """When the expiry pager runs next, by the event loop's clock; None if it does not."""
        return None if self._pager.cancelled() else self._pager.when()

    def _call_pager(self, seconds: float) -> None:
        """Let the next slice come after so many seconds. Without the pager, only if dropped documents are left."""
        self._pager.cancel()
        if self.pager_enabled or self._in_round:
            self._pager = self._loop.call_later(seconds, self.page)

    def page(self) -> None:
        """Go on with a round of the expiry pager, or begin one now; without the pager, erase what was dropped."""
        began = self._loop.time()
        self._in_round = self.store.pager.expire_some() if self.pager_enabled else self.store.eraser.erase_some()
        self._look()
        self.pages += self.pager_enabled and not self._in_round
        self.pager_times.record(self._loop.time() - began)
        self._call_pager(self._loop.time() - began if self._in_round else self.pager_seconds)

    def spread(self) -> None:
        """Let the vbuckets that are behind a manifest or a flush catch up, some of them now.

        While the log takes nothing, that is tried again and again, and nobody waits for it. A flush is given up then.
        """
        if self._spreader is not None:
            self._spreader.cancel()
            self._spreader = None
        until = self._loop.time() + _SPREAD_SECONDS
        while (more := self.store.rollout.spread()) and self._loop.time() < until:
            pass
        self._look()
        if more:
            self._spreader = self._loop.call_soon(self._take_breath)
            return
        if self.store.rollout.is_due:
            fault = self.store.log.room.fault or "nothing can be stored just now, try again soon"
            self._answer(TemporaryFailure(fault) if self.store.rollout.abandon_flush() else None)
            self._spreader = self._loop.call_later(_REFUSED_SECONDS, self.spread)
        else:
            self._answer(None)
            self.page()  # what was dropped is erased

    def _answer(self, refusal: TemporaryFailure | None) -> None:
        for key in self._awaiting:
            self._loop.call_soon(self._call, key, refusal)

    def _call(self, key: object, refusal: TemporaryFailure | None) -> None:
        callback = self._awaiting.pop(key, None)
        if callback is not None:
            callback(refusal)

    def spread_soon(self) -> None:
        """Let vbuckets that are behind begin to catch up in a turn of its own."""
        if isinstance(self._spreader, asyncio.TimerHandle):  # until the log is tried again
            self._spreader.cancel()
            self._spreader = None
        if self._spreader is None:
            self._spreader = self._loop.call_soon(self.spread)

    def _take_breath(self) -> None:
        """Go on one turn later: what has come meanwhile is served first."""
        self._spreader = self._loop.call_soon(self.spread)

    def when_spread(self, callback: WhenSpread) -> Callable[[], None]:
        """Call a function, in a turn of its own, once no vbucket is behind, or the log takes nothing.

        Returns what prevents that.
        """
        key = object()
        self._awaiting[key] = callback
        self.spread_soon()

        def give_up() -> None:
            self._awaiting.pop(key, None)

        return give_up

    def _look_around(self) -> None:
        self._look()
        if self.keys_loaded:
            self._load()  # or free what was left of a vbucket since
        self._looker = self._loop.call_later(_LOOK_SECONDS, self._look_around)

    def close(self) -> None:
        for timer in (self._loader, self._pager, self._looker, self._spreader, self._freer):
            if timer is not None:
                timer.cancel()
        self._answer(TemporaryFailure("the bucket is being closed"))
