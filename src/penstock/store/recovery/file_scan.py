"""Which files a bucket has, what they hold, and where they are not as they were written. Nothing is changed.

Segments come first, oldest first, then log files, each numbered on from the one before. Of a segment any part may be
bad. A log counts up to the first place where it is bad: what comes behind may depend on what was there.

The inventory says which files there must be. Without one, in a directory of an older release or where the inventory is
damaged, the files' names alone say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.inventory import INVENTORY, BadInventory, Inventory, read_inventory
from penstock.store.disk.log_file import make_log_name
from penstock.store.recovery.bucket_directory import BUCKET, FORMAT_WITHOUT_INVENTORY
from penstock.store.recovery.file_arrangement import arrange_by_inventory, arrange_by_names
from penstock.store.recovery.found_files import Damage, FileGap, FoundFiles
from penstock.store.recovery.log_scan import find_promised_drafts, read_logs
from penstock.store.recovery.segment_scan import read_segment, read_unlisted

__all__ = ["name_drafts", "scan_files"]


def scan_files(directory: Directory, said: Mapping[str, Any]) -> FoundFiles:
    """Read the files of a bucket. said: what `bucket.json` says."""
    damage: list[Damage] = []
    inventory = _read_inventory(directory, said, damage)
    found = _read_files(directory, said, inventory)
    if inventory is not None and (reason := _find_younger_file(found, inventory)):
        # A copy of an older time. What it lists may be gone for good reasons, so it is no help.
        damage.append(Damage(INVENTORY, 0, 0, f"an older copy: generation {inventory.generation}, {reason}"))
        found = _read_files(directory, said, None)
    newest = max([*found.generations.values(), 0 if inventory is None else inventory.generation])
    return found._replace(other_damage=[*damage, *found.other_damage], generation=newest)


def name_drafts(directory: Directory, found: FoundFiles) -> None:
    """Give segments their names that a crash has left with the name of a draft."""
    for draft, name in found.unnamed:
        directory.rename(draft, name)
    if found.unnamed:
        directory.sync_names()


def _read_inventory(directory: Directory, said: Mapping[str, Any], damage: list[Damage]) -> Inventory | None:
    """Return the inventory of a directory, None if none can be relied on. What is wrong with it goes to `damage`.

    With the older format none counts: a crash can have come between the first inventory and the new format, and an
    older release, which knows no inventory, can have written to the directory since.
    """
    has_older_format = said["format"] == FORMAT_WITHOUT_INVENTORY
    try:
        inventory = read_inventory(directory, bytes.fromhex(said["uuid"]))
    except FileNotFoundError:
        if not has_older_format:
            damage.append(Damage(INVENTORY, None, 0, "missing"))
        return None
    except BadInventory as error:
        if not has_older_format:
            damage.append(Damage(INVENTORY, 0, 0, str(error)))
        return None
    revision = said.get("revision", 0)
    if revision < inventory.revision:
        reason = f"an older copy: revision {revision}, expected {inventory.revision} or above"
        damage.append(Damage(BUCKET, 0, 0, reason))
    elif has_older_format:
        return None
    return inventory


def _find_younger_file(found: FoundFiles, inventory: Inventory) -> str | None:
    """Return which file is younger than the inventory can be, and why; None if none is."""
    for name, generation in found.generations.items():
        if generation > inventory.generation:
            return f"and {name} was made when there was generation {generation}"
    for sealed in found.unlisted:
        if sealed.generation >= inventory.generation:
            return f"and {sealed.name}, which it does not list, was made with generation {sealed.generation}"
    return None


def _read_files(directory: Directory, said: Mapping[str, Any], inventory: Inventory | None) -> FoundFiles:
    names = directory.list_names()
    promised = find_promised_drafts(directory, bytes.fromhex(said["uuid"]), names)
    if inventory is None:
        arranged = arrange_by_names(names, promised)
    else:
        arranged = arrange_by_inventory(names, inventory, promised)
    found = FoundFiles([], [], None, arranged.obsolete, [], [], None, [], inventory, [], {})
    expected = 1
    for one in arranged.segments:
        if one.ids[0] > expected:
            found.gaps.append(_make_gap(expected, one.ids[0] - 1))
        read_segment(found, directory, said, one)
        expected = one.ids[1] + 1
    for name in arranged.unlisted:
        read_unlisted(found, directory, said, name)
    logs = arranged.logs
    if logs and logs[0] > expected:
        found.gaps.append(_make_gap(expected, logs[0] - 1))
        expected = logs[0]
    return read_logs(found, directory, bytes.fromhex(said["uuid"]), logs, expected)


def _make_gap(first: int, last: int) -> FileGap:
    all_of_them = f", with all up to {make_log_name(last)}" if last > first else ""
    return FileGap(
        Damage(make_log_name(first), None, 0, f"missing{all_of_them}, and no segment in the place"), (first, last)
    )
