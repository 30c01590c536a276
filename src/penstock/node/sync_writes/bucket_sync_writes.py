"""Carries out the decisions about the synchronous writes of a bucket, and answers the requests that wait for them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.errors import StatusError, make_status_error
from penstock.node.answers import CancelWait, Parked, Resume
from penstock.store.bucket_store import BucketStore
from penstock.store.documents.durability_monitor import Decision, DurabilityMonitor, format_chains
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.vbucket_changes import REFUSED
from penstock.store.history.vbucket_prepares import Chains
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status

logger = logging.getLogger("penstock.node")

DEFAULT_SECONDS: Final = 30.0
"""Seconds after which a write without a time limit of its own is aborted. Source: kv_engine, durability_timeout."""

_RETRY_SECONDS = 0.25


@dataclass(eq=False, slots=True)
class _SyncWrite:
    """An undecided write.

    Attributes:
        key: the key of the document.
        make_reply: returns the reply for the seqno of the commit.
        resume: takes the reply; None: no client waits.
        timer: ends the time limit; None: there is none.
    """

    key: bytes
    make_reply: Callable[[int], bytes]
    resume: Callable[[bytes | StatusError], None] | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False, slots=True)
class _VbucketWrites:
    """The undecided writes of an active vbucket.

    Attributes:
        vbucket: the vbucket.
        monitor: decides the writes.
        writes: the writes by the seqno of their prepare.
        due: decisions that the log has not accepted yet.
        retry: the timer of the next attempt.
    """

    vbucket: Vbucket
    monitor: DurabilityMonitor
    writes: dict[int, _SyncWrite] = field(default_factory=dict)
    due: deque[Decision] = field(default_factory=deque)
    retry: asyncio.TimerHandle | None = None


class BucketSyncWrites:
    """The synchronous writes of one bucket. It must be made and used on the event loop's thread.

    Attributes:
        on_persisted: called after each commit to disk, for replicas that acknowledge persisted prepares.
    """

    def __init__(
        self, store: BucketStore, *, find_default_chains: Callable[[], Chains], notify: Callable[[], None]
    ) -> None:
        """Create the writes of a bucket.

        Args:
            store: the bucket.
            find_default_chains: returns the replication chains of the vbuckets for which none were set.
            notify: wakes the streams of changed vbuckets.
        """
        self.on_persisted: dict[Callable[[], None], None] = {}
        self._store = store
        self._find_default_chains = find_default_chains
        self._notify = notify
        self._active: dict[int, _VbucketWrites] = {}

    # Topology and state

    def use_chains(self, vbucket: Vbucket) -> None:
        """Decide with the replication chains that a vbucket has now."""
        if vbucket.id in self._active:
            self._active[vbucket.id].monitor.chains = self.get_chains(vbucket)
            self._settle_soon(vbucket)

    def check_possible(self, vbucket: Vbucket) -> None:
        """Raise StatusError if the vbucket has too few replicas for a majority."""
        monitor = DurabilityMonitor(self.get_chains(vbucket))
        if not monitor.is_possible:
            text = f"vbucket {vbucket.id}: no majority of the nodes in {format_chains(monitor.chains)}"
            raise make_status_error(Status.DURABILITY_IMPOSSIBLE, text, vbucket=vbucket.id)

    def renew(self, vbucket: Vbucket) -> None:
        """Handle a new state, a flush or the deletion of a vbucket. Undecided writes of an active vbucket go on."""
        left = self._active.pop(vbucket.id, None)
        if left is not None:
            for write in left.writes.values():
                _end_write(write, _make_ambiguous_error(vbucket, f"{vbucket.id}: the vbucket has changed"))
            if left.retry is not None:
                left.retry.cancel()
        if vbucket.history.state is VbucketState.ACTIVE and vbucket.history.prepares.pending:
            self._get_writes(vbucket)
            self._settle_soon(vbucket)

    def resume_all(self) -> None:
        """Go on with the undecided writes that the bucket had when it was opened."""
        for vbucket in self._store.vbuckets:
            if vbucket.history.prepares.pending:
                self.renew(vbucket)

    def get_chains(self, vbucket: Vbucket) -> Chains:
        """Return the replication chains of a vbucket."""
        return vbucket.history.prepares.chains or self._find_default_chains()

    def _get_writes(self, vbucket: Vbucket) -> _VbucketWrites:
        """Return the writes of an active vbucket. Prepares that it has already get no time limit."""
        found = self._active.get(vbucket.id)
        if found is None:
            found = self._active[vbucket.id] = _VbucketWrites(vbucket, DurabilityMonitor(self.get_chains(vbucket)))
            for key, prepare in vbucket.history.prepares.pending.items():
                found.monitor.track(prepare)
                found.writes[prepare.seqno] = _SyncWrite(key, _make_no_reply)
        return found

    # Writes

    def begin(self, vbucket: Vbucket, key: bytes, make_reply: Callable[[int], bytes], timeout: float | None) -> bytes:
        """Wait until a prepared write is decided, and return its reply.

        Args:
            vbucket: the vbucket.
            key: the key of the document, whose prepare is the newest change.
            make_reply: returns the reply for the seqno of the commit.
            timeout: seconds after which the write is aborted; None: the default.

        Returns:
            The reply, if the write is decided at once.

        Raises:
            Parked: the reply follows later.
            StatusError: the write was aborted.
        """
        seqno = vbucket.history.prepares.pending[key].seqno
        answers: list[bytes | StatusError] = []
        writes = self._get_writes(vbucket)
        if seqno not in writes.writes:  # the first write of the vbucket is tracked already
            writes.monitor.track(vbucket.history.prepares.pending[key])
        write = writes.writes[seqno] = _SyncWrite(key, make_reply, answers.append)
        self._settle(writes)
        if answers:
            if isinstance(answers[0], StatusError):
                raise answers[0]
            return answers[0]
        write.resume = None
        limit = DEFAULT_SECONDS if timeout is None else timeout
        write.timer = asyncio.get_running_loop().call_later(limit, self._expire, writes, seqno)
        raise Parked(partial(_wait_for, write))

    def acknowledge(self, vbucket: Vbucket, name: str, seqno: int, stream: Hashable) -> None:
        """Record that a replica has stored all prepares of a vbucket up to a seqno, on a stream."""
        writes = self._active.get(vbucket.id)
        if writes is None and vbucket.history.state is VbucketState.ACTIVE and vbucket.history.prepares.pending:
            writes = self._get_writes(vbucket)
        if writes is not None:
            writes.monitor.acknowledge(name, seqno, stream)
            self._settle(writes)

    def forget(self, vbucket: Vbucket, name: str, stream: Hashable) -> None:
        """Forget the acknowledgements of a replica on a stream that has ended."""
        if vbucket.id in self._active:
            self._active[vbucket.id].monitor.forget(name, stream)

    def settle_persisted(self) -> None:
        """Decide writes that waited for the disk. Call it after each commit."""
        for writes in tuple(self._active.values()):
            if writes.monitor:
                self._settle(writes)
        for call in tuple(self.on_persisted):
            call()

    def close(self) -> None:
        """Cancel all timers. The requests get no answer; the prepares stay undecided."""
        for writes in self._active.values():
            for timer in [writes.retry, *(write.timer for write in writes.writes.values())]:
                if timer is not None:
                    timer.cancel()
        self._active.clear()

    def _settle_soon(self, vbucket: Vbucket) -> None:
        asyncio.get_running_loop().call_soon(self._settle_again, vbucket)

    def _settle_again(self, vbucket: Vbucket) -> None:
        if vbucket.id in self._active:
            self._active[vbucket.id].retry = None
            self._settle(self._active[vbucket.id])

    def _settle(self, writes: _VbucketWrites) -> None:
        """Carry out all decisions that are due. Those that the log refuses are repeated later."""
        vbucket, due = writes.vbucket, writes.due
        writes.monitor.persist(vbucket.history.persisted_seqno)
        due.extend(writes.monitor.decide())
        if not due:
            return
        try:
            while due:
                self._carry_out(writes, due[0])
                due.popleft()
        except REFUSED as refusal:
            logger.warning("vbucket %d: a synchronous write cannot be decided yet: %s", vbucket.id, refusal)
            self._settle_later(writes)
        self._store.changed.add(vbucket.id)
        asyncio.get_running_loop().call_soon(self._notify)

    def _settle_later(self, writes: _VbucketWrites) -> None:
        if writes.retry is None:
            loop = asyncio.get_running_loop()
            writes.retry = loop.call_later(_RETRY_SECONDS, self._settle_again, writes.vbucket)

    def _carry_out(self, writes: _VbucketWrites, decision: Decision) -> None:
        vbucket, write = writes.vbucket, writes.writes[decision.seqno]
        prepares = vbucket.history.prepares
        found = prepares.pending.get(write.key)
        committed: int | None = None
        if found is not None and found.seqno == decision.seqno:
            if decision.commits:
                committed = prepares.commit(write.key)
            else:
                prepares.abort(write.key)
        del writes.writes[decision.seqno]
        if committed is None:
            _end_write(write, _make_ambiguous_error(vbucket, "aborted after its time limit"))
        else:
            _end_write(write, write.make_reply(committed))

    def _expire(self, writes: _VbucketWrites, seqno: int) -> None:
        """Abort a write after its time limit. An earlier undecided write delays the abort, but not the answer."""
        writes.writes[seqno].timer = None
        writes.monitor.expire(seqno)
        self._settle(writes)
        if seqno in writes.writes:
            _end_write(writes.writes[seqno], _make_ambiguous_error(writes.vbucket, "undecided after its time limit"))


def _wait_for(write: _SyncWrite, resume: Resume) -> CancelWait:
    """Let a client wait for a write. The write goes on if the client disconnects.

    Returns:
        The function that ends the wait.
    """
    loop = asyncio.get_running_loop()

    def resume_soon(answer: bytes | StatusError) -> None:
        loop.call_soon(resume, answer)

    write.resume = resume_soon

    def cancel() -> None:
        write.resume = None

    return cancel


def _end_write(write: _SyncWrite, answer: bytes | StatusError) -> None:
    """Answer the client that waits for a write, if there is one."""
    if write.timer is not None:
        write.timer.cancel()
        write.timer = None
    if write.resume is not None:
        resume, write.resume = write.resume, None
        resume(answer)


def _make_no_reply(seqno: int) -> bytes:
    """Return no reply: no client waits for a write that was found."""
    return b""


def _make_ambiguous_error(vbucket: Vbucket, reason: str) -> StatusError:
    return make_status_error(Status.SYNC_WRITE_AMBIGUOUS, f"synchronous write: {reason}", vbucket=vbucket.id)
