"""Program that fills a file system of 1 MiB with a bucket and checks the bucket. Its argument is the mount point."""

import sys
from itertools import count
from pathlib import Path

from penstock.errors import TemporaryFailure
from penstock.store.bucket_store import BucketStore
from tests.store.failing import Place, capture_state

FULL = "the disk does not accept writes: No space left on device"


def fill_disk(bucket: BucketStore) -> None:
    """Store changes until a commit fails because the disk is full."""
    for number in count():
        bucket.vbuckets[number % 4].set(b"key %d" % number, b"." * 1000)
        if number % 20 == 19:
            bucket.log.commits.run()
            if bucket.log.room.fault is not None:
                return


def refuses_changes(bucket: BucketStore) -> bool:
    """Return whether a change is refused with the error of a full disk."""
    try:
        bucket.vbuckets[0].set(b"key", b"")
    except TemporaryFailure as error:
        return str(error) == FULL
    return False


def main(path: Path) -> None:
    """Fill the disk, free some space, fill it again, and check the bucket after each step.

    Args:
        path: directory of the small file system; it holds nothing yet.
    """
    ballast, spare = path / "ballast", path / "spare"
    ballast.write_bytes(bytes(400_000))
    spare.write_bytes(bytes(50_000))
    place = Place(path / "beer")
    bucket = place(segment_bytes=100_000)
    fill_disk(bucket)
    before = capture_state(bucket)
    for _ in range(3):
        bucket.log.commits.run()
        assert refuses_changes(bucket)
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    assert not compaction.finish()
    assert compaction.error is not None
    assert capture_state(bucket) == before

    ballast.unlink()
    bucket.log.commits.run()
    assert bucket.log.room.fault is None
    assert all(vbucket.history.persisted_seqno == vbucket.changes.high_seqno for vbucket in bucket.vbuckets)
    bucket.vbuckets[0].set(b"key", b"value")
    before = capture_state(bucket)
    bucket.close()
    bucket = place(segment_bytes=100_000)
    assert capture_state(bucket) == before

    fill_disk(bucket)
    persisted = [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets]
    place.directory.kill()  # as if it had been killed
    spare.unlink()
    bucket = place(segment_bytes=100_000)
    assert all(vbucket.changes.high_seqno >= seqno for vbucket, seqno in zip(bucket.vbuckets, persisted, strict=True))
    bucket.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
