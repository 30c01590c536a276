"""Background work of a bucket on the event loop: loads keys after a start, and deletes expired and old documents.

All of it runs in slices of a few milliseconds, so that requests are served between them. So do the events that a new
manifest writes to the vbuckets, and a flush of all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.errors import TemporaryFailure
from penstock.node.timing.histogram import Histogram
from penstock.store.bucket_store import BucketStore

_CHECK_SECONDS = 5.0
_ROLLOUT_SECONDS = 0.002  # of one turn; 1,000 events of a vbucket take 5 ms, a seal 10 ms
_REFUSED_SECONDS = 1.0  # until the next try while the log accepts no changes


RolloutCallback = Callable[[TemporaryFailure | None], None]
"""Called when the vbuckets have caught up, or the log accepts no changes; its argument is why a flush was abandoned."""


class BucketMaintenance:
    """Background work of one bucket. It must be made and used on the event loop's thread.

    Args:
        store: the bucket's store.
        pager_seconds: time between two runs of the expiry pager.
        on_change: called every few seconds, and after documents were deleted.

    Attributes:
        pager_runs: finished runs of the expiry pager.
        pager_times: durations of the slices of these runs.
        pager_seconds: time from the end of one run to the next.
        pager_enabled: whether the expiry pager runs.
        keys_loaded: all keys that the bucket had at its start are loaded.
        load_times: durations of the slices in which keys are loaded.
        load_seconds: time from the opening of the bucket until all keys were loaded.
    """

    def __init__(self, store: BucketStore, *, pager_seconds: float, on_change: Callable[[], None]) -> None:
        self.store = store
        self.pager_runs = 0
        self.keys_loaded = False
        self.pager_times, self.load_times = Histogram(), Histogram()
        self.load_seconds = 0.0
        self.pager_seconds = pager_seconds
        self.pager_enabled = True
        self._in_round = False  # the last slice left work for another
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._loop.time()
        self._loader: asyncio.Handle = self._loop.call_soon(self._load_keys)
        self._pager = self._loop.call_later(pager_seconds, self.run_pager)
        self._checker = self._loop.call_later(_CHECK_SECONDS, self._check_bucket)
        self._rollout_timer: asyncio.Handle | None = None
        self._callbacks: dict[object, RolloutCallback] = {}
        self._freer: asyncio.Handle | None = None

    def free_memory(self) -> None:
        """Begin to delete old documents, if the bucket permits it and memory is short."""
        store = self.store
        if self._freer is None and store.settings.auto_delete and store.log.quota.is_pressed:
            self._freer = self._loop.call_soon(self._free_some)

    def _free_some(self) -> None:
        began = self._loop.time()
        more = self.store.memory.delete_some()
        self._on_change()
        # A pause as long as the slice leaves half of the time to requests.
        self._freer = self._loop.call_later(self._loop.time() - began, self._free_some) if more else None

    def _load_keys(self) -> None:
        began = self._loop.time()
        has_more = self.store.keys.load_some()
        if has_more or not self.keys_loaded:
            self.load_times.record(self._loop.time() - began)
        if has_more:
            # A pause as long as the slice: a request for a document waits for one slice at most.
            self._loader = self._loop.call_later(self._loop.time() - began, self._load_keys)
        elif not self.keys_loaded:
            self.keys_loaded = True
            self.load_seconds = self._loop.time() - self._opened_at

    def set_pager(self, *, seconds: float | None = None, enabled: bool | None = None) -> None:
        """Change the interval of the expiry pager, and switch it on or off; None: no change."""
        self.pager_seconds = self.pager_seconds if seconds is None else seconds
        self.pager_enabled = self.pager_enabled if enabled is None else enabled
        if not self._in_round:
            self._schedule_pager(self.pager_seconds)

    @property
    def next_pager_run(self) -> float | None:
        """The time of the next run of the expiry pager, by the event loop's clock; None if it is off."""
        return None if self._pager.cancelled() else self._pager.when()

    def _schedule_pager(self, seconds: float) -> None:
        """Schedule the next slice. If the expiry pager is off, only dropped collections need one."""
        self._pager.cancel()
        if self.pager_enabled or self._in_round:
            self._pager = self._loop.call_later(seconds, self.run_pager)

    def run_pager(self) -> None:
        """Continue a run of the expiry pager, or begin one. If the pager is off, erase dropped collections only."""
        began = self._loop.time()
        self._in_round = self.store.pager.expire_some() if self.pager_enabled else self.store.eraser.erase_some()
        self._on_change()
        self.pager_runs += self.pager_enabled and not self._in_round
        self.pager_times.record(self._loop.time() - began)
        self._schedule_pager(self._loop.time() - began if self._in_round else self.pager_seconds)

    def roll_out(self) -> None:
        """Let some of the vbuckets that are behind a manifest or a flush catch up.

        While the log accepts no changes, a manifest is retried every second, and callbacks do not wait for it. A flush
        is
        abandoned.
        """
        if self._rollout_timer is not None:
            self._rollout_timer.cancel()
            self._rollout_timer = None
        until = self._loop.time() + _ROLLOUT_SECONDS
        more = self.store.rollout.catch_up_some()
        while more and self._loop.time() < until:
            more = self.store.rollout.catch_up_some()
        self._on_change()
        if more:
            self._rollout_timer = self._loop.call_soon(self._continue_rollout)
            return
        if self.store.rollout.is_due:
            fault = self.store.log.room.fault or "the log accepts no changes now, try again"
            self._schedule_callbacks(TemporaryFailure(fault) if self.store.rollout.abandon_flush() else None)
            self._rollout_timer = self._loop.call_later(_REFUSED_SECONDS, self.roll_out)
        else:
            self._schedule_callbacks(None)
            self.run_pager()  # erases dropped collections

    def _schedule_callbacks(self, refusal: TemporaryFailure | None) -> None:
        for key in self._callbacks:
            self._loop.call_soon(self._call_back, key, refusal)

    def _call_back(self, key: object, refusal: TemporaryFailure | None) -> None:
        callback = self._callbacks.pop(key, None)
        if callback is not None:
            callback(refusal)

    def roll_out_soon(self) -> None:
        """Let vbuckets that are behind begin to catch up in a turn of the event loop."""
        if isinstance(self._rollout_timer, asyncio.TimerHandle):  # until the log is tried again
            self._rollout_timer.cancel()
            self._rollout_timer = None
        if self._rollout_timer is None:
            self._rollout_timer = self._loop.call_soon(self.roll_out)

    def _continue_rollout(self) -> None:
        """Continue one turn later: requests that have come meanwhile are served first."""
        self._rollout_timer = self._loop.call_soon(self.roll_out)

    def call_after_rollout(self, callback: RolloutCallback) -> Callable[[], None]:
        """Call a function, in a turn of its own, once no vbucket is behind or the log accepts no changes.

        Returns:
            A function that cancels the call.
        """
        key = object()
        self._callbacks[key] = callback
        self.roll_out_soon()

        def give_up() -> None:
            self._callbacks.pop(key, None)

        return give_up

    def _check_bucket(self) -> None:
        self._on_change()
        if self.keys_loaded:
            self._load_keys()  # also frees the remains of deleted vbuckets
        self._checker = self._loop.call_later(_CHECK_SECONDS, self._check_bucket)

    def close(self) -> None:
        """End all background work, and call the waiting callbacks with an error."""
        for timer in (self._loader, self._pager, self._checker, self._rollout_timer, self._freer):
            if timer is not None:
                timer.cancel()
        self._schedule_callbacks(TemporaryFailure("the bucket is being closed"))
