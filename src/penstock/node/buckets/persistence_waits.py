"""Parked requests that wait until changes of a bucket are on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.errors import NotMyVbucket, StatusError, TemporaryFailure
from penstock.node.answers import CancelWait, Parked, Resume
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.store.bucket_store import BucketStore
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState


@dataclass(eq=False, slots=True)
class _Waiter:
    """A parked request.

    Attributes:
        vbucket: the vbucket of the request; None: the whole bucket.
        is_done: returns whether the changes are on disk.
        reply: the reply once they are.
        resume: takes the reply.
        timeout_error: the reply if the wait fails; None: an error with the reason.
        timer: ends the wait.
    """

    vbucket: Vbucket | None
    is_done: Callable[[], bool]
    reply: bytes
    resume: Resume
    timeout_error: StatusError | None = None
    timer: asyncio.TimerHandle | None = None


class PersistenceWaits:
    """Requests to one bucket that wait until changes are on disk.

    Args:
        store: the bucket.
        timeout: seconds that a request may wait.
        commit_soon: called when a request begins to wait.

    Attributes:
        timeout: seconds that further requests may wait.
        obstacle: why nothing is written to disk, for the error after a timeout; empty if there is no obstacle.
    """

    def __init__(self, store: BucketStore, *, timeout: float, commit_soon: Callable[[], None]) -> None:
        self.timeout = timeout
        self.obstacle = ""
        self._store = store
        self._commit_soon = commit_soon
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[_Waiter, None] = {}

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiters)

    def reply_when(
        self,
        vbucket: Vbucket | None,
        is_done: Callable[[], bool],
        reply: bytes,
        *,
        timeout: float | None = None,
        timeout_error: StatusError | None = None,
    ) -> bytes:
        """Return the reply to a request if the changes that it waits for are on disk.

        Args:
            vbucket: the vbucket of the request; None: the whole bucket.
            is_done: returns whether the changes are on disk.
            reply: the reply to the request.
            timeout: seconds to wait; None: as the attribute.
            timeout_error: the reply if the wait fails for any reason; None: TemporaryFailure, or NotMyVbucket if the
                vbucket is no longer active.

        Raises:
            Parked: the changes are not on disk yet.
            TemporaryFailure: the disk has failed for good. `timeout_error` is raised instead if there is one.
        """
        if self._store.log.commits.is_broken:
            raise timeout_error or self._make_broken_error()
        if is_done():
            return reply
        waiter = partial(_Waiter, vbucket, is_done, reply, timeout_error=timeout_error)
        raise Parked(partial(self._add_waiter, waiter, self.timeout if timeout is None else timeout))

    def answer_finished(self) -> None:
        """Answer the requests whose wait is over."""
        for waiter in tuple(self._waiters):
            if self._store.log.commits.is_broken:
                self._end_wait(waiter, self._make_broken_error())
            elif waiter.is_done():
                self._end_wait(waiter, waiter.reply)

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """End the waits for a vbucket: its changes may no longer exist, or be another node's."""
        for waiter in self._waiters:
            if waiter.vbucket is vbucket:
                error: StatusError = TemporaryFailure(f"vbucket {vbucket.id}: {event.value}", vbucket=vbucket.id)
                if vbucket.history.state is not VbucketState.ACTIVE:
                    error = NotMyVbucket(vbucket=vbucket.id)
                self._loop.call_soon(self._end_wait, waiter, error)

    def close(self) -> None:
        """End all waits without an answer."""
        for waiter in tuple(self._waiters):
            self._remove_waiter(waiter)

    def _add_waiter(self, make: Callable[[Resume], _Waiter], timeout: float, resume: Resume) -> CancelWait:
        waiter = make(resume)
        waiter.timer = self._loop.call_later(timeout, self._time_out, waiter, timeout)
        self._waiters[waiter] = None
        self._commit_soon()
        return partial(self._remove_waiter, waiter)

    def _time_out(self, waiter: _Waiter, timeout: float) -> None:
        number = 0 if waiter.vbucket is None else waiter.vbucket.id
        subject = f"bucket {self._store.name}" if waiter.vbucket is None else f"vbucket {number}"
        reason = f": {self.obstacle}" if self.obstacle else ""
        self._end_wait(waiter, TemporaryFailure(f"{subject}: not on disk after {timeout:g} s{reason}", vbucket=number))

    def _end_wait(self, waiter: _Waiter, answer: bytes | StatusError) -> None:
        if waiter in self._waiters:
            self._remove_waiter(waiter)
            waiter.resume(waiter.timeout_error or answer if isinstance(answer, StatusError) else answer)

    def _remove_waiter(self, waiter: _Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        self._waiters.pop(waiter, None)

    def _make_broken_error(self) -> TemporaryFailure:
        return TemporaryFailure(
            f"bucket {self._store.name}: {self._store.log.room.fault}; nothing is confirmed any more"
        )
