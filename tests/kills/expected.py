"""What a bucket on disk ought to hold, in plain lists, after each record that was written to its log.

`Expected` has a method for every verb of the workload. Each is an iterator that stops after every record, so that a
bucket that was killed can be held against the expectation at every place at which its log can end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.store.documents.vbucket import Item
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.messages.dcp import DeletionV2, Expiration, Mutation
from tests.kills.workload import COMMANDS, NANOSECONDS, Operation, Turn

__all__ = ["ACTIVE", "Change", "Expected", "ExpectedVbucket", "begun_at"]

ACTIVE = VbucketState.ACTIVE
_LOGICAL = 0xFFFF
_BRANCHES = 25

Log = tuple[tuple[int, int], ...]
Records = Iterator[None]


def begun_at(log: Log, vbuuid: int, seqno: int) -> Log:
    """Return a failover log with a branch that begins at `seqno`."""
    return ((vbuuid, seqno), *(entry for entry in log if entry[1] <= seqno))[:_BRANCHES]


@dataclass(slots=True)
class Change:
    """One change. superseded: the seqno of the next one of its key, 0 if there is none."""

    message: Mutation | DeletionV2 | Expiration
    superseded: int = 0
    _frame: bytes = b""

    @property
    def seqno(self) -> int:
        return self.message.by_seqno

    @property
    def key(self) -> bytes:
        return self.message.key

    @property
    def is_document(self) -> bool:
        return isinstance(self.message, Mutation)

    @property
    def deleted_at(self) -> int:
        """Epoch seconds."""
        return 0 if isinstance(self.message, Mutation) else self.message.delete_time

    @property
    def frame(self) -> bytes:
        self._frame = self._frame or self.message.encode()
        return self._frame

    @property
    def item(self) -> Item | None:
        """What a reader is given."""
        message = self.message
        if not isinstance(message, Mutation):
            return None
        fields = message.cas, message.flags, message.datatype, message.value, message.expiry
        return Item(*fields, message.rev_seqno, message.by_seqno)


@dataclass
class ExpectedVbucket:
    """whole: the end of the last complete snapshot, None if that is the newest change. hidden: the end of the last
    snapshot that left seqnos out. log: newest entry first.
    """

    id: int
    state: VbucketState | None = ACTIVE
    changes: list[Change] = field(default_factory=list)
    newest: dict[bytes, Change] = field(default_factory=dict)
    whole: int | None = None
    hidden: int = 0
    log: Log = ()
    clock: int = 0

    @property
    def high(self) -> int:
        return self.changes[-1].seqno if self.changes else 0

    @property
    def whole_seqno(self) -> int:
        return self.high if self.whole is None else self.whole

    @property
    def last_frame(self) -> bytes:
        return self.changes[-1].frame if self.changes else b""

    @property
    def documents(self) -> dict[bytes, Change]:
        return {key: change for key, change in self.newest.items() if change.is_document}

    def begin_branch(self, vbuuid: int, seqno: int) -> None:
        self.log = begun_at(self.log, vbuuid, seqno)

    def forget(self, vbuuid: int) -> None:
        self.changes, self.newest, self.whole, self.hidden = [], {}, None, 0
        self.log = ((vbuuid, 0),)

    def tick(self, now: int) -> int:
        self.clock = max(now & ~_LOGICAL, self.clock + 1)
        return self.clock

    def rev(self, key: bytes) -> int:
        """Return the revision that the key's next change has."""
        return self.newest[key].message.rev_seqno + 1 if key in self.newest else 1

    def append(self, message: Mutation | DeletionV2 | Expiration) -> None:
        change = Change(message)
        if (old := self.newest.get(change.key)) is not None:
            old.superseded = change.seqno
        self.changes.append(change)
        self.newest[change.key] = change
        self.clock = max(self.clock, message.cas)

    def cut(self, seqno: int) -> None:
        """Take back what is above `seqno`."""
        self.changes = [change for change in self.changes if change.seqno <= seqno]
        self.newest = {change.key: change for change in self.changes}
        for change in self.changes:
            if change.superseded > seqno:
                change.superseded = 0
        self.whole = self.whole if self.whole is not None and self.whole < self.high else None

    def view(self, start: int, end: int) -> list[Change]:
        """Return the deduplicated snapshot of (start, end]."""
        return [c for c in self.changes if start < c.seqno <= end and not 0 < c.superseded <= end]


class Expected:
    """A bucket. now: what its clock says, ns. vbuuids: to come. clean: its log ends with the mark of a clean stop."""

    def __init__(self, vbuckets: int) -> None:
        self.vbuckets = [ExpectedVbucket(number) for number in range(vbuckets)]
        self.now = 0
        self.clean = True
        self.vbuuids: Iterator[int] = iter(())

    def opening(self, vbuuids: Iterator[int]) -> Iterator[int]:
        """Foresee what opening the bucket writes: yields a vbucket's number after each record."""
        self.vbuuids = vbuuids
        for _ in self.vbuckets:
            next(vbuuids)
        if not self.clean:
            for vbucket in self.vbuckets:
                if vbucket.state is ACTIVE:
                    vbucket.begin_branch(next(vbuuids), vbucket.high)
                    yield vbucket.id
        self.clean = False
        yield 0

    def turn(self, turn: Turn) -> Iterator[int]:
        """Foresee what a turn writes: yields a vbucket's number after each record."""
        self.now = turn.now
        for operation in turn.operations:
            if operation.verb == "expire_all":
                yield from self._expire_all()
            else:
                for _ in self._records(operation):
                    yield operation.vbucket

    def _records(self, operation: Operation) -> Records:
        vbucket = self.vbuckets[operation.vbucket]
        if operation.verb in COMMANDS and vbucket.state is not ACTIVE:
            return iter(())
        foresee: Callable[..., Records] = getattr(self, operation.verb)
        return foresee(vbucket, **operation.arguments)

    # Documents

    def fetch(self, vbucket: ExpectedVbucket, key: bytes) -> Records:
        if self._is_over(vbucket, key):
            yield from self._bury(vbucket, key, expired=True)

    def put(self, vbucket: ExpectedVbucket, key: bytes, value: bytes, flags: int, expiry: int) -> Records:
        yield from self._write(vbucket, key, value, flags, self._absolute(expiry))

    def add(self, vbucket: ExpectedVbucket, key: bytes, value: bytes, flags: int, expiry: int) -> Records:
        yield from self.fetch(vbucket, key)
        if key not in vbucket.documents:
            yield from self.put(vbucket, key, value, flags, expiry)

    def delete(self, vbucket: ExpectedVbucket, key: bytes) -> Records:
        yield from self.fetch(vbucket, key)
        if key in vbucket.documents:
            yield from self._bury(vbucket, key, expired=False)

    def touch(self, vbucket: ExpectedVbucket, key: bytes, expiry: int) -> Records:
        yield from self.fetch(vbucket, key)
        item = self._item(vbucket, key)
        if item is not None and item.expiry != self._absolute(expiry):
            yield from self._write(vbucket, key, bytes(item.value), item.flags, self._absolute(expiry), item.datatype)

    def count(self, vbucket: ExpectedVbucket, key: bytes, delta: int) -> Records:
        item = self._item(vbucket, key)
        number = 0 if item is None else max(int(item.value) + delta, 0)
        yield from self._write(vbucket, key, b"%d" % number, 0, 0, Datatype.JSON)

    def extend(self, vbucket: ExpectedVbucket, key: bytes, more: bytes) -> Records:
        yield from self.fetch(vbucket, key)
        item = self._item(vbucket, key)
        if item is not None:
            yield from self._write(vbucket, key, bytes(item.value) + more, item.flags, item.expiry)

    def store(self, vbucket: ExpectedVbucket, **change: Any) -> Records:
        yield from self._apply(vbucket, vbucket.high + 1, **change)

    def _expire_all(self) -> Iterator[int]:
        for vbucket in self.vbuckets:
            for change in sorted(vbucket.documents.values(), key=lambda change: change.seqno):
                if self._is_over(vbucket, change.key):
                    yield from (vbucket.id for _ in self._bury(vbucket, change.key, expired=True))

    # Whole vbuckets

    def become(self, vbucket: ExpectedVbucket, state: str) -> Records:
        if VbucketState[state] is ACTIVE and vbucket.state is not ACTIVE:
            if vbucket.state is not None:
                vbucket.begin_branch(next(self.vbuuids), vbucket.whole_seqno)
            vbucket.whole = None
        vbucket.state = VbucketState[state]
        yield

    def vanish(self, vbucket: ExpectedVbucket) -> Records:
        vbucket.state = None
        yield from self.empty(vbucket)

    def empty(self, vbucket: ExpectedVbucket) -> Records:
        vbucket.forget(next(self.vbuuids))
        yield

    # Copies

    def receive(self, vbucket: ExpectedVbucket, changes: Sequence[dict[str, Any]], rest: int) -> Records:
        end = vbucket.high + sum(1 + change["gap"] for change in changes) + rest
        for change in changes if vbucket.state is not ACTIVE else ():
            said = dict(change)
            seqno = vbucket.high + 1 + said.pop("gap")
            if seqno < end and vbucket.whole is None:
                vbucket.whole = vbucket.high
                yield
            yield from self._apply(vbucket, seqno, **said)
            if seqno == end and vbucket.whole is not None:
                vbucket.whole = None
                yield

    def complete(self, vbucket: ExpectedVbucket, hides: bool) -> Records:
        if vbucket.state is not ACTIVE:
            vbucket.whole = None
            if hides:
                vbucket.hidden = vbucket.high
            yield

    def go_back(self, vbucket: ExpectedVbucket, by: int) -> Records:
        if vbucket.state is ACTIVE:
            return
        seqno = max(vbucket.high - by, 0)
        if by and vbucket.high:
            if seqno < vbucket.hidden or not seqno or vbucket.changes[0].seqno > seqno:
                yield from self.empty(vbucket)
                return
            vbucket.cut(seqno)
        vbucket.log = tuple(entry for entry in vbucket.log if entry[1] <= vbucket.high)
        if not vbucket.log:
            vbucket.begin_branch(next(self.vbuuids), vbucket.high)
        yield

    def adopt(self, vbucket: ExpectedVbucket, vbuuids: Sequence[int]) -> Records:
        if vbucket.state is not ACTIVE:
            vbucket.log = tuple((vbuuid, vbucket.high // n) for n, vbuuid in enumerate(vbuuids, 1))
            yield

    # What they are made of

    def _absolute(self, expiry: int) -> int:
        return self.now // NANOSECONDS + expiry if expiry else 0

    def _item(self, vbucket: ExpectedVbucket, key: bytes) -> Item | None:
        return vbucket.newest[key].item if key in vbucket.newest else None

    def _is_over(self, vbucket: ExpectedVbucket, key: bytes) -> bool:
        item = self._item(vbucket, key)
        return vbucket.state is ACTIVE and item is not None and 0 < item.expiry <= self.now // NANOSECONDS

    def _write(
        self, vbucket: ExpectedVbucket, key: bytes, value: bytes, flags: int, expiry: int, datatype: int = 0
    ) -> Records:
        vbucket.append(
            Mutation(
                vbucket=vbucket.id,
                key=key,
                value=value,
                flags=flags,
                expiry=expiry,
                datatype=datatype,
                cas=vbucket.tick(self.now),
                by_seqno=vbucket.high + 1,
                rev_seqno=vbucket.rev(key),
            )
        )
        yield

    def _bury(self, vbucket: ExpectedVbucket, key: bytes, *, expired: bool) -> Records:
        tombstone = Expiration if expired else DeletionV2
        vbucket.append(
            tombstone(
                vbucket=vbucket.id,
                key=key,
                delete_time=self.now // NANOSECONDS,
                cas=vbucket.tick(self.now),
                by_seqno=vbucket.high + 1,
                rev_seqno=vbucket.rev(key),
            )
        )
        yield

    def _apply(
        self,
        vbucket: ExpectedVbucket,
        seqno: int,
        *,
        key: bytes,
        value: bytes | None,
        cas: int,
        rev_seqno: int,
        expiry: int,
    ) -> Records:
        same: dict[str, Any] = {"vbucket": vbucket.id, "key": key, "cas": cas, "by_seqno": seqno}
        same["rev_seqno"] = rev_seqno
        if value is None:
            vbucket.append(DeletionV2(**same, delete_time=self.now // NANOSECONDS))
        else:
            vbucket.append(Mutation(**same, value=value, expiry=expiry))
        yield
