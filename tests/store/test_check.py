"""`penstock check`: the report of damaged files, and the bucket after a repair."""

import shutil
from pathlib import Path

import pytest

from penstock.store.recovery.repair_plan import LostChanges
from penstock.wire.codec.constants import VbucketState
from tests.store.failing import Place, contents, shown
from tests.store.repairs import check, repair, request_rollback, restored, rows, undamaged
from tests.store.written import flipped, of_all_kinds, of_one_file, put


@pytest.fixture
def place(memory: Path) -> Place:
    return Place(memory / "beer")


def test_undamaged_bucket_needs_no_repair(place: Place) -> None:
    written = of_all_kinds()
    put(place.path, written.files)
    report = check(place)
    assert (report.losses, report.found.torn, report.found.is_clean) == ([], None, False)
    bucket = place()
    assert [(left.state, left.high_seqno, left.documents, left.rollback) for left in report.remaining] == [
        (vbucket.history.state, vbucket.changes.high_seqno, vbucket.changes.items, None) for vbucket in bucket.vbuckets
    ]
    assert [left.changes for left in report.remaining] == [len(rows(vbucket)) for vbucket in bucket.vbuckets]
    bucket.close()
    assert check(place).found.is_clean


def test_torn_end_is_not_damage(place: Place) -> None:
    written = of_one_file()
    last = written.records[-1]
    report = restored(place, written.files, written.last, written.files[written.last][: last.end - 1])
    assert report.losses == []
    assert report.found.torn == (written.last, last.start, last.end - last.start - 1)
    assert shown(place()) == written.before(last.start)


def test_bad_record_ends_the_log(place: Place) -> None:
    written = of_one_file()
    content = written.files[written.last]
    for number, record in enumerate(written.records[:-4]):
        report = restored(place, written.files, written.last, flipped(content, record.end - 1))
        (loss,) = report.losses
        assert (loss.damage.file, loss.damage.offset) == (written.last, record.start)
        assert loss.damage.nbytes == len(content) - record.start
        assert loss.unreadable == record.end - record.start
        assert sum(lost.changes or 0 for lost in loss.lost) + loss.notes == len(written.records) - number - 1
        assert repair(place, report) == "damaged"
        bucket = place()
        assert shown(bucket) == written.before(record.start)
        assert bucket.recovery_summary.endswith("log files")
        bucket.close()
        assert sorted(contents(place.path / "damaged")) == ["inventory.json", written.last]
        shutil.rmtree(place.path / "damaged")


def test_segment_loses_only_the_frames_in_bad_parts(place: Place) -> None:
    bucket = place(segment_bytes=8 * 1024 * 1024)
    for number in range(40):
        bucket.vbuckets[number % 2].set(b"key %d" % number, bytes(100_000))
    bucket.compactor.rewrite_all()
    bucket.close()
    (name,) = (name for name in contents(place.path) if name.startswith("segment"))
    size = 100_000 + len(b"key 10") + 55
    content = bytearray((place.path / name).read_bytes())
    content[64 + 2 * 1024 * 1024 + 5] ^= 1  # in the third MiB: frames 20 to 31, of which 20 begins in the second
    (place.path / name).write_bytes(content)
    report = check(place)
    (loss,) = report.losses
    mib = 1024 * 1024
    assert loss.damage == (name, 64 + 2 * mib, mib, f"{mib} bytes do not match their checksum")
    first, last = 2 * mib // size, 3 * mib // size
    assert loss.lost == [LostChanges(1, last - first + 1, first - 20 + 1, last - 20 + 1)]
    assert [left.rollback for left in report.remaining] == [None, first - 20, None, None]
    assert [left.changes for left in report.remaining] == [20, 20 - (last - first + 1), 0, 0]
    repair(place, report)
    bucket = place()
    assert sorted(rows(bucket.vbuckets[1])) == [*range(1, first - 20 + 1), *range(last - 20 + 2, 21)]
    assert bucket.vbuckets[0].changes.items == 20
    vbuuids = [entry.vbuuid for entry in bucket.vbuckets[1].history.failover_log]
    assert [request_rollback(bucket.vbuckets[1], vbuuids[-1], seqno) for seqno in (first - 20, first - 19, 20)] == [
        None, first - 20, first - 20
    ]  # fmt: skip
    bucket.close()


def test_segment_newer_than_the_log_starts_new_histories(place: Place) -> None:
    written = of_all_kinds()
    content = written.files[written.last]
    first = written.records[1]
    assert first.end < written.as_of
    report = restored(place, written.files, written.last, flipped(content, first.start))
    assert [left.rollback for left in report.remaining] == [0, 0, 0, 0]
    old = [dict(vbucket.history.failover_log) for vbucket in undamaged(written.files)]
    repair(place, report)
    bucket = place()
    for vbucket, log in zip(bucket.vbuckets, old, strict=True):
        assert [entry.seqno for entry in vbucket.history.failover_log] == [0]
        assert vbucket.history.vbuuid not in log
        assert vbucket.index.lowest_snapshot_end == vbucket.changes.high_seqno
    bucket.close()


def test_repair_keeps_states_from_ignored_log_files(place: Place) -> None:
    written = of_all_kinds()
    assert undamaged(written.files)[2].history.state is VbucketState.REPLICA
    (before,) = (name for name in written.files if name.startswith("log") and name != written.last)
    files = {name: content for name, content in written.files.items() if name != before}
    report = restored(place, files, before, None)
    assert [left.state for left in report.remaining][2] is VbucketState.REPLICA
    content = written.files[written.last]
    report = restored(place, files, written.last, flipped(content, written.records[0].start))
    assert not report.plan.found.logs
    assert [left.state for left in report.remaining][2] is VbucketState.REPLICA
    repair(place, report)
    bucket = place()
    assert bucket.vbuckets[2].history.state is VbucketState.REPLICA
    bucket.vbuckets[0].set(b"new", b"value")
    bucket.close()
    assert not check(place).losses


# What can go wrong


def test_every_repair_keeps_the_replaced_files(place: Place) -> None:
    written = of_one_file()
    put(place.path, written.files)
    for number, aside in enumerate(["damaged", "damaged-2", "damaged-3"]):
        broken = flipped((place.path / written.last).read_bytes(), written.records[5 - number].start)
        (place.path / written.last).write_bytes(broken)
        report = check(place)
        assert repair(place, report) == aside
        kept = contents(place.path / aside)
        assert kept == {written.last: broken, "inventory.json": kept["inventory.json"]}
    place().close()
