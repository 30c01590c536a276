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
from penstock.store.disk.log_file import log_name, log_number
from penstock.store.disk.sealed_segment import Sealed, load, save, segment_name
from penstock.store.log.records import FILE_HEADER, is_file_header
from penstock.store.recovery.bucket_directory import BUCKET, COPY, FORMAT, read_copy, refusal, said_by, write
from penstock.store.recovery.file_scan import look
from penstock.store.recovery.found_files import Found
from penstock.store.recovery.overlay import Overlay
from penstock.store.recovery.repair_plan import Blank, Left, Loss, RepairPlan, left_of, plan, settle

__all__ = ["Report", "check", "enter", "finish", "repair", "restore"]

_ASIDE = "damaged"


class Report(NamedTuple):
    """What is known of a bucket.

    Attributes:
        said: what its directory says.
        found: its files, as they are.
        losses: what a repair would lose.
        left: what is there of each vbucket, or would be left by a repair.
    """

    said: Mapping[str, Any]
    found: Found
    losses: list[Loss]
    left: list[Left]
    plan: RepairPlan
    blank: Blank


def enter(directory: Directory) -> Mapping[str, Any]:
    """Lock a directory and return what it says; also of a repair that was interrupted.

    Raises StoreRefused, and StoreDamaged where `restore` may help.
    """
    with _locked(directory):
        said = said_by(directory, repairs=True)
        if said is None:
            raise StoreRefused(f"{directory.path}: nothing is in it, expected a bucket")
        return said


def restore(directory: Directory) -> Mapping[str, Any]:
    """As `enter`, after `bucket.json` was made of its copy; a damaged one is kept as all that a repair replaces.

    Raises StoreRefused; StoreDamaged if there is no copy that can be relied on.
    """
    with _locked(directory):
        said = read_copy(directory)
        _check_uuid(directory, said["uuid"])
        try:
            if BUCKET in directory.names():
                directory.rename(BUCKET, f"{_new_directory(directory)}/{BUCKET}")
            write(directory, said)
        except OSError as error:
            raise StoreRefused(refusal(directory.path, "written to", error)) from error
        return said


@contextmanager
def _locked(directory: Directory) -> Iterator[None]:
    """Lock a directory; unlock it again if what is done then fails."""
    try:
        is_free = directory.lock()
    except OSError as error:
        raise StoreRefused(f"{directory.path}: cannot be written to: {error.strerror or error}") from error
    if not is_free:
        raise StoreRefused(f"{directory.path}: in use by process {directory.owner()}")
    try:
        yield
    except BaseException:
        directory.unlock()
        raise


def _check_uuid(directory: Directory, uuid: str) -> None:
    """Raise StoreDamaged if the log files are of other buckets: a repair would put all of them aside."""
    files = [directory.map(name) for name in directory.names() if log_number(name) is not None]
    found = {FILE_HEADER.unpack_from(data)[1].hex() for data in files if is_file_header(data)}
    if found and uuid not in found:
        owner = ", ".join(sorted(found))
        raise StoreDamaged(f"{directory.path / COPY}: it is of the bucket with uuid {uuid}, the log of {owner}")


def check(
    directory: Directory, said: Mapping[str, Any], *, clock: Callable[[], int], new_vbuuid: Callable[[], int]
) -> Report:
    """Read all of a bucket. clock, new_vbuuid: as of Bucket.open. Raises StoreDamaged where nothing can be said."""
    blank = Blank(said, clock=clock, new_vbuuid=new_vbuuid)
    try:
        found = look(directory, said)
    except OSError as error:
        raise StoreRefused(refusal(directory.path, "read", error)) from error
    what = plan(found, blank)
    histories = blank.recovered(what.found, what.described).histories
    rollbacks = settle(histories, what) if found.damage else {}
    left = [left_of(history, rollbacks.get(history.id)) for history in histories]
    return Report(said, found, what.losses, left, what, blank)


def repair(directory: Directory, report: Report, overlay: Callable[[Path], Overlay] = Overlay) -> str:
    """Make a bucket of what is left. Returns the name of the directory where what was replaced is.

    overlay: what takes the drafts. Raises StoreRefused if the disk does not take it; then nothing has changed.
    """
    drafts = overlay(directory.path)
    try:
        for left_over in filter(Overlay.is_draft, directory.names()):
            directory.remove(left_over)
        _write(drafts, report)
    except OSError as error:
        drafts.forget()
        raise StoreRefused(f"{directory.path}: cannot be written to: {error.strerror or error}") from error
    except BaseException:
        drafts.forget()
        raise
    aside = _new_directory(directory)
    moves = {
        "aside": aside,
        "written": sorted(drafts.written),
        "removed": sorted(drafts.removed),
        "renamed": drafts.renamed,
    }
    said = {**report.said, "repair": moves}
    write(directory, said)
    finish(directory, said)
    return aside


def _write(overlay: Overlay, report: Report) -> None:
    what, said = report.plan, report.said
    found = what.found._replace(sealed=[_rebuilt(overlay, one, report) for one in what.found.sealed])
    for name in (*map(log_name, what.behind), *found.obsolete):
        overlay.remove(name)
    for draft, name in report.found.unnamed:
        if name in overlay.written:
            overlay.remove(draft)
        else:
            overlay.show(draft, name)
    log, histories = report.blank.recovered(found, what.described, overlay)
    log.inventory.revision = said.get("revision", 0)
    settle(histories, what)
    while any(sealed.as_of[0] >= log.pending.active.number for sealed in what.found.sealed) and what.starts_over:
        log.roll(0)  # they were made when the log was longer: that must not be expected of it any more
    log.close()
    if log.room.fault is not None:
        raise StoreRefused(f"{overlay.path}: {log.room.fault}")
    again = look(overlay, said)
    if again.damage or not again.clean:
        raise StoreDamaged(f"{overlay.path}: cannot be repaired: {again.damage[0] if again.damage else again.summary}")


def _rebuilt(overlay: Overlay, sealed: Sealed, report: Report) -> Sealed:
    """Return a segment with the file that it has after the repair, which is written if it is another one."""
    if not any(sealed is one for one in report.plan.rebuilt):
        return sealed
    name = segment_name(sealed.segment.ids)
    save(
        overlay,
        name,
        sealed.segment,
        as_of=sealed.as_of,
        uuid=report.blank.uuid,
        generation=report.found.generation,
    )
    return load(overlay, name, report.said["vbuckets"])


def _new_directory(directory: Directory) -> str:
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


def finish(directory: Directory, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put the files of a repair in their places. It does not matter how much of that has been done before.

    said: what the directory says. Returns what it says then.
    """
    moves = said["repair"]
    aside = moves["aside"]
    names = set(directory.names())
    for name in moves["removed"]:
        if name in names:
            directory.rename(name, f"{aside}/{name}")
    drafts = {name: Overlay.draft(name) for name in moves["written"]} | moves.get("renamed", {})
    for name, draft in drafts.items():
        if draft in names:
            if name in names:
                directory.rename(name, f"{aside}/{name}")
            directory.rename(draft, name)
    Directory(directory.path / aside).sync_names()
    said = {**{key: value for key, value in said.items() if key != "repair"}, "format": FORMAT}
    write(directory, said)
    return said
