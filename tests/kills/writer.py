"""The process that is killed: it does to a bucket what the workload says, and says how much of it is on disk.

Changes are made on one thread while another one commits and a third one compacts, as in a node.
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
from tests.kills.workload import COMMANDS, PLANS, Operation, began, turns

__all__ = ["OPERATIONS", "READER", "WRITER", "Clock", "Doom", "Life", "open_bucket", "vbuuids", "write"]

WRITER, READER = range(2)
"""Who opens a bucket: the one that is killed, or the one that looks at what it has left."""

OPERATIONS = ("create", "reopen", "write", "sync", "rename", "remove", "sync_names")
_VBUUIDS = 10**9
_TURNS_BETWEEN_LOOKS = 8
_LOOKS_BETWEEN_PASSES = 200


class Doom(NamedTuple):
    """At which operation on files a process kills itself: the `number`th of a kind, when `done` of it is done: 0:
    nothing, 1: if it is a write, half of it, else all; 2: all.
    """

    operation: str
    number: int
    done: int


class Life(NamedTuple):
    """What a writer is told. plan: its name in PLANS. number: of the life. doom: None: somebody else kills it."""

    path: str
    plan: str
    seed: int
    number: int
    doom: Doom | None = None


class Clock:
    """Says what it is told to say: ns since the epoch."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


class Doomed(Directory):
    """Kills its own process."""

    def __init__(self, doom: Doom, path: Path) -> None:
        super().__init__(path)
        self._doom = doom
        self._left = doom.number
        setattr(self, doom.operation, partial(self._do, getattr(self, doom.operation)))

    def _do(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        self._left -= 1
        if self._left:
            return operation(*arguments)
        if self._doom.operation == "write" and self._doom.done == 1:
            descriptor, data, offset = arguments
            operation(descriptor, data[: len(data) // 2], offset)
        elif self._doom.done:
            operation(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)


def vbuuids(life: int, who: int) -> Iterator[int]:
    """Return the vbuuids that are given out in a life by the writer or the reader."""
    return count(1 + (2 * life + who) * _VBUUIDS)


def open_bucket(life: Life, clock: Clock, who: int) -> BucketStore:
    chance, plan = vbuuids(life.number, who), PLANS[life.plan]
    return BucketStore.open(
        Path(life.path),
        "beer",
        vbuckets=plan.vbuckets,
        clock=clock,
        new_vbuuid=lambda: next(chance),
        settings=plan.settings,
        directory=Directory if life.doom is None else partial(Doomed, life.doom),
    )


def write(life: Life) -> None:
    """Work until somebody puts an end to it. Each line on stdout: so many turns are on disk now."""
    sys.setswitchinterval(0.0002)  # threads meet at more places
    clock = Clock(began(life.number))
    bucket = open_bucket(life, clock, WRITER)
    disk = _Disk(bucket)
    for turn in turns(life.seed, life.number, PLANS[life.plan]):
        clock.now = turn.now
        for operation in turn.operations:
            before = bucket.vbuckets[operation.vbucket].changes.high_seqno
            perform(bucket, operation)
            disk.note(operation.vbucket, before, turn.number)
        if not turn.number % _TURNS_BETWEEN_LOOKS:
            disk.look(turn.number)


class _Disk:
    """Commits and compacts, each on a thread of its own, and says what is on disk."""

    def __init__(self, bucket: BucketStore) -> None:
        self._bucket = bucket
        self._committer, self._compactor = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self._turn_of: list[dict[int, int]] = [{} for _ in bucket.vbuckets]  # by seqno
        self._taken = 0
        self._commit = self._committer.submit(bucket.log.commits.run)
        self._piece: Compaction | None = None
        self._rewriting: Future[None] | None = None
        self._passing = False
        self._asked = cycle(range(len(bucket.vbuckets)))
        self._looks = 0
        _say(0)

    def note(self, vbucket: int, before: int, turn: int) -> None:
        """Note in which turn the seqnos above `before` were given out."""
        for seqno in range(before + 1, self._bucket.vbuckets[vbucket].changes.high_seqno + 1):
            self._turn_of[vbucket][seqno] = turn

    def look(self, turn: int) -> None:
        """Go on with what is under way. turn: the last one that is done."""
        self._looks += 1
        vbucket = next(self._asked)
        persisted = self._bucket.vbuckets[vbucket].history.persisted_seqno
        _say(self._turn_of[vbucket].get(persisted, 1) - 1)
        if self._commit.done():
            self._commit.result()
            assert self._bucket.log.room.fault is None, self._bucket.log.room.fault
            _say(self._taken)
            self._taken = turn
            self._commit = self._committer.submit(self._bucket.log.commits.run)
            self._bucket.keys.load_some()
        if not self._looks % _LOOKS_BETWEEN_PASSES:
            self._bucket.log.room.seal_active()
            self._passing = True
        self._compact()

    def _compact(self) -> None:
        if self._piece is not None:
            assert self._rewriting is not None
            if not self._rewriting.done():
                return
            self._rewriting.result()
            self._piece.finish()
        self._piece = self._bucket.compactor.next_piece(self._passing)
        if self._piece is None:
            self._passing = False
        else:
            self._rewriting = self._compactor.submit(self._piece.run)


def _say(turns_on_disk: int) -> None:
    os.write(sys.stdout.fileno(), b"%d\n" % turns_on_disk)


# What the verbs do


def perform(bucket: BucketStore, operation: Operation) -> None:
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
        said = dict(change)
        seqno = vbucket.changes.high_seqno + 1 + said.pop("gap")
        _apply(vbucket, **said, seqno=seqno, snapshot_end=end)


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
