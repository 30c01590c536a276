"""Locks: which changes they refuse, the cas of a locked document, and the end of a lock."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import KeyExists, KeyNotFound, Locked, NotLocked, StatusError
from penstock.store.documents.conflict import Meta
from penstock.store.documents.document_locks import LOCKED_CAS, limit_lock_seconds
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_SEQNO, VbucketState
from penstock.wire.columns.schema import Event
from tests.store.documents import SECOND, ManualClock, make_timed_bucket
from tests.store.model import START, read_all

BASE = START & ~0xFFFF
STORED, LOCK, WRONG = BASE, BASE + 1, 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def vbucket(clock: ManualClock) -> Vbucket:
    """Return a vbucket with the document `k`, a number that is locked for 15 seconds."""
    vbucket = make_timed_bucket(clock).find(0)
    assert vbucket.set(b"k", b"5", flags=7, expiry=1000).cas == STORED
    item = vbucket.lock(b"k", 15)
    assert item is not None
    assert (item.cas, item.value, item.flags, item.seqno) == (LOCK, b"5", 7, 1)
    return vbucket


Write = Callable[[Vbucket, int], Any]


def store_with_meta(vbucket: Vbucket, cas: int, event: Event = Event.MUTATION) -> Any:
    meta = Meta(BASE + 99, 9, deleted=event is not Event.MUTATION)
    return vbucket.incoming.store_with_meta(event, b"k", b"", meta, cas=cas)


WRITES: dict[str, Write] = {
    "set": lambda vbucket, cas: vbucket.set(b"k", b"new", cas=cas),
    "replace": lambda vbucket, cas: vbucket.replace(b"k", b"new", cas=cas),
    "delete": lambda vbucket, cas: vbucket.delete(b"k", cas=cas),
    "append": lambda vbucket, cas: vbucket.extend(b"k", b"0", cas=cas),
    "set with meta": store_with_meta,
    "delete with meta": lambda vbucket, cas: store_with_meta(vbucket, cas, Event.DELETION),
}
WITHOUT_CAS: dict[str, Callable[[Vbucket], Any]] = {
    "touch": lambda vbucket: vbucket.touch(b"k", 5),
    "touch that changes nothing": lambda vbucket: vbucket.touch(b"k", START // SECOND + 1000),
    "increment": lambda vbucket: vbucket.count(b"k", 1),
    "decrement": lambda vbucket: vbucket.count(b"k", -1),
    "lock": lambda vbucket: vbucket.lock(b"k", 15),
}


def find_refusal(act: Callable[[], Any]) -> type[StatusError] | None:
    try:
        act()
    except StatusError as error:
        return type(error)
    return None


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("cas", [0, STORED, WRONG])
def test_write_without_the_locks_cas_is_refused(vbucket: Vbucket, write: Write, cas: int) -> None:
    assert find_refusal(lambda: write(vbucket, cas)) is Locked
    assert vbucket.changes.high_seqno == 1
    assert find_refusal(lambda: vbucket.unlock(b"k", LOCK)) is None


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_with_the_locks_cas_ends_it(vbucket: Vbucket, write: Write) -> None:
    assert find_refusal(lambda: write(vbucket, LOCK)) is None
    assert vbucket.changes.high_seqno == 2
    if vbucket.get(b"k") is not None:
        assert find_refusal(lambda: vbucket.unlock(b"k", LOCK)) is NotLocked
        assert find_refusal(lambda: write(vbucket, LOCK)) is KeyExists
        assert find_refusal(lambda: vbucket.set(b"k", b"newer")) is None


@pytest.mark.parametrize("write", WITHOUT_CAS.values(), ids=WITHOUT_CAS)
def test_write_without_a_cas_waits_for_the_lock(vbucket: Vbucket, clock: ManualClock, write: Any) -> None:
    assert find_refusal(lambda: write(vbucket)) is Locked
    assert vbucket.changes.high_seqno == 1
    clock.now += 15 * SECOND
    assert find_refusal(lambda: write(vbucket)) is None


def test_add_to_a_locked_document_is_refused_because_it_exists(vbucket: Vbucket) -> None:
    assert find_refusal(lambda: vbucket.add(b"k", b"")) is KeyExists
    assert find_refusal(lambda: vbucket.set(b"other", b"")) is None


def test_locked_document_is_read_with_a_special_cas(vbucket: Vbucket, clock: ManualClock) -> None:
    item, meta = vbucket.get(b"k"), vbucket.versions.find_meta(b"k")
    assert item is not None
    assert meta is not None
    assert (item.value, item.cas, item.rev_seqno, item.seqno, meta.cas) == (b"5", LOCKED_CAS, 1, 1, LOCKED_CAS)


def test_a_lock_is_not_a_change(vbucket: Vbucket) -> None:
    assert vbucket.changes.high_seqno == 1
    assert [change.cas for change in read_all(vbucket.history.open_snapshot(0, MAX_SEQNO))] == [STORED]
    assert vbucket.changes.clock.last == LOCK
    assert vbucket.set(b"other", b"").cas == LOCK + 1


@pytest.mark.parametrize(
    "ends", [lambda vbucket, clock: vbucket.unlock(b"k", LOCK), lambda vbucket, clock: clock.wait(15)]
)
def test_a_document_keeps_its_locks_cas_until_it_changes(vbucket: Vbucket, clock: ManualClock, ends: Any) -> None:
    ends(vbucket, clock)
    item, meta = vbucket.get(b"k"), vbucket.versions.find_meta(b"k")
    assert item is not None
    assert meta is not None
    assert (item.cas, meta.cas) == (LOCK, LOCK)
    assert find_refusal(lambda: vbucket.replace(b"k", b"", cas=STORED)) is KeyExists
    stored = vbucket.replace(b"k", b"", cas=LOCK)
    assert vbucket.get(b"k") == item._replace(cas=stored.cas, seqno=2, rev_seqno=2, value=b"", flags=0, expiry=0)


def test_lock_lasts_for_the_requested_time(vbucket: Vbucket, clock: ManualClock) -> None:
    clock.now += 15 * SECOND - 1
    assert find_refusal(lambda: vbucket.set(b"k", b"")) is Locked
    clock.now += 1
    assert find_refusal(lambda: vbucket.unlock(b"k", LOCK)) is NotLocked
    assert find_refusal(lambda: vbucket.set(b"k", b"")) is None


def test_a_lock_does_not_affect_other_documents(vbucket: Vbucket, clock: ManualClock) -> None:
    vbucket.set(b"other", b"", expiry=5)
    clock.wait(5)
    assert vbucket.set(b"other", b"").seqno == 3  # as without a lock: an overwritten document needs no expiration


def test_unlocked_document_can_be_locked_again(vbucket: Vbucket, clock: ManualClock) -> None:
    vbucket.unlock(b"k", LOCK)
    item = vbucket.lock(b"k", 30)
    assert item is not None
    assert item.cas == LOCK + 1
    assert find_refusal(lambda: vbucket.unlock(b"k", LOCK)) is Locked
    clock.now += 30 * SECOND - 1
    assert find_refusal(lambda: vbucket.unlock(b"k", LOCK + 1)) is None


def test_unlocking_a_missing_or_unlocked_document_is_refused(vbucket: Vbucket) -> None:
    vbucket.set(b"other", b"")
    assert find_refusal(lambda: vbucket.unlock(b"nowhere", LOCK)) is KeyNotFound
    assert find_refusal(lambda: vbucket.unlock(b"other", LOCK)) is NotLocked
    assert find_refusal(lambda: vbucket.unlock(b"k", STORED)) is Locked
    assert vbucket.lock(b"nowhere", 15) is None


def change_states(vbucket: Vbucket) -> None:
    vbucket.set_state(VbucketState.REPLICA)
    vbucket.set_state(VbucketState.ACTIVE)


def reset_vbucket(vbucket: Vbucket) -> None:
    vbucket.reset()
    vbucket.set(b"k", b"5")


def delete_vbucket(vbucket: Vbucket) -> None:
    vbucket.remove()
    vbucket.set_state(VbucketState.ACTIVE)
    vbucket.set(b"k", b"5")


def roll_back(vbucket: Vbucket) -> None:
    vbucket.set(b"other", b"")
    assert vbucket.rollback(1) == 1


WHOLE: dict[str, Callable[[Vbucket], None]] = {
    "state": change_states,
    "reset": reset_vbucket,
    "deleted": delete_vbucket,
    "rollback": roll_back,
}


@pytest.mark.parametrize("happens", WHOLE.values(), ids=WHOLE)
def test_changes_of_the_whole_vbucket_end_its_locks(vbucket: Vbucket, happens: Callable[[Vbucket], None]) -> None:
    happens(vbucket)
    item = vbucket.get(b"k")
    assert item is not None
    assert item.cas == read_all(vbucket.history.open_snapshot(0, MAX_SEQNO))[0].cas
    assert find_refusal(lambda: vbucket.unlock(b"k", LOCK)) is NotLocked
    assert find_refusal(lambda: vbucket.replace(b"k", b"", cas=item.cas)) is None


def test_incoming_change_ends_a_lock(vbucket: Vbucket) -> None:
    vbucket.incoming.apply(Event.MUTATION, b"k", b"v", cas=9, rev_seqno=1)
    item = vbucket.get(b"k")
    assert item is not None
    assert item.cas == 9
    assert find_refusal(lambda: vbucket.set(b"k", b"")) is None


def test_expired_document_is_unlocked(vbucket: Vbucket, clock: ManualClock) -> None:
    vbucket.set(b"k", b"", cas=LOCK, expiry=5)
    vbucket.lock(b"k", 30)
    clock.now += 5 * SECOND
    assert find_refusal(lambda: vbucket.set(b"k", b"new")) is None
    assert find_refusal(lambda: vbucket.unlock(b"k", LOCK)) is NotLocked
    vbucket.set(b"k", b"", expiry=5)
    vbucket.lock(b"k", 30)
    clock.now += 5 * SECOND
    assert find_refusal(lambda: vbucket.unlock(b"k", LOCK)) is KeyNotFound
    assert find_refusal(lambda: vbucket.add(b"k", b"")) is None
    item = vbucket.get(b"k")
    assert item is not None
    assert item.cas != LOCKED_CAS


@pytest.mark.parametrize(("requested", "seconds"), [(0, 15), (1, 1), (15, 15), (30, 30), (31, 15), (2**32 - 1, 15)])
def test_lock_time_out_of_range_becomes_the_default(requested: int, seconds: int) -> None:
    assert limit_lock_seconds(requested) == seconds


def test_document_that_expires_while_locked_is_overwritten(vbucket: Vbucket, clock: ManualClock) -> None:
    clock.now += 1001 * SECOND
    assert vbucket.set(b"k", b"new").seqno == 2
    assert len(read_all(vbucket.history.open_snapshot(0, MAX_SEQNO))) == 1
    item = vbucket.get(b"k")
    assert item is not None
    assert item.cas != LOCKED_CAS
