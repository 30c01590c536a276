"""Checks and repairs the buckets of tests."""

from penstock.store.disk.bucket_files import Directory
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.rollback import StreamRequest, find_rollback_point
from penstock.store.recovery import repair_run as repairing
from penstock.store.recovery.repair_run import CheckReport
from penstock.wire.messages.dcp import Mutation
from tests.store import model
from tests.store.failing import Place, contents, directory_in_memory
from tests.store.model import Tombstone
from tests.store.written import put

Change = Mutation | Tombstone


def check(place: Place, directory: Directory | None = None) -> CheckReport:
    """Check a bucket, which changes nothing."""
    files = directory or Directory(place.path)
    before = contents(place.path)
    record = repairing.lock_for_repair(files)
    try:
        report = repairing.check_bucket(files, record, clock=lambda: place.now, new_vbuuid=lambda: next(place.vbuuids))
    finally:
        files.unlock()
    assert contents(place.path) == before
    return report


def repair(place: Place, report: CheckReport) -> str:
    files = Directory(place.path)
    repairing.lock_for_repair(files)
    try:
        return repairing.repair_bucket(files, report)
    finally:
        files.unlock()


def rows(vbucket: Vbucket) -> dict[int, Change]:
    """Return all changes that a vbucket has, by their seqnos, also those that are superseded."""
    index = vbucket.index
    found: list[Change] = []
    for segment in index.segments:
        for row in range(segment.starts[index.vbucket], segment.ends[index.vbucket]):
            at = segment.offsets_at[row]
            found += model.changes(bytes(segment.buffer[at : at + segment.lengths_at[row]]))
    for at, length in zip(index.offsets_at, index.lengths_at, strict=True):
        found += model.changes(bytes(index.buffer[at : at + length]))
    return {change.by_seqno: change for change in found}


# A story, and its end


def restored(place: Place, files: dict[str, bytes], name: str, content: bytes | None) -> CheckReport:
    """Put files in place, one of them with other content or (None) missing, and check them."""
    put(place.path, {key: value for key, value in {**files, name: content}.items() if value is not None})
    return check(place)


def undamaged(files: dict[str, bytes]) -> list[Vbucket]:
    with directory_in_memory() as path:
        put(path, files)
        bucket = Place(path)()
        bucket.close()
        return list(bucket.vbuckets)


def request_rollback(vbucket: Vbucket, vbuuid: int, seqno: int) -> int | None:
    request = StreamRequest(start_seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno)
    return find_rollback_point(
        vbucket.history.failover_log, vbucket.changes.high_seqno, vbucket.index.purge_seqno, request
    )
