"""A vbucket as clients see it: documents, cas, seqnos, states."""

from collections.abc import Callable
from itertools import count

import pytest

from penstock.errors import KeyExists, KeyNotFound, NotMyVbucket, StatusError
from penstock.store.bucket_store import BucketStore
from penstock.store.documents.item import Stored
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.failover_log import FailoverLog
from penstock.store.history.tombstone import TOMBSTONE_BYTES
from penstock.wire.codec.constants import MAX_SEQNO, VbucketState
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.messages.dcp import Mutation
from penstock.wire.messages.kv import FailoverEntry
from tests.store.model import START, make_bucket, make_tombstone, read_all

CAS = START & ~0xFFFF
Change = Callable[[Vbucket, int], Stored]

COMMANDS: dict[str, Change] = {
    "set": lambda vbucket, cas: vbucket.set(b"k", b"new", cas=cas),
    "add": lambda vbucket, cas: vbucket.add(b"k", b"new"),
    "replace": lambda vbucket, cas: vbucket.replace(b"k", b"new", cas=cas),
    "delete": lambda vbucket, cas: vbucket.delete(b"k", cas=cas),
}
RIGHT, WRONG, NONE = CAS, 1, 0
OUTCOMES = [
    # command, cas, the error (None: success) if the document never existed, exists, was deleted
    ("set", NONE, (None, None, None)),
    ("set", RIGHT, (KeyNotFound, None, KeyNotFound)),
    ("set", WRONG, (KeyNotFound, KeyExists, KeyNotFound)),
    ("add", NONE, (None, KeyExists, None)),
    ("replace", NONE, (KeyNotFound, None, KeyNotFound)),
    ("replace", RIGHT, (KeyNotFound, None, KeyNotFound)),
    ("replace", WRONG, (KeyNotFound, KeyExists, KeyNotFound)),
    ("delete", NONE, (KeyNotFound, None, KeyNotFound)),
    ("delete", RIGHT, (KeyNotFound, None, KeyNotFound)),
    ("delete", WRONG, (KeyNotFound, KeyExists, KeyNotFound)),
]


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize(("command", "cas", "outcomes"), OUTCOMES)
def test_commands_check_the_cas_and_the_document(
    command: str, cas: int, outcomes: tuple[type[StatusError] | None, ...], before: int
) -> None:
    vbucket = make_bucket().find(3)
    if before:
        vbucket.set(b"k", b"old")
    if before == 2:
        vbucket.delete(b"k")
    expected = outcomes[before]
    if expected is not None:
        with pytest.raises(expected) as error:
            COMMANDS[command](vbucket, cas)
        assert error.value.vbucket == 3
        assert (vbucket.changes.high_seqno, vbucket.changes.items) == (before, int(before == 1))
        return
    assert COMMANDS[command](vbucket, cas) == Stored(CAS + before, before + 1)
    item = vbucket.get(b"k")
    assert vbucket.changes.items == int(command != "delete")
    if command == "delete":
        assert item is None
    else:
        assert item is not None
        assert (item.value, item.cas, item.seqno, item.rev_seqno) == (b"new", CAS + before, before + 1, before + 1)
    assert vbucket.changes.clock.last == CAS + before


def test_stored_document_is_read() -> None:
    vbucket = make_bucket().find(0)
    vbucket.set(b"k", memoryview(b"xvaluex")[1:-1], flags=0xDEADBEEF, expiry=100, datatype=1)
    item = vbucket.get(b"k")
    assert item is not None
    assert item == (CAS, 0xDEADBEEF, 1, b"value", START // 10**9 + 100, 1, 1)
    assert vbucket.get(b"other") is None


def test_sealed_segment_is_a_backfill() -> None:
    """A bucket in memory has backfills too, as kv_engine has for buckets in memory."""
    vbucket = make_bucket(segment_bytes=64 * 1024).find(2)
    vbucket.set(b"k", b"value")
    while not vbucket.index.segments:
        vbucket.set(b"k", bytes(1000))
    sealed, high = vbucket.index.backfill_end, vbucket.changes.high_seqno
    assert 0 < sealed < high
    for start, origin in ((0, SnapshotFlag.DISK), (sealed - 1, SnapshotFlag.DISK), (sealed, SnapshotFlag.MEMORY)):
        assert vbucket.history.open_snapshot(start, MAX_SEQNO).flags == origin | SnapshotFlag.CHECKPOINT


def test_stored_document_is_streamed() -> None:
    vbucket = make_bucket().find(2)
    vbucket.set(b"k", b"value", flags=0xDEADBEEF, expiry=2_000_000_000, datatype=1)
    vbucket.set(b"gone", b"")
    vbucket.delete(b"gone")
    snapshot = vbucket.history.open_snapshot(0, MAX_SEQNO)
    assert (snapshot.start_seqno, snapshot.end_seqno) == (0, 3)
    assert snapshot.flags == SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT
    assert read_all(snapshot, 0xCAFE) == [
        Mutation(
            key=b"k",
            value=b"value",
            cas=CAS,
            datatype=1,
            by_seqno=1,
            rev_seqno=1,
            flags=0xDEADBEEF,
            expiry=2_000_000_000,
            vbucket=2,
            opaque=0xCAFE,
        ),
        make_tombstone(key=b"gone", cas=CAS + 2, by_seqno=3, rev_seqno=2, vbucket=2, opaque=0xCAFE),
    ]


def test_vbuckets_have_their_own_seqnos_and_cas() -> None:
    bucket = make_bucket(times=(START + (step << 16) for step in count()))
    assert bucket.find(0).set(b"k", b"") == (CAS, 1)
    assert bucket.find(1).set(b"k", b"") == (CAS + (1 << 16), 1)
    assert bucket.find(0).set(b"k", b"") == (CAS + (2 << 16), 2)


def test_becoming_active_starts_a_branch() -> None:
    vbucket = make_bucket().find(0)
    first: FailoverLog = (FailoverEntry(1, 0),)
    assert vbucket.history.failover_log == first
    vbucket.set(b"k", b"")
    vbucket.set_state(VbucketState.ACTIVE)
    assert vbucket.history.failover_log == first
    vbucket.set_state(VbucketState.REPLICA)
    assert vbucket.history.failover_log == first
    vbucket.set_state(VbucketState.ACTIVE)
    assert vbucket.history.failover_log == (FailoverEntry(5, 1), *first)
    assert vbucket.history.vbuuid == 5


@pytest.mark.parametrize("number", [4, 65535])
def test_missing_vbucket_is_refused(number: int) -> None:
    with pytest.raises(NotMyVbucket) as error:
        make_bucket().find(number)
    assert error.value.vbucket == number


def test_inactive_vbucket_is_refused() -> None:
    bucket = make_bucket()
    bucket.vbuckets[1].set_state(VbucketState.DEAD)
    with pytest.raises(NotMyVbucket):
        bucket.find(1)
    assert bucket.find(2).id == 2


@pytest.mark.parametrize("vbuckets", [0, 3, 1000, 131072])
def test_number_of_vbuckets_must_be_a_power_of_two(vbuckets: int) -> None:
    with pytest.raises(ValueError, match=f"{vbuckets} vbuckets, expected a power of two"):
        make_bucket(vbuckets=vbuckets)


@pytest.mark.parametrize("segment_bytes", [0, (1 << 30) + 1])
def test_segment_size_out_of_range_is_refused(segment_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"segments of {segment_bytes} bytes"):
        make_bucket(segment_bytes=segment_bytes)


def test_stats_count_documents_and_bytes() -> None:
    bucket: BucketStore = make_bucket(segment_bytes=1 << 20)
    bucket.find(0).set(b"a", b"." * 100)
    bucket.find(1).set(b"b", b"." * 100)
    bucket.find(1).set(b"b", b"." * 10)
    bucket.find(0).set(b"c", b"." * 10)
    bucket.find(0).delete(b"c")
    stats = bucket.collect_stats()
    assert stats.items == 2
    assert stats.live_bytes == 156 + 66 + TOMBSTONE_BYTES + 1
    assert stats.dead_bytes == 156 + 66
    assert stats.segments == 1
    assert stats.index_bytes > 5 * 16
    bucket.log.room.make_room(1 << 20)
    assert bucket.collect_stats()[2:5] == (222 + TOMBSTONE_BYTES + 1, 0, 2)
    assert (bucket.find(0).index.purge_seqno, bucket.find(0).history.persisted_seqno) == (
        0,
        bucket.find(0).changes.high_seqno,
    )


def test_memory_counts_long_keys() -> None:
    bucket = make_bucket(segment_bytes=1 << 20)
    for number in range(1000):
        bucket.find(0).set(b"%0250d" % number, b"")
    assert 300_000 < bucket.find(0).changes.keys.nbytes < 400_000
