"""Opening a bucket's directory: its lock, what is in its files, and what has to be written before it is used."""

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

__all__ = ["finish_opening", "lock_while_opening", "recover_vbuckets"]


@contextmanager
def lock_while_opening(files: Directory) -> Iterator[ExitStack]:
    """Lock a directory while it is opened; unlock it again, and undo what else is pushed, if that fails.

    Raises StoreRefused where the directory cannot be read or written to.
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
    """Fill an empty log and its vbuckets with what was found. Returns what that was, in words; empty for nothing.

    After a stop that was not clean all active vbuckets begin a branch. Raises StoreDamaged.
    """
    if found.damage:
        more = f", and {len(found.damage) - 1} more" if len(found.damage) > 1 else ""
        raise StoreDamaged(
            f"{log.directory.path}: {found.damage[0]}{more}; `penstock check` says what can be saved, and "
            "`penstock check --repair` saves it"
        )
    if not found.logs:
        log.begin_file(1)
        return found.summary if found.torn else ""
    recover_log(log, [vbucket.history for vbucket in vbuckets], found)
    log.commits.write_inventory()  # from here on the log may be longer than it says
    _check_fault(log)  # files that are not listed may neither get their names nor replace others
    name_drafts(log.directory, found)
    if not found.is_clean:
        for vbucket in vbuckets:
            if vbucket.history.state is VbucketState.ACTIVE:
                vbucket.history.begin_branch()
    log.mark_opened()
    return found.summary


def finish_opening(log: DurableLog, record: BucketRecord, found: FoundFiles) -> None:
    """Bring to disk that the bucket is open. Raises StoreRefused if the disk does not take it."""
    for left_over in found.obsolete:
        log.directory.remove(left_over)
    if found.logs:
        record.write_format()  # before a note that an older release cannot read, behind the inventory
    log.commits.run()
    if log.room.fault is None and found.logs:
        log.commits.write_inventory()  # with the mark of this opening
    _check_fault(log)
    record.write_format()


def _check_fault(log: DurableLog) -> None:
    """Raise StoreRefused if the disk did not take what was written."""
    if log.room.fault is not None:
        raise StoreRefused(f"{log.directory.path}: {log.room.fault}")
