"""The steps that open a bucket's directory: lock it, recover the vbuckets, and write that the bucket is open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from penstock.errors import StoreDamaged, StoreRefused, TemporaryFailure
from penstock.store.bucket.bucket_record import BucketRecord
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.durable_log import DurableLog
from penstock.store.documents.vbucket import Vbucket
from penstock.store.recovery import bucket_directory
from penstock.store.recovery.file_scan import name_drafts
from penstock.store.recovery.found_files import FoundFiles
from penstock.store.recovery.log_replay import recover_log
from penstock.wire.codec.constants import VbucketState


@contextmanager
def lock_while_opening(files: Directory) -> Iterator[ExitStack]:
    """Lock a directory while a bucket is opened, and unlock it again if the opening fails.

    Args:
        files: the directory; it stays locked after success.

    Yields:
        The stack of the callbacks that undo a failed opening. The caller pushes its own.

    Raises:
        StoreRefused: another process has the lock, or the directory cannot be read or written to.
    """
    bucket_directory.lock_directory(files)
    with ExitStack() as undo:
        undo.callback(files.unlock)
        try:
            yield undo
        except TemporaryFailure as error:
            raise StoreRefused(f"{files.path}: {error}") from error
        except OSError as error:
            raise StoreRefused(bucket_directory.describe_refusal(files.path, "read and written to", error)) from error
        undo.pop_all()


def recover_vbuckets(log: DurableLog, vbuckets: Sequence[Vbucket], found: FoundFiles) -> str:
    """Fill an empty log and its vbuckets with the contents of the files.

    After a stop that was not clean, all active vbuckets begin a branch.

    Args:
        log: the empty log of the directory.
        vbuckets: all vbuckets of the bucket.
        found: the files of the directory, as scan_files returned them.

    Returns:
        A sentence about the files; empty if there were none.

    Raises:
        StoreDamaged: a file is damaged, or a note in the log is invalid.
        StoreRefused: the disk does not accept the inventory.
    """
    if found.damage:
        more = f", and {len(found.damage) - 1} more" if len(found.damage) > 1 else ""
        raise StoreDamaged(
            f"{log.directory.path}: {found.damage[0]}{more}; `penstock check` lists the changes that are lost, and "
            "`penstock check --repair` saves the others"
        )
    if not found.logs:
        log.begin_file(1)
        return found.summary if found.torn else ""
    recover_log(log, [vbucket.history for vbucket in vbuckets], found)
    log.commits.write_inventory()  # not clean: from now on the log may be longer than listed.
    _check_fault(log)  # a segment gets its name, and replaces others, only after the inventory lists it
    name_drafts(log.directory, found)
    if not found.is_clean:
        for vbucket in vbuckets:
            if vbucket.history.state is VbucketState.ACTIVE:
                vbucket.history.begin_branch()
    log.mark_opened()
    return found.summary


def finish_opening(log: DurableLog, record: BucketRecord, found: FoundFiles) -> None:
    """Write to disk that the bucket is open, and remove left-over files.

    Args:
        log: the recovered log.
        record: the record of the bucket, whose format becomes the newest.
        found: the files from which the log was recovered.

    Raises:
        StoreRefused: the disk does not accept a write.
    """
    for left_over in found.obsolete:
        log.directory.remove(left_over)
    if found.logs:
        record.write_format()  # after the inventory, and before the first note that an older release cannot read
    log.commits.run()
    if log.room.fault is None and found.logs:
        log.commits.write_inventory()  # again: now it includes the note of this opening
    _check_fault(log)
    record.write_format()


def _check_fault(log: DurableLog) -> None:
    """Raise StoreRefused if the disk did not accept a write.

    Raises:
        StoreRefused: the log refuses changes because of the disk.
    """
    if log.room.fault is not None:
        raise StoreRefused(f"{log.directory.path}: {log.room.fault}")
