"""Synchronous writes in the store: prepares, commits and aborts, compared with a model across crashes."""

from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import KeyExists, KeyNotFound, StatusError, SyncWriteInProgress
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.documents.conflict import Meta
from penstock.store.documents.preparing_writer import prepare_changes
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.prepare_frames import PREPARED_PREFIX, parse_prepare_value
from penstock.wire.codec.constants import DurabilityLevel, VbucketState
from penstock.wire.codec.frame import cut_frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from tests.store.memory_disk import MemoryDisk
from tests.store.model import START, make_bucket, read_all
from tests.store.shop import ITEMS, SHOP, make_key

KEY = b"\0k"


def prepare_value(vbucket: Vbucket, key: bytes, value: bytes, level: int = 1) -> int:
    """Prepare that a document has a value, and return the seqno of the prepare."""
    with prepare_changes(vbucket, DurabilityLevel(level)):
        return vbucket.set(key, value).seqno


def prepare_deletion(vbucket: Vbucket, key: bytes) -> int:
    """Prepare the deletion of a document, and return the seqno of the prepare."""
    with prepare_changes(vbucket, DurabilityLevel.MAJORITY):
        return vbucket.delete(key).seqno


class State(NamedTuple):
    """The contents of a vbucket.

    Attributes:
        documents: the value of each document.
        pending: the undecided prepares by key: the seqno, and the value, None for a deletion.
    """

    documents: dict[bytes, bytes]
    pending: dict[bytes, tuple[int, bytes | None]]


def read_state(vbucket: Vbucket, end: int) -> tuple[int, State]:
    """Return the end of a snapshot, and the state that a consumer of it derives."""
    snapshot = vbucket.history.open_snapshot(0, end)
    state = State({}, {})
    for change in read_all(snapshot):
        if change.key.startswith(PREPARED_PREFIX):
            key = change.key[len(PREPARED_PREFIX) :]
            state.pending.pop(key, None)
            if (found := parse_prepare_value(memoryview(change.value))) is not None:
                message = decode_frame(cut_frame(found[1], 0))
                value = bytes(message.value) if isinstance(message, Mutation) else None
                state.pending[key] = change.by_seqno, value
            continue
        state.pending.pop(change.key, None)
        state.documents.pop(change.key, None)
        if isinstance(change, Mutation):
            state.documents[change.key] = change.value
    return snapshot.end_seqno, state


class Story:
    """A vbucket on a disk that can lose power, and its contents after each seqno."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.vbuuids = count(1)
        self.state = State({}, {})
        self.states = {0: self.state}
        self.bucket = self._open()

    @property
    def vbucket(self) -> Vbucket:
        return self.bucket.vbuckets[0]

    def _open(self) -> BucketStore:
        return BucketStore.open(
            Path("b"),
            "b",
            vbuckets=2,
            clock=lambda: START,
            new_vbuuid=lambda: next(self.vbuuids),
            settings=BucketSettings(segment_bytes=1024, retention_seconds=0),
            directory=self.disk,
        )

    def write(self, action: str, key: bytes, value: bytes) -> None:
        vbucket, (documents, pending) = self.vbucket, self.state
        if action in ("commit", "abort"):
            if key not in pending:
                return
            _, prepared = pending.pop(key)
            getattr(vbucket.history.prepares, action)(key)
            if action == "commit":
                documents.pop(key, None)
                if prepared is not None:
                    documents[key] = prepared
        elif key in pending:
            with pytest.raises(SyncWriteInProgress):
                vbucket.delete(key) if action == "delete" else vbucket.set(key, value)
            return
        elif action == "set":
            vbucket.set(key, value)
            documents[key] = value
        elif action == "prepare":
            pending[key] = prepare_value(vbucket, key, value), value
        elif key in documents:
            pending[key] = prepare_deletion(vbucket, key), None
        self.states[vbucket.changes.high_seqno] = State(dict(documents), dict(pending))

    def crash(self, seed: int) -> None:
        self.disk.lose_power(Random(seed))
        self.bucket = self._open()
        self._continue_from(self.vbucket.changes.high_seqno)

    def roll_back(self, seqno: int) -> None:
        self._continue_from(self.vbucket.rollback(seqno))

    def rewrite(self) -> None:
        self.bucket.compactor.rewrite_all()

    def _continue_from(self, seqno: int) -> None:
        self.states = {seqno: state for seqno, state in self.states.items() if seqno <= self.vbucket.changes.high_seqno}
        self.states[0] = State({}, {})
        newest = self.states[seqno]
        self.state = State(dict(newest.documents), dict(newest.pending))

    def check(self) -> None:
        vbucket, prepares = self.vbucket, self.vbucket.history.prepares
        assert {key: prepare.seqno for key, prepare in prepares.pending.items()} == {
            key: seqno for key, (seqno, _) in self.state.pending.items()
        }
        assert vbucket.changes.items == len(self.state.documents)
        for key in KEYS:
            assert vbucket.versions.has_document(key) == (key in self.state.documents)
        for seqno in range(1, vbucket.changes.high_seqno + 1):
            end, found = read_state(vbucket, seqno)
            assert found == self.states[end]


KEYS = [b"\0a", b"\0b", b"\0c"]
actions = st.one_of(
    st.tuples(
        st.sampled_from(["set", "prepare", "prepare", "delete", "commit", "commit", "abort"]),
        st.sampled_from(KEYS),
        st.binary(max_size=200),
    ),
    st.tuples(st.just("crash"), st.integers(0, 2**32)),
    st.tuples(st.just("roll_back"), st.integers(0, 60)),
    st.tuples(st.just("rewrite")),
)


@given(st.lists(actions, max_size=60))
def test_prepares_survive_crashes_rollbacks_and_compaction(steps: list[tuple[Any, ...]]) -> None:
    story = Story()
    for name, *arguments in steps:
        if name in ("crash", "roll_back", "rewrite"):
            getattr(story, name)(*arguments)
        else:
            story.write(name, *arguments)
    story.check()


def test_undecided_write_refuses_every_other_write() -> None:
    vbucket = make_bucket().vbuckets[0]
    vbucket.set(KEY, b"1")
    prepare_value(vbucket, KEY, b"2")
    absent = b"\0absent"
    with prepare_changes(vbucket, DurabilityLevel.MAJORITY):
        vbucket.add(absent, b"3")
    meta = Meta(cas=2**63, rev_seqno=99)
    for write in (
        lambda: vbucket.set(KEY, b"x"),
        lambda: vbucket.add(absent, b"x"),
        lambda: vbucket.replace(KEY, b"x"),
        lambda: vbucket.touch(KEY, 77),
        lambda: vbucket.count(absent, 1, initial=3),
        lambda: vbucket.extend(KEY, b"x"),
        lambda: vbucket.delete(absent),
        lambda: vbucket.rewrite(absent, lambda cas, seqno: b"x"),
        lambda: vbucket.lock(KEY, 5),
        lambda: vbucket.unlock(KEY, 5),
        lambda: vbucket.incoming.store_with_meta(Event.MUTATION, KEY, b"x", meta),
        lambda: prepare_value(vbucket, KEY, b"x"),
    ):
        with pytest.raises(SyncWriteInProgress):
            write()
    item = vbucket.get(KEY)
    assert item is not None
    assert item.value == b"1"
    assert vbucket.get(absent) is None


def test_prepares_use_the_cas_of_the_commit() -> None:
    vbucket = make_bucket().vbuckets[0]
    with prepare_changes(vbucket, DurabilityLevel.MAJORITY) as writer:
        stored = vbucket.set(KEY, b"1", flags=7, expiry=0)
    assert writer.key == KEY
    assert vbucket.history.prepares.commit(KEY) == stored.seqno + 1
    item = vbucket.get(KEY)
    assert item is not None
    assert (item.value, item.cas, item.seqno, item.rev_seqno, item.flags) == (b"1", stored.cas, stored.seqno + 1, 1, 7)
    with pytest.raises(KeyExists):
        vbucket.set(KEY, b"2", cas=stored.cas + 1)
    with pytest.raises(KeyNotFound):
        vbucket.delete(b"\0other")


def test_expired_document_with_an_undecided_write_stays() -> None:
    now = [START]
    vbucket = make_bucket(clock=lambda: now[0]).vbuckets[0]
    vbucket.set(KEY, b"1", expiry=10)
    prepare_value(vbucket, KEY, b"2")
    now[0] += 60 * 10**9
    high = vbucket.changes.high_seqno
    assert vbucket.get(KEY) is None
    with pytest.raises(SyncWriteInProgress):
        vbucket.delete(KEY)
    assert vbucket.changes.high_seqno == high
    assert vbucket.history.prepares.commit(KEY) == high + 1


def test_promoted_vbucket_hides_undecided_documents() -> None:
    vbucket = make_bucket().vbuckets[0]
    vbucket.set(KEY, b"1")
    prepare_value(vbucket, KEY, b"2")
    vbucket.set_state(VbucketState.REPLICA)
    assert vbucket.get(KEY) is not None
    vbucket.set_state(VbucketState.ACTIVE)
    with pytest.raises(StatusError) as refusal:
        vbucket.get(KEY)
    assert refusal.value.status == Status.SYNC_WRITE_RECOMMIT_IN_PROGRESS
    vbucket.history.prepares.commit(KEY)
    item = vbucket.get(KEY)
    assert item is not None
    assert item.value == b"2"


def test_visible_seqnos_leave_prepares_and_aborts_out() -> None:
    vbucket = make_bucket().vbuckets[0]
    prepares = vbucket.history.prepares
    assert prepares.find_visible(0) == 0
    vbucket.set(KEY, b"1")
    prepare_value(vbucket, KEY, b"2")
    prepare_value(vbucket, b"\0l", b"2")
    assert [prepares.find_visible(seqno) for seqno in range(4)] == [0, 1, 1, 1]
    assert vbucket.collections.high_seqno(0) == 1
    assert (prepares.settled_seqno, prepares.high_completed_seqno, prepares.high_prepare_seqno) == (1, 1, 3)
    prepares.abort(KEY)
    assert (prepares.settled_seqno, vbucket.collections.high_seqno(0)) == (2, 1)
    prepares.commit(b"\0l")
    assert vbucket.collections.high_seqno(0) == 5
    assert [prepares.find_prepare_of(5, last_seqno=last) for last in (2, 3)] == [0, 3]
    assert prepares.find_prepare_of(4, last_seqno=9) == 0
    assert (prepares.settled_seqno, prepares.high_completed_seqno) == (5, 3)


def test_commit_in_a_dropped_collection_is_an_abort() -> None:
    bucket = make_bucket()
    bucket.rollout.set_manifest(SHOP)
    vbucket, key = bucket.vbuckets[0], make_key(ITEMS)
    prepare_value(vbucket, key, b"1")
    bucket.rollout.set_manifest(SHOP.without_collection("shop", "items"))
    assert vbucket.history.prepares.commit(key) is None
    assert not vbucket.history.prepares.pending
    assert not vbucket.versions.has_document(key)


def test_large_values_are_prepared() -> None:
    vbucket = make_bucket(segment_bytes=4 * 1024 * 1024).vbuckets[0]
    value = bytes(600_000)
    prepare_value(vbucket, KEY, value, 3)
    assert vbucket.history.prepares.pending[KEY].level is DurabilityLevel.PERSIST_TO_MAJORITY
    vbucket.history.prepares.commit(KEY)
    item = vbucket.get(KEY)
    assert item is not None
    assert bytes(item.value) == value
