"""Functions that check and repair the buckets of tests as `penstock check` does."""

from penstock.store.disk.bucket_files import Directory
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.rollback import StreamRequest, find_rollback_point
from penstock.store.recovery import repair_run as repairing
from penstock.store.recovery.repair_run import CheckReport
from penstock.wire.messages.dcp import Mutation
from tests.store import model
from tests.store.failing import Place, directory_in_memory, read_files
from tests.store.model import Tombstone
from tests.store.written import write_files

Change = Mutation | Tombstone


def check_place(place: Place, directory: Directory | None = None) -> CheckReport:
    """Return the report of a check, and assert that the check changed no file.

    Args:
        place: the bucket's directory, with its clock and its vbuuids.
        directory: the files to check, if they are not plain files of `place`.
    """
    files = directory or Directory(place.path)
    before = read_files(place.path)
    record = repairing.lock_for_repair(files)
    try:
        report = repairing.check_bucket(files, record, clock=lambda: place.now, new_vbuuid=lambda: next(place.vbuuids))
    finally:
        files.unlock()
    assert read_files(place.path) == before
    return report


def repair_place(place: Place, report: CheckReport) -> str:
    """Repair a bucket, and return the name of the subdirectory that keeps the replaced files."""
    files = Directory(place.path)
    repairing.lock_for_repair(files)
    try:
        return repairing.repair_bucket(files, report)
    finally:
        files.unlock()


def read_rows(vbucket: Vbucket) -> dict[int, Change]:
    """Return all changes that a vbucket holds by seqno, including superseded ones."""
    index = vbucket.index
    found: list[Change] = []
    for segment in index.segments:
        for row in range(segment.starts[index.vbucket], segment.ends[index.vbucket]):
            at = segment.offsets_at[row]
            found += model.decode_changes(bytes(segment.buffer[at : at + segment.lengths_at[row]]))
    for at, length in zip(index.offsets_at, index.lengths_at, strict=True):
        found += model.decode_changes(bytes(index.buffer[at : at + length]))
    return {change.by_seqno: change for change in found}


def check_changed_file(place: Place, files: dict[str, bytes], name: str, content: bytes | None) -> CheckReport:
    """Write the files of a bucket, change one of them, and check the bucket.

    Args:
        place: directory of the bucket.
        files: content of each file.
        name: file to change.
        content: its new content; None: the file is missing.
    """
    write_files(place.path, {key: value for key, value in {**files, name: content}.items() if value is not None})
    return check_place(place)


def open_undamaged(files: dict[str, bytes]) -> list[Vbucket]:
    """Return the vbuckets of a bucket that was opened with these files and closed again."""
    with directory_in_memory() as path:
        write_files(path, files)
        bucket = Place(path)()
        bucket.close()
        return list(bucket.vbuckets)


def request_rollback(vbucket: Vbucket, vbuuid: int, seqno: int) -> int | None:
    """Return the seqno that a consumer at this position must roll back to, None if it may continue."""
    request = StreamRequest(start_seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno)
    return find_rollback_point(
        vbucket.history.failover_log, vbucket.changes.high_seqno, vbucket.index.purge_seqno, request
    )
