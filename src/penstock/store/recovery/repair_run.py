"""`penstock check`: what is said of a bucket's files, and their repair. Nothing that was there is destroyed by it.

A repair is written into drafts beside the files. Then `bucket.json` says what is to be done with them: from there on
the repair is made, and a process that comes after one that was interrupted only moves files. Those that are replaced
go into a directory of their own.
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

__all__ = ["CheckReport", "check_bucket", "finish_repair", "lock_for_repair", "repair_bucket", "restore_record"]

_ASIDE = "damaged"


class CheckReport(NamedTuple):
    """What is known of a bucket.

    Attributes:
        said: what its directory says.
        found: its files, as they are.
        losses: what a repair would lose.
        left: what is there of each vbucket, or would be left by a repair.
    """

    record: Mapping[str, Any]
    found: FoundFiles
    losses: list[DamageLoss]
    remaining: list[RemainingVbucket]
    plan: RepairPlan
    trial: TrialRecovery


def lock_for_repair(directory: Directory) -> Mapping[str, Any]:
    """Lock a directory and return what it says; also of a repair that was interrupted.

    Raises StoreRefused, and StoreDamaged where `restore` may help.
    """
    with _lock_directory(directory):
        said = read_record(directory, repairs=True)
        if said is None:
            raise StoreRefused(f"{directory.path}: nothing is in it, expected a bucket")
        return said


def restore_record(directory: Directory) -> Mapping[str, Any]:
    """As `enter`, after `bucket.json` was made of its copy; a damaged one is kept as all that a repair replaces.

    Raises StoreRefused; StoreDamaged if there is no copy that can be relied on.
    """
    with _lock_directory(directory):
        said = read_copy(directory)
        _check_uuid(directory, said["uuid"])
        try:
            if BUCKET in directory.list_names():
                directory.rename(BUCKET, f"{_make_aside_directory(directory)}/{BUCKET}")
            write_record(directory, said)
        except OSError as error:
            raise StoreRefused(describe_refusal(directory.path, "written to", error)) from error
        return said


@contextmanager
def _lock_directory(directory: Directory) -> Iterator[None]:
    """Lock a directory; unlock it again if what is done then fails."""
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
    """Raise StoreDamaged if the log files are of other buckets: a repair would put all of them aside."""
    files = [directory.map(name) for name in directory.list_names() if parse_log_number(name) is not None]
    found = {FILE_HEADER.unpack_from(data)[1].hex() for data in files if is_file_header(data)}
    if found and uuid not in found:
        owner = ", ".join(sorted(found))
        raise StoreDamaged(f"{directory.path / COPY}: it is of the bucket with uuid {uuid}, the log of {owner}")


def check_bucket(
    directory: Directory, said: Mapping[str, Any], *, clock: Callable[[], int], new_vbuuid: Callable[[], int]
) -> CheckReport:
    """Read all of a bucket. clock, new_vbuuid: as of Bucket.open. Raises StoreDamaged where nothing can be said."""
    blank = TrialRecovery(said, clock=clock, new_vbuuid=new_vbuuid)
    try:
        found = scan_files(directory, said)
    except OSError as error:
        raise StoreRefused(describe_refusal(directory.path, "read", error)) from error
    repair_plan = plan_repair(found, blank)
    histories = blank.recover(repair_plan.found, repair_plan.descriptions).histories
    rollbacks = apply_plan(histories, repair_plan) if found.damage else {}
    left = [describe_vbucket(history, rollbacks.get(history.id)) for history in histories]
    return CheckReport(said, found, repair_plan.losses, left, repair_plan, blank)


def repair_bucket(
    directory: Directory, report: CheckReport, overlay: Callable[[Path], OverlayDirectory] = OverlayDirectory
) -> str:
    """Make a bucket of what is left. Returns the name of the directory where what was replaced is.

    overlay: what takes the drafts. Raises StoreRefused if the disk does not take it; then nothing has changed.
    """
    drafts = overlay(directory.path)
    try:
        for left_over in filter(OverlayDirectory.is_draft, directory.list_names()):
            directory.remove(left_over)
        _write_drafts(drafts, report)
    except OSError as error:
        drafts.remove_drafts()
        raise StoreRefused(f"{directory.path}: cannot be written to: {error.strerror or error}") from error
    except BaseException:
        drafts.remove_drafts()
        raise
    aside = _make_aside_directory(directory)
    moves = {
        "aside": aside,
        "written": sorted(drafts.written),
        "removed": sorted(drafts.removed),
        "renamed": drafts.renamed,
    }
    said = {**report.record, "repair": moves}
    write_record(directory, said)
    finish_repair(directory, said)
    return aside


def _write_drafts(overlay: OverlayDirectory, report: CheckReport) -> None:
    repair_plan, said = report.plan, report.record
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
    log.inventory.revision = said.get("revision", 0)
    apply_plan(histories, repair_plan)
    while (
        any(sealed.as_of[0] >= log.pending.active.number for sealed in repair_plan.found.sealed)
        and repair_plan.starts_over
    ):
        log.roll(0)  # they were made when the log was longer: that must not be expected of it any more
    log.close()
    if log.room.fault is not None:
        raise StoreRefused(f"{overlay.path}: {log.room.fault}")
    again = scan_files(overlay, said)
    if again.damage or not again.is_clean:
        raise StoreDamaged(f"{overlay.path}: cannot be repaired: {again.damage[0] if again.damage else again.summary}")


def _rebuild_segment(overlay: OverlayDirectory, sealed: SegmentFile, report: CheckReport) -> SegmentFile:
    """Return a segment with the file that it has after the repair, which is written if it is another one."""
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
    """Make a directory for what is replaced, and return its name."""
    number = 1
    while True:
        name = _ASIDE if number == 1 else f"{_ASIDE}-{number}"
        try:
            directory.make_directory(name)
        except FileExistsError:
            number += 1
        else:
            return name


def finish_repair(directory: Directory, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put the files of a repair in their places. It does not matter how much of that has been done before.

    said: what the directory says. Returns what it says then.
    """
    moves = said["repair"]
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
    said = {**{key: value for key, value in said.items() if key != "repair"}, "format": FORMAT}
    write_record(directory, said)
    return said
