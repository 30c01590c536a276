"""`penstock check`: the report of damaged files, and the bucket after a repair."""

import os
import shutil
from pathlib import Path

import pytest

from penstock.store.recovery.overlay import DiscardingDirectory
from penstock.store.recovery.repair_plan import LostChanges
from penstock.wire.codec.constants import VbucketState
from tests.store.failing import Place, capture_state, read_files
from tests.store.repairs import (
    check_changed_file,
    check_place,
    open_undamaged,
    read_rows,
    repair_place,
    request_rollback,
)
from tests.store.written import flip_bit, write_all_file_kinds, write_files, write_one_log_file


@pytest.fixture
def place(memory_path: Path) -> Place:
    return Place(memory_path / "beer")


def test_undamaged_bucket_needs_no_repair(place: Place) -> None:
    written = write_all_file_kinds()
    write_files(place.path, written.files)
    report = check_place(place)
    assert (report.losses, report.found.torn, report.found.is_clean) == ([], None, False)
    bucket = place()
    assert [(left.state, left.high_seqno, left.documents, left.rollback) for left in report.remaining] == [
        (vbucket.history.state, vbucket.changes.high_seqno, vbucket.changes.items, None) for vbucket in bucket.vbuckets
    ]
    assert [left.changes for left in report.remaining] == [len(read_rows(vbucket)) for vbucket in bucket.vbuckets]
    bucket.close()
    assert check_place(place).found.is_clean


def test_torn_end_is_not_damage(place: Place) -> None:
    written = write_one_log_file()
    last = written.records[-1]
    report = check_changed_file(place, written.files, written.last_log, written.files[written.last_log][: last.end - 1])
    assert report.losses == []
    assert report.found.torn == (written.last_log, last.start, last.end - last.start - 1)
    assert capture_state(place()) == written.find_state_before(last.start)


def test_bad_record_ends_the_log(place: Place) -> None:
    written = write_one_log_file()
    content = written.files[written.last_log]
    for number, record in enumerate(written.records[:-4]):
        report = check_changed_file(place, written.files, written.last_log, flip_bit(content, record.end - 1))
        (loss,) = report.losses
        assert (loss.damage.file, loss.damage.offset) == (written.last_log, record.start)
        assert loss.damage.nbytes == len(content) - record.start
        assert loss.unreadable == record.end - record.start
        assert sum(lost.changes or 0 for lost in loss.lost) + loss.notes == len(written.records) - number - 1
        assert repair_place(place, report) == "damaged"
        bucket = place()
        assert capture_state(bucket) == written.find_state_before(record.start)
        assert bucket.recovery_summary.endswith("log files")
        bucket.close()
        assert sorted(read_files(place.path / "damaged")) == ["inventory.json", written.last_log]
        shutil.rmtree(place.path / "damaged")


def test_segment_loses_only_the_frames_in_bad_parts(place: Place) -> None:
    bucket = place(segment_bytes=8 * 1024 * 1024)
    for number in range(40):
        bucket.vbuckets[number % 2].set(b"key %d" % number, bytes(100_000))
    bucket.compactor.rewrite_all()
    bucket.close()
    (name,) = (name for name in read_files(place.path) if name.startswith("segment"))
    size = 100_000 + len(b"key 10") + 55
    content = bytearray((place.path / name).read_bytes())
    content[64 + 2 * 1024 * 1024 + 5] ^= 1  # in the third MiB: frames 20 to 31; frame 20 starts in the second MiB
    (place.path / name).write_bytes(content)
    report = check_place(place)
    (loss,) = report.losses
    mib = 1024 * 1024
    assert loss.damage == (name, 64 + 2 * mib, mib, f"{mib} bytes do not match their checksum")
    first, last = 2 * mib // size, 3 * mib // size
    assert loss.lost == [LostChanges(1, last - first + 1, first - 20 + 1, last - 20 + 1)]
    assert [left.rollback for left in report.remaining] == [None, first - 20, None, None]
    assert [left.changes for left in report.remaining] == [20, 20 - (last - first + 1), 0, 0]
    repair_place(place, report)
    bucket = place()
    assert sorted(read_rows(bucket.vbuckets[1])) == [*range(1, first - 20 + 1), *range(last - 20 + 2, 21)]
    assert bucket.vbuckets[0].changes.items == 20
    vbuuids = [entry.vbuuid for entry in bucket.vbuckets[1].history.failover_log]
    assert [request_rollback(bucket.vbuckets[1], vbuuids[-1], seqno) for seqno in (first - 20, first - 19, 20)] == [
        None, first - 20, first - 20
    ]  # fmt: skip
    bucket.close()


def test_segment_newer_than_the_log_starts_new_histories(place: Place) -> None:
    written = write_all_file_kinds()
    content = written.files[written.last_log]
    first = written.records[1]
    assert first.end < written.proven_end
    report = check_changed_file(place, written.files, written.last_log, flip_bit(content, first.start))
    assert [left.rollback for left in report.remaining] == [0, 0, 0, 0]
    old = [dict(vbucket.history.failover_log) for vbucket in open_undamaged(written.files)]
    repair_place(place, report)
    bucket = place()
    for vbucket, log in zip(bucket.vbuckets, old, strict=True):
        assert [entry.seqno for entry in vbucket.history.failover_log] == [0]
        assert vbucket.history.vbuuid not in log
        assert vbucket.index.lowest_snapshot_end == vbucket.changes.high_seqno
    bucket.close()


def test_repair_keeps_states_from_ignored_log_files(place: Place) -> None:
    written = write_all_file_kinds()
    assert open_undamaged(written.files)[2].history.state is VbucketState.REPLICA
    (before,) = (name for name in written.files if name.startswith("log") and name != written.last_log)
    files = {name: content for name, content in written.files.items() if name != before}
    report = check_changed_file(place, files, before, None)
    assert [left.state for left in report.remaining][2] is VbucketState.REPLICA
    content = written.files[written.last_log]
    report = check_changed_file(place, files, written.last_log, flip_bit(content, written.records[0].start))
    assert not report.plan.found.logs
    assert [left.state for left in report.remaining][2] is VbucketState.REPLICA
    repair_place(place, report)
    bucket = place()
    assert bucket.vbuckets[2].history.state is VbucketState.REPLICA
    bucket.vbuckets[0].set(b"new", b"value")
    bucket.close()
    assert not check_place(place).losses


def test_every_repair_keeps_the_replaced_files(place: Place) -> None:
    written = write_one_log_file()
    write_files(place.path, written.files)
    for number, aside in enumerate(["damaged", "damaged-2", "damaged-3"]):
        broken = flip_bit((place.path / written.last_log).read_bytes(), written.records[5 - number].start)
        (place.path / written.last_log).write_bytes(broken)
        report = check_place(place)
        assert repair_place(place, report) == aside
        kept = read_files(place.path / aside)
        assert kept == {written.last_log: broken, "inventory.json": kept["inventory.json"]}
    place().close()


def test_check_closes_the_files_of_its_trials(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    create = DiscardingDirectory.create

    def create_and_note(directory: DiscardingDirectory, name: str) -> int:
        opened.append(create(directory, name))
        return opened[-1]

    monkeypatch.setattr(DiscardingDirectory, "create", create_and_note)
    write_files(place.path, write_all_file_kinds().files)
    name = max(read_files(place.path))
    (place.path / name).write_bytes(b"")
    assert check_place(place).losses
    assert opened
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
