"""Check and repair of a bucket's files, as `penstock check` does them. A repair deletes no file.

A repair writes drafts beside the files. Then it lists in `bucket.json` how the drafts replace the files. From then on
the repair counts: after an interruption, another process only has to move files. The replaced files are moved into a
directory of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import StoreDamaged, StoreRefused
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.log_file import make_log_name, parse_log_number
from penstock.store.disk.sealed_segment import SegmentFile, load_segment, make_segment_name, write_segment
from penstock.store.log.records import FILE_HEADER, is_file_header
from penstock.store.recovery.bucket_directory import (
    BUCKET,
    COPY,
    FORMAT,
    describe_refusal,
    read_copy,
    read_record,
    write_record,
)
from penstock.store.recovery.file_scan import scan_files
from penstock.store.recovery.found_files import FoundFiles
from penstock.store.recovery.overlay import OverlayDirectory
from penstock.store.recovery.repair_plan import (
    DamageLoss,
    RemainingVbucket,
    RepairPlan,
    TrialRecovery,
    apply_plan,
    describe_vbucket,
    plan_repair,
)

_ASIDE = "damaged"  # the directory of replaced files


class CheckReport(NamedTuple):
    """The result of a check.

    Attributes:
        record: the content of `bucket.json`.
        found: the files as they are.
        losses: the changes that a repair would lose, by damage; empty if the bucket is intact.
        remaining: the contents of each vbucket, after a repair if the bucket is damaged.
        plan: the repair.
        trial: recovers the bucket from its files.
    """

    record: Mapping[str, Any]
    found: FoundFiles
    losses: list[DamageLoss]
    remaining: list[RemainingVbucket]
    plan: RepairPlan
    trial: TrialRecovery


def lock_for_repair(directory: Directory) -> Mapping[str, Any]:
    """Lock the directory of a bucket, also if a repair of it was interrupted.

    Args:
        directory: the directory, which stays locked after success.

    Returns:
        The content of `bucket.json`.

    Raises:
        StoreRefused: the directory is empty, in use, not that of a bucket, cannot be written to, or has an unknown
            format.
        StoreDamaged: `bucket.json` is missing, damaged or an older copy. `restore_record` may help.
    """
    with _lock_directory(directory):
        record = read_record(directory, repairs=True)
        if record is None:
            raise StoreRefused(f"{directory.path}: nothing is in it, expected a bucket")
        return record


def restore_record(directory: Directory) -> Mapping[str, Any]:
    """Lock the directory of a bucket, and replace `bucket.json` by its copy.

    The damaged `bucket.json` is moved aside, as all files that a repair replaces.

    Args:
        directory: the directory, which stays locked after success.

    Returns:
        The content of `bucket.json`.

    Raises:
        StoreRefused: the directory is in use, cannot be written to, or has an unknown format.
        StoreDamaged: the copy is missing, damaged, or of another bucket.
    """
    with _lock_directory(directory):
        record = read_copy(directory)
        _check_uuid(directory, record["uuid"])
        try:
            if BUCKET in directory.list_names():
                directory.rename(BUCKET, f"{_make_aside_directory(directory)}/{BUCKET}")
            write_record(directory, record)
        except OSError as error:
            raise StoreRefused(describe_refusal(directory.path, "written to", error)) from error
        return record


@contextmanager
def _lock_directory(directory: Directory) -> Iterator[None]:
    """Lock a directory, and unlock it again if the block fails. After success it stays locked.

    Raises:
        StoreRefused: another process has the lock, or the directory cannot be written to.
    """
    try:
        is_free = directory.lock()
    except OSError as error:
        raise StoreRefused(f"{directory.path}: cannot be written to: {error.strerror or error}") from error
    if not is_free:
        raise StoreRefused(f"{directory.path}: in use by process {directory.read_owner()}")
    try:
        yield
    except BaseException:
        directory.unlock()
        raise


def _check_uuid(directory: Directory, uuid: str) -> None:
    """Raise StoreDamaged if all log files are of other buckets, because a repair would move all of them aside.

    Raises:
        StoreDamaged: there are log files, and none has this uuid.
    """
    files = [directory.map(name) for name in directory.list_names() if parse_log_number(name) is not None]
    found = {FILE_HEADER.unpack_from(data)[1].hex() for data in files if is_file_header(data)}
    if found and uuid not in found:
        owner = ", ".join(sorted(found))
        raise StoreDamaged(f"{directory.path / COPY}: it is of the bucket with uuid {uuid}, the log of {owner}")


def check_bucket(
    directory: Directory, record: Mapping[str, Any], *, clock: Callable[[], int], new_vbuuid: Callable[[], int]
) -> CheckReport:
    """Verify all files of a bucket, and plan a repair.

    Args:
        directory: the directory of the bucket, which is locked.
        record: the content of `bucket.json`.
        clock: returns nanoseconds since the epoch.
        new_vbuuid: returns a random number from 1 to 2^48-1 at each call.

    Returns:
        The report.

    Raises:
        StoreRefused: a file cannot be read.
        StoreDamaged: a record with a valid checksum has invalid contents, which cannot be repaired.
    """
    trial = TrialRecovery(record, clock=clock, new_vbuuid=new_vbuuid)
    try:
        found = scan_files(directory, record)
    except OSError as error:
        raise StoreRefused(describe_refusal(directory.path, "read", error)) from error
    repair_plan = plan_repair(found, trial)
    histories = trial.recover(repair_plan.found, repair_plan.descriptions).histories
    rollbacks = apply_plan(histories, repair_plan) if found.damage else {}
    remaining = [describe_vbucket(history, rollbacks.get(history.id)) for history in histories]
    return CheckReport(record, found, repair_plan.losses, remaining, repair_plan, trial)


def repair_bucket(
    directory: Directory, report: CheckReport, overlay: Callable[[Path], OverlayDirectory] = OverlayDirectory
) -> str:
    """Repair a bucket: write the remaining changes, and move the replaced files aside.

    Args:
        directory: the directory of the bucket, which is locked.
        report: the result of its check.
        overlay: makes the directory that writes the drafts; tests replace it.

    Returns:
        The name of the directory with the replaced files, within the bucket's directory.

    Raises:
        StoreRefused: the disk does not accept the drafts; nothing was changed. Or it does not accept the list of the
            moves, or a file cannot be moved: the next repair begins again, or continues.
        StoreDamaged: the repaired files would be damaged too; nothing was changed.
    """
    drafts = overlay(directory.path)
    try:
        for left_over in filter(OverlayDirectory.is_draft, directory.list_names()):
            directory.remove(left_over)
        _write_drafts(drafts, report)
    except OSError as error:
        drafts.remove_drafts()
        raise StoreRefused(_describe_error(directory, "cannot be written to", error)) from error
    except BaseException:
        drafts.remove_drafts()
        raise
    record = _write_moves(directory, report, drafts)
    finish_repair(directory, record)
    return str(record["repair"]["aside"])


def _write_moves(directory: Directory, report: CheckReport, drafts: OverlayDirectory) -> Mapping[str, Any]:
    """Return the record of a bucket with the moves that end its repair. The drafts stay, as it may be on disk.

    Raises:
        StoreRefused: the disk does not accept the record.
    """
    try:
        moves = {
            "aside": _make_aside_directory(directory),
            "written": sorted(drafts.written),
            "removed": sorted(drafts.removed),
            "renamed": drafts.renamed,
        }
        record = {**report.record, "repair": moves}
        write_record(directory, record)
    except OSError as error:
        raise StoreRefused(_describe_error(directory, "cannot be written to", error)) from error
    return record


def _describe_error(directory: Directory, problem: str, error: OSError) -> str:
    return f"{directory.path}: {problem}: {error.strerror or error}"


def _write_drafts(overlay: OverlayDirectory, report: CheckReport) -> None:
    """Write the repaired bucket into drafts, and check it.

    Raises:
        StoreRefused: the disk does not accept the drafts.
        StoreDamaged: the repaired files are damaged too.
    """
    repair_plan, record = report.plan, report.record
    found = repair_plan.found._replace(
        sealed=[_rebuild_segment(overlay, one, report) for one in repair_plan.found.sealed]
    )
    for name in (*map(make_log_name, repair_plan.dropped_logs), *found.obsolete):
        overlay.remove(name)
    for draft, name in report.found.unnamed:
        if name in overlay.written:
            overlay.remove(draft)
        else:
            overlay.show_as(draft, name)
    log, histories = report.trial.recover(found, repair_plan.descriptions, overlay)
    log.inventory.revision = record.get("revision", 0)
    apply_plan(histories, repair_plan)
    while (
        any(sealed.as_of[0] >= log.pending.active.number for sealed in repair_plan.found.sealed)
        and repair_plan.starts_over
    ):
        # A segment names the log file that was active when it was made, and its size. That file no longer has this
        # size, so a check would report it. A check accepts it once newer log files follow.
        log.roll(0)
    log.close()
    if log.room.fault is not None:
        raise StoreRefused(f"{overlay.path}: {log.room.fault}")
    again = scan_files(overlay, record)
    if again.damage or not again.is_clean:
        raise StoreDamaged(f"{overlay.path}: cannot be repaired: {again.damage[0] if again.damage else again.summary}")


def _rebuild_segment(overlay: OverlayDirectory, sealed: SegmentFile, report: CheckReport) -> SegmentFile:
    """Return a segment with its file after the repair. If the repair changes the segment, its new file is written."""
    if not any(sealed is one for one in report.plan.rebuilt):
        return sealed
    name = make_segment_name(sealed.segment.ids)
    write_segment(
        overlay,
        name,
        sealed.segment,
        as_of=sealed.as_of,
        uuid=report.trial.uuid,
        generation=report.found.generation,
    )
    return load_segment(overlay, name, report.record["vbuckets"])


def _make_aside_directory(directory: Directory) -> str:
    """Return the name of a new directory for the replaced files."""
    number = 1
    while True:
        name = _ASIDE if number == 1 else f"{_ASIDE}-{number}"
        try:
            directory.make_directory(name)
        except FileExistsError:
            number += 1
        else:
            return name


def finish_repair(directory: Directory, record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Move the drafts of a repair to their places. An interrupted repair may have moved some of them already.

    Args:
        directory: the directory of the bucket, which is locked.
        record: the content of `bucket.json`, with the repair.

    Returns:
        The content of `bucket.json` without the repair.

    Raises:
        StoreRefused: a file cannot be moved. Another call continues the repair.
    """
    try:
        return _move_drafts(directory, record)
    except OSError as error:
        problem = "a file cannot be moved, `penstock check --repair` continues the repair"
        raise StoreRefused(_describe_error(directory, problem, error)) from error


def _move_drafts(directory: Directory, record: Mapping[str, Any]) -> Mapping[str, Any]:
    moves = record["repair"]
    aside = moves["aside"]
    names = set(directory.list_names())
    for name in moves["removed"]:
        if name in names:
            directory.rename(name, f"{aside}/{name}")
    drafts = {name: OverlayDirectory.make_draft_name(name) for name in moves["written"]} | moves.get("renamed", {})
    for name, draft in drafts.items():
        if draft in names:
            if name in names:
                directory.rename(name, f"{aside}/{name}")
            directory.rename(draft, name)
    Directory(directory.path / aside).sync_names()
    record = {**{key: value for key, value in record.items() if key != "repair"}, "format": FORMAT}
    write_record(directory, record)
    return record
