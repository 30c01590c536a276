"""Parked requests that wait for a bucket's disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.errors import NotMyVbucket, StatusError, TemporaryFailure
from penstock.node.answers import GiveUp, Parked, Resume
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.store.bucket_store import BucketStore
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState

__all__ = ["PersistenceWaits"]


@dataclass(eq=False, slots=True)
class _Waiter:
    """A parked request.

    Attributes:
        vbucket: None if the request is not about one.
        is_done: tells whether what it waits for is on disk.
        reply: the answer once it is.
        resume: takes the answer.
        too_late: the answer where that fails.
        timer: ends the wait.
    """

    vbucket: Vbucket | None
    is_done: Callable[[], bool]
    reply: bytes
    resume: Resume
    too_late: StatusError | None = None
    timer: asyncio.TimerHandle | None = None


class PersistenceWaits:
    """Requests to one bucket that are parked until something is on disk.

    Args:
        store: the bucket.
        patience: seconds that a request may wait.
        commit_soon: called when a request begins to wait.

    Attributes:
        patience: seconds that a request may wait, from now on.
        obstacle: why nothing gets to disk, for the error of a request that has waited too long; empty where it does.
    """

    def __init__(self, store: BucketStore, *, patience: float, commit_soon: Callable[[], None]) -> None:
        self.patience = patience
        self.obstacle = ""
        self._store = store
        self._commit_soon = commit_soon
        self._loop = asyncio.get_running_loop()
        self._waiters: set[_Waiter] = set()

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._waiters)

    def until(
        self,
        vbucket: Vbucket | None,
        is_done: Callable[[], bool],
        reply: bytes,
        *,
        patience: float | None = None,
        too_late: StatusError | None = None,
    ) -> bytes:
        """Return the reply to a request if what it asks for is on disk.

        Args:
            vbucket: the vbucket that the request is about, None if it is not about one.
            is_done: tells whether it is on disk.
            reply: to the request.
            patience: seconds to wait, None: as long as any request.
            too_late: the answer after that, and after whatever else ends the wait; None: TemporaryFailure, or
                NotMyVbucket where that is what has happened.

        Raises:
            Parked: it is not on disk yet.
            TemporaryFailure: nothing is confirmed any more. Or `too_late`.
        """
        if self._store.log.commits.broken:
            raise too_late or self._no_more()
        if is_done():
            return reply
        waiter = partial(_Waiter, vbucket, is_done, reply, too_late=too_late)
        raise Parked(partial(self._enter, waiter, self.patience if patience is None else patience))

    def answer(self) -> None:
        """Answer the requests whose wait is over."""
        for waiter in tuple(self._waiters):
            if self._store.log.commits.broken:
                self._end(waiter, self._no_more())
            elif waiter.is_done():
                self._end(waiter, waiter.reply)

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """End the waits for a vbucket: what they waited for may be gone, or others' concern."""
        for waiter in self._waiters:
            if waiter.vbucket is vbucket:
                error: StatusError = TemporaryFailure(f"vbucket {vbucket.id}: {event.value}", vbucket=vbucket.id)
                if vbucket.history.state is not VbucketState.ACTIVE:
                    error = NotMyVbucket(vbucket=vbucket.id)
                self._loop.call_soon(self._end, waiter, error)

    def close(self) -> None:
        """End all waits without an answer."""
        for waiter in tuple(self._waiters):
            self._forget(waiter)

    def _enter(self, make: Callable[[Resume], _Waiter], patience: float, resume: Resume) -> GiveUp:
        waiter = make(resume)
        waiter.timer = self._loop.call_later(patience, self._give_up, waiter, patience)
        self._waiters.add(waiter)
        self._commit_soon()
        return partial(self._forget, waiter)

    def _give_up(self, waiter: _Waiter, patience: float) -> None:
        number = 0 if waiter.vbucket is None else waiter.vbucket.id
        what = f"bucket {self._store.name}" if waiter.vbucket is None else f"vbucket {number}"
        why = f": {self.obstacle}" if self.obstacle else ""
        self._end(waiter, TemporaryFailure(f"{what}: not on disk after {patience:g} s{why}", vbucket=number))

    def _end(self, waiter: _Waiter, answer: bytes | StatusError) -> None:
        if waiter in self._waiters:
            self._forget(waiter)
            waiter.resume(waiter.too_late or answer if isinstance(answer, StatusError) else answer)

    def _forget(self, waiter: _Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        self._waiters.discard(waiter)

    def _no_more(self) -> TemporaryFailure:
        return TemporaryFailure(
            f"bucket {self._store.name}: {self._store.log.room.fault}; nothing is confirmed any more"
        )
