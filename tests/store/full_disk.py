"""A bucket on a file system of 1 MiB that gets full: run where that is mounted, with its directory as the argument."""

import sys
from itertools import count
from pathlib import Path

from penstock.errors import TemporaryFailure
from penstock.store.bucket_store import BucketStore
from tests.store.failing import Place, shown

FULL = "the disk does not accept writes: No space left on device"


def fill(bucket: BucketStore) -> None:
    """Store changes until the disk takes no more."""
    for number in count():
        bucket.vbuckets[number % 4].set(b"key %d" % number, b"." * 1000)
        if number % 20 == 19:
            bucket.log.commits.run()
            if bucket.log.room.fault is not None:
                return


def refuses(bucket: BucketStore) -> bool:
    try:
        bucket.vbuckets[0].set(b"key", b"")
    except TemporaryFailure as error:
        return str(error) == FULL
    return False


def main(path: Path) -> None:
    ballast, spare = path / "ballast", path / "spare"
    ballast.write_bytes(bytes(400_000))
    spare.write_bytes(bytes(50_000))
    place = Place(path / "beer")
    bucket = place(segment_bytes=100_000)
    fill(bucket)
    before = shown(bucket)
    for _ in range(3):
        bucket.log.commits.run()
        assert refuses(bucket)
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    assert not compaction.finish()
    assert compaction.error is not None
    assert shown(bucket) == before

    ballast.unlink()
    bucket.log.commits.run()
    assert bucket.log.room.fault is None
    assert all(vbucket.history.persisted_seqno == vbucket.changes.high_seqno for vbucket in bucket.vbuckets)
    bucket.vbuckets[0].set(b"key", b"value")
    before = shown(bucket)
    bucket.close()
    bucket = place(segment_bytes=100_000)
    assert shown(bucket) == before

    fill(bucket)
    persisted = [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets]
    place.directory.let_go()  # as if it had been killed
    spare.unlink()
    bucket = place(segment_bytes=100_000)
    assert all(vbucket.changes.high_seqno >= seqno for vbucket, seqno in zip(bucket.vbuckets, persisted, strict=True))
    bucket.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
