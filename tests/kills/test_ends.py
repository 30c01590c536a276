"""Logs that end in the middle of an operation that writes more than one record."""

from collections.abc import Callable
from errno import EIO
from itertools import count
from pathlib import Path

from penstock.store.bucket_store import BucketStore
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.durable_log import DurableLog
from penstock.store.disk.inventory import INVENTORY
from penstock.store.disk.log_file import make_log_name
from penstock.store.disk.sealed_segment import parse_segment_ids
from penstock.store.log.records import RECORD_BYTES
from penstock.wire.codec.constants import VbucketState
from penstock.wire.columns.schema import Event
from tests.store.model import START, read_all


class DirectoryWithoutSegmentNames(Directory):
    """Fails to rename a draft to the name of a segment."""

    def rename(self, old: str, new: str) -> None:
        if parse_segment_ids(new) is not None:
            raise OSError(EIO, "renames of segments fail")
        super().rename(old, new)


def open_bucket(path: Path, directory: Callable[[Path], Directory] = Directory) -> BucketStore:
    vbuuids = count(1)
    return BucketStore.open(
        path, "beer", vbuckets=1, clock=lambda: START, new_vbuuid=lambda: next(vbuuids), directory=directory
    )


def test_partial_snapshot_is_never_reported_as_complete(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path / "whole")
    assert isinstance(bucket.log, DurableLog)
    (vbucket,) = bucket.vbuckets
    vbucket.set_state(VbucketState.REPLICA)
    began = bucket.log.segments.active.end
    for seqno in (1, 2):
        vbucket.incoming.apply(
            Event.MUTATION, b"k%d" % seqno, b"v", cas=seqno, rev_seqno=1, seqno=seqno, snapshot_end=2
        )
    bucket.log.commits.run()
    names = "bucket.json", INVENTORY, make_log_name(1)
    files = {name: bucket.log.directory.read(name) for name in names}
    data = files[make_log_name(1)]
    bucket.close()
    seen = set()
    for end in [*range(began, len(data), RECORD_BYTES), len(data)]:  # no record is shorter than its head
        path = tmp_path / f"{end}"
        path.mkdir()
        for name in names:
            (path / name).write_bytes(files[name])
        (path / make_log_name(1)).write_bytes(data[:end])
        bucket = open_bucket(path)
        (vbucket,) = bucket.vbuckets
        seen.add((vbucket.changes.high_seqno, vbucket.history.whole_seqno))
        bucket.close()
    assert seen == {(0, 0), (1, 0), (2, 0), (2, 2)}


def cluster_log_files(bucket: BucketStore) -> None:
    """Cluster each log file except the active one in a segment."""
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    while not all(segment.is_clustered for segment in bucket.log.segments.sealed):
        rewrite_one(bucket)
        bucket.log.commits.run()


def rewrite_one(bucket: BucketStore, *, everything: bool = False) -> None:
    piece = bucket.compactor.next_piece(everything)
    assert piece is not None
    piece.run()
    assert piece.finish()


def test_rolled_back_changes_stay_removed_while_a_new_segment_has_no_name(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path / "beer")
    (vbucket,) = bucket.vbuckets
    for number in range(4):
        vbucket.set(b"%d" % number, b"v")
        bucket.log.room.seal_active()
    cluster_log_files(bucket)
    vbucket.set_state(VbucketState.REPLICA)
    vbucket.rollback(2)
    vbucket.set_state(VbucketState.ACTIVE)
    vbucket.set(b"a", b"on another branch")
    cluster_log_files(bucket)
    vbucket.set(b"b", b"on another branch")
    bucket.close()
    bucket = open_bucket(tmp_path / "beer", DirectoryWithoutSegmentNames)
    rewrite_one(bucket, everything=True)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    assert bucket.log.room.fault is not None
    assert isinstance(bucket.log, DurableLog)
    bucket.log.directory.unlock()
    bucket = open_bucket(tmp_path / "beer")
    (vbucket,) = bucket.vbuckets
    assert [message.key for message in read_all(vbucket.history.open_snapshot(0, 4))] == [b"0", b"1", b"a", b"b"]
    bucket.close()
