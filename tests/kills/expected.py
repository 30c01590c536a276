"""The expected content of a bucket on disk, in plain lists, after each record that was written to its log.

`ExpectedBucket` has a method for every verb of the workload. Each method is an iterator that stops after every record.
So a bucket that was killed can be compared at every place at which its log can end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.store.documents.item import Item
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.messages.dcp import DeletionV2, Expiration, Mutation
from tests.kills.workload import COMMANDS, NANOSECONDS, Operation, Turn

ACTIVE = VbucketState.ACTIVE
_LOGICAL = 0xFFFF
_BRANCHES = 25

Log = tuple[tuple[int, int], ...]
Records = Iterator[None]


def add_branch(log: Log, vbuuid: int, seqno: int) -> Log:
    """Return a failover log with a branch that begins at `seqno`."""
    return ((vbuuid, seqno), *(entry for entry in log if entry[1] <= seqno))[:_BRANCHES]


@dataclass(slots=True)
class Change:
    """One change of a vbucket.

    Attributes:
        message: the change as DCP sends it.
        superseded: the seqno of the next change of the same key, 0 if there is none.
    """

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
        """The time of a deletion, epoch seconds; 0 for a mutation."""
        return 0 if isinstance(self.message, Mutation) else self.message.delete_time

    @property
    def frame(self) -> bytes:
        self._frame = self._frame or self.message.encode()
        return self._frame

    @property
    def item(self) -> Item | None:
        """The item that a reader gets, None for a deletion."""
        message = self.message
        if not isinstance(message, Mutation):
            return None
        fields = message.cas, message.flags, message.datatype, message.value, message.expiry
        return Item(*fields, message.rev_seqno, message.by_seqno)


@dataclass
class ExpectedVbucket:
    """The expected state of one vbucket.

    Attributes:
        changes: all changes, in the order of seqnos.
        newest: key -> its newest change.
        whole: the end of the last complete snapshot, None if that is the newest change.
        hidden: the end of the last snapshot that left seqnos out.
        log: the failover log, newest entry first.
        clock: the newest cas.
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
        self.log = add_branch(self.log, vbuuid, seqno)

    def reset(self, vbuuid: int) -> None:
        self.changes, self.newest, self.whole, self.hidden = [], {}, None, 0
        self.log = ((vbuuid, 0),)

    def tick(self, now: int) -> int:
        self.clock = max(now & ~_LOGICAL, self.clock + 1)
        return self.clock

    def next_revision(self, key: bytes) -> int:
        """Return the revision of the key's next change."""
        return self.newest[key].message.rev_seqno + 1 if key in self.newest else 1

    def append(self, message: Mutation | DeletionV2 | Expiration) -> None:
        change = Change(message)
        if (old := self.newest.get(change.key)) is not None:
            old.superseded = change.seqno
        self.changes.append(change)
        self.newest[change.key] = change
        self.clock = max(self.clock, message.cas)

    def cut(self, seqno: int) -> None:
        """Roll back to `seqno`: remove the changes above it."""
        self.changes = [change for change in self.changes if change.seqno <= seqno]
        self.newest = {change.key: change for change in self.changes}
        for change in self.changes:
            if change.superseded > seqno:
                change.superseded = 0
        self.whole = self.whole if self.whole is not None and self.whole < self.high else None

    def view(self, start: int, end: int) -> list[Change]:
        """Return the deduplicated snapshot of (start, end]."""
        return [c for c in self.changes if start < c.seqno <= end and not 0 < c.superseded <= end]


class ExpectedBucket:
    """The expected state of a bucket.

    Attributes:
        vbuckets: the expected state of each vbucket.
        now: the time of the bucket's clock, ns.
        clean: the log ends with the mark of a clean stop.
        vbuuids: the vbuuids of the next branches.
    """

    def __init__(self, vbuckets: int) -> None:
        self.vbuckets = [ExpectedVbucket(number) for number in range(vbuckets)]
        self.now = 0
        self.clean = True
        self.vbuuids: Iterator[int] = iter(())

    def expect_opening(self, vbuuids: Iterator[int]) -> Iterator[int]:
        """Expect an opening of the bucket; yield the number of a vbucket after each record that it writes."""
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

    def expect_turn(self, turn: Turn) -> Iterator[int]:
        """Expect a turn; yield the number of a vbucket after each record that it writes."""
        self.now = turn.now
        for operation in turn.operations:
            if operation.verb == "expire_all":
                yield from self._expire_all()
            else:
                for _ in self._expect_operation(operation):
                    yield operation.vbucket

    def _expect_operation(self, operation: Operation) -> Records:
        vbucket = self.vbuckets[operation.vbucket]
        if operation.verb in COMMANDS and vbucket.state is not ACTIVE:
            return iter(())
        expect: Callable[..., Records] = getattr(self, operation.verb)
        return expect(vbucket, **operation.arguments)

    # Verbs of the workload: documents

    def fetch(self, vbucket: ExpectedVbucket, key: bytes) -> Records:
        if self._is_expired(vbucket, key):
            yield from self._write_tombstone(vbucket, key, expired=True)

    def put(self, vbucket: ExpectedVbucket, key: bytes, value: bytes, flags: int, expiry: int) -> Records:
        yield from self._write(vbucket, key, value, flags, self._make_expiry(expiry))

    def add(self, vbucket: ExpectedVbucket, key: bytes, value: bytes, flags: int, expiry: int) -> Records:
        yield from self.fetch(vbucket, key)
        if key not in vbucket.documents:
            yield from self.put(vbucket, key, value, flags, expiry)

    def delete(self, vbucket: ExpectedVbucket, key: bytes) -> Records:
        yield from self.fetch(vbucket, key)
        if key in vbucket.documents:
            yield from self._write_tombstone(vbucket, key, expired=False)

    def touch(self, vbucket: ExpectedVbucket, key: bytes, expiry: int) -> Records:
        yield from self.fetch(vbucket, key)
        item = self._find_item(vbucket, key)
        if item is not None and item.expiry != self._make_expiry(expiry):
            yield from self._write(
                vbucket, key, bytes(item.value), item.flags, self._make_expiry(expiry), item.datatype
            )

    def count(self, vbucket: ExpectedVbucket, key: bytes, delta: int) -> Records:
        item = self._find_item(vbucket, key)
        number = 0 if item is None else max(int(item.value) + delta, 0)
        yield from self._write(vbucket, key, b"%d" % number, 0, 0, Datatype.JSON)

    def extend(self, vbucket: ExpectedVbucket, key: bytes, more: bytes) -> Records:
        yield from self.fetch(vbucket, key)
        item = self._find_item(vbucket, key)
        if item is not None:
            yield from self._write(vbucket, key, bytes(item.value) + more, item.flags, item.expiry)

    def store(self, vbucket: ExpectedVbucket, **change: Any) -> Records:
        yield from self._write_received(vbucket, vbucket.high + 1, **change)

    def _expire_all(self) -> Iterator[int]:
        for vbucket in self.vbuckets:
            for change in sorted(vbucket.documents.values(), key=lambda change: change.seqno):
                if self._is_expired(vbucket, change.key):
                    yield from (vbucket.id for _ in self._write_tombstone(vbucket, change.key, expired=True))

    # Verbs of the workload: whole vbuckets

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
        vbucket.reset(next(self.vbuuids))
        yield

    # Verbs of the workload: replicas

    def receive(self, vbucket: ExpectedVbucket, changes: Sequence[dict[str, Any]], rest: int) -> Records:
        end = vbucket.high + sum(1 + change["gap"] for change in changes) + rest
        for change in changes if vbucket.state is not ACTIVE else ():
            fields = dict(change)
            seqno = vbucket.high + 1 + fields.pop("gap")
            if seqno < end and vbucket.whole is None:
                vbucket.whole = vbucket.high
                yield
            yield from self._write_received(vbucket, seqno, **fields)
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

    # Parts of the verbs

    def _make_expiry(self, expiry: int) -> int:
        return self.now // NANOSECONDS + expiry if expiry else 0

    def _find_item(self, vbucket: ExpectedVbucket, key: bytes) -> Item | None:
        return vbucket.newest[key].item if key in vbucket.newest else None

    def _is_expired(self, vbucket: ExpectedVbucket, key: bytes) -> bool:
        item = self._find_item(vbucket, key)
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
                rev_seqno=vbucket.next_revision(key),
            )
        )
        yield

    def _write_tombstone(self, vbucket: ExpectedVbucket, key: bytes, *, expired: bool) -> Records:
        tombstone = Expiration if expired else DeletionV2
        vbucket.append(
            tombstone(
                vbucket=vbucket.id,
                key=key,
                delete_time=self.now // NANOSECONDS,
                cas=vbucket.tick(self.now),
                by_seqno=vbucket.high + 1,
                rev_seqno=vbucket.next_revision(key),
            )
        )
        yield

    def _write_received(
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
