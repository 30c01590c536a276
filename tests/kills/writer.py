"""The process that is killed: it executes the workload on a bucket and reports how many turns are on disk.

One thread makes changes, a second thread commits, and a third thread compacts, as in a node.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import KeyExists, KeyNotFound, NotStored
from penstock.store.bucket_store import BucketStore
from penstock.store.disk.bucket_files import Directory
from penstock.store.documents.vbucket import Vbucket
from penstock.store.log.compaction import Compaction
from penstock.wire.codec.constants import VbucketState
from penstock.wire.columns.schema import Event
from tests.kills.workload import COMMANDS, PLANS, Operation, generate_turns, get_life_start

WRITER, READER = range(2)
"""The process that opens a bucket: the writer, which is killed, or the reader, which checks the content afterwards."""

OPERATIONS = ("create", "reopen", "write", "sync", "rename", "remove", "sync_names")
_VBUUIDS = 10**9
_TURNS_BETWEEN_CHECKS = 8
_CHECKS_BETWEEN_PASSES = 200


class KillPoint(NamedTuple):
    """The file operation in which a process kills itself.

    Attributes:
        operation: one of OPERATIONS, a method of Directory.
        number: which call of the method, from 1.
        done: 0: the call has done nothing. 1: a write has written half of its bytes, other calls have done their work.
            2: the call has done its work.
    """

    operation: str
    number: int
    done: int


class Life(NamedTuple):
    """The arguments of a writer, which runs one life of a bucket.

    Attributes:
        path: the directory of the bucket.
        plan: the name of the plan in PLANS.
        seed: the seed of the workload.
        number: the number of the life.
        kill_point: None if another process kills the writer.
    """

    path: str
    plan: str
    seed: int
    number: int
    kill_point: KillPoint | None = None


class Clock:
    """A clock that tests set. Its time is in ns since the epoch."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class SelfKillingDirectory(Directory):
    """A directory that kills its own process at a kill point."""

    def __init__(self, kill_point: KillPoint, path: Path) -> None:
        super().__init__(path)
        self._kill_point = kill_point
        self._left = kill_point.number
        setattr(self, kill_point.operation, partial(self._call, getattr(self, kill_point.operation)))

    def _call(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        self._left -= 1
        if self._left:
            return operation(*arguments)
        if self._kill_point.operation == "write" and self._kill_point.done == 1:
            descriptor, data, offset = arguments
            operation(descriptor, data[: len(data) // 2], offset)
        elif self._kill_point.done:
            operation(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)


def generate_vbuuids(life: int, opener: int) -> Iterator[int]:
    """Return the vbuuids that the writer or the reader assigns in a life."""
    return count(1 + (2 * life + opener) * _VBUUIDS)


def open_bucket(life: Life, clock: Clock, opener: int) -> BucketStore:
    chance, plan = generate_vbuuids(life.number, opener), PLANS[life.plan]
    return BucketStore.open(
        Path(life.path),
        "beer",
        vbuckets=plan.vbuckets,
        clock=clock,
        new_vbuuid=lambda: next(chance),
        settings=plan.settings,
        directory=Directory if life.kill_point is None else partial(SelfKillingDirectory, life.kill_point),
    )


def write(life: Life) -> None:
    """Execute turns until the process is killed. Each line on stdout is the number of turns that are on disk."""
    sys.setswitchinterval(0.0002)  # more thread switches, so that threads interleave at more places
    clock = Clock(get_life_start(life.number))
    bucket = open_bucket(life, clock, WRITER)
    background = _BackgroundWork(bucket)
    for turn in generate_turns(life.seed, life.number, PLANS[life.plan]):
        clock.now = turn.now
        for operation in turn.operations:
            before = bucket.vbuckets[operation.vbucket].changes.high_seqno
            perform_operation(bucket, operation)
            background.record_turn(operation.vbucket, before, turn.number)
        if not turn.number % _TURNS_BETWEEN_CHECKS:
            background.check_progress(turn.number)


class _BackgroundWork:
    """Commits and compacts, each on its own thread, and reports how many turns are on disk."""

    def __init__(self, bucket: BucketStore) -> None:
        self._bucket = bucket
        self._committer, self._compactor = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._turn_of: list[dict[int, int]] = [{} for _ in bucket.vbuckets]  # by seqno
        self._taken = 0
        self._commit = self._committer.submit(bucket.log.commits.run)
        self._rewrite: Compaction | None = None
        self._rewriting: Future[None] | None = None
        self._passing = False
        self._vbucket_cycle = cycle(range(len(bucket.vbuckets)))
        self._checks = 0
        _report_turns(0)

    def record_turn(self, vbucket: int, before: int, turn: int) -> None:
        """Record the turn in which the seqnos above `before` were assigned."""
        for seqno in range(before + 1, self._bucket.vbuckets[vbucket].changes.high_seqno + 1):
            self._turn_of[vbucket][seqno] = turn

    def check_progress(self, turn: int) -> None:
        """Report persisted turns, and start the next commit and the next compaction if the last ones are done.

        Args:
            turn: the number of the last complete turn.
        """
        self._checks += 1
        vbucket = next(self._vbucket_cycle)
        persisted = self._bucket.vbuckets[vbucket].history.persisted_seqno
        _report_turns(self._turn_of[vbucket].get(persisted, 1) - 1)
        if self._commit.done():
            self._commit.result()
            assert self._bucket.log.room.fault is None, self._bucket.log.room.fault
            _report_turns(self._taken)
            self._taken = turn
            self._commit = self._committer.submit(self._bucket.log.commits.run)
            self._bucket.keys.load_some()
        if not self._checks % _CHECKS_BETWEEN_PASSES:
            self._bucket.log.room.seal_active()
            self._passing = True
        self._compact()

    def _compact(self) -> None:
        if self._rewrite is not None:
            assert self._rewriting is not None
            if not self._rewriting.done():
                return
            self._rewriting.result()
            self._rewrite.finish()
        self._rewrite = self._bucket.compactor.next_piece(self._passing)
        if self._rewrite is None:
            self._passing = False
        else:
            self._rewriting = self._compactor.submit(self._rewrite.run)


def _report_turns(turns_on_disk: int) -> None:
    os.write(sys.stdout.fileno(), b"%d\n" % turns_on_disk)


# The verbs of the workload


def perform_operation(bucket: BucketStore, operation: Operation) -> None:
    if operation.verb == "expire_all":
        while bucket.pager.expire_some():
            continue
        return
    vbucket = bucket.vbuckets[operation.vbucket]
    if operation.verb in COMMANDS and vbucket.history.state is not VbucketState.ACTIVE:
        return
    with suppress(KeyExists, KeyNotFound, NotStored):
        _VERBS[operation.verb](vbucket, **operation.arguments)


def _apply(
    vbucket: Vbucket, key: bytes, value: bytes | None, cas: int, rev_seqno: int, expiry: int, **place: Any
) -> None:
    event = Event.DELETION if value is None else Event.MUTATION
    vbucket.incoming.apply(event, key, value or b"", cas=cas, rev_seqno=rev_seqno, expiry=expiry, **place)


def _become(vbucket: Vbucket, state: str) -> None:
    vbucket.set_state(VbucketState[state])


def _receive(vbucket: Vbucket, changes: Sequence[dict[str, Any]], rest: int) -> None:
    end = vbucket.changes.high_seqno + sum(1 + change["gap"] for change in changes) + rest
    for change in changes if vbucket.history.state is not VbucketState.ACTIVE else ():
        fields = dict(change)
        seqno = vbucket.changes.high_seqno + 1 + fields.pop("gap")
        _apply(vbucket, **fields, seqno=seqno, snapshot_end=end)


def _complete(vbucket: Vbucket, hides: bool) -> None:
    if vbucket.history.state is not VbucketState.ACTIVE:
        vbucket.history.end_snapshot(hides=hides)


def _go_back(vbucket: Vbucket, by: int) -> None:
    if vbucket.history.state is not VbucketState.ACTIVE:
        vbucket.rollback(max(vbucket.changes.high_seqno - by, 0))


def _adopt(vbucket: Vbucket, vbuuids: Sequence[int]) -> None:
    if vbucket.history.state is not VbucketState.ACTIVE:
        vbucket.history.set_failover_log(
            [(vbuuid, vbucket.changes.high_seqno // n) for n, vbuuid in enumerate(vbuuids, 1)]
        )


_VERBS: dict[str, Callable[..., object]] = {
    "fetch": Vbucket.get,
    "put": Vbucket.set,
    "add": Vbucket.add,
    "delete": Vbucket.delete,
    "touch": Vbucket.touch,
    "count": Vbucket.count,
    "extend": Vbucket.extend,
    "store": _apply,
    "become": _become,
    "vanish": Vbucket.remove,
    "empty": Vbucket.reset,
    "receive": _receive,
    "complete": _complete,
    "go_back": _go_back,
    "adopt": _adopt,
}
