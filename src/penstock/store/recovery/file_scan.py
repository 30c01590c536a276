"""The scan of a bucket's directory: finds its files, their contents and their damage, and changes nothing.

Segments come first, oldest first, then log files. Their numbers have no gaps. Any part of a segment may be bad. A log
counts up to its first bad record, because later records may depend on it.

The inventory lists the files that must exist. It is missing in a directory of an older release, and it may be damaged.
Then only the names of the files show which of them belong to the bucket.
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


def scan_files(directory: Directory, record: Mapping[str, Any]) -> FoundFiles:
    """Read and check the files of a bucket.

    Args:
        directory: the directory of the bucket.
        record: the content of `bucket.json`.

    Returns:
        The files and all damage.
    """
    damage: list[Damage] = []
    inventory = _read_inventory(directory, record, damage)
    found = _read_files(directory, record, inventory)
    if inventory is not None and (reason := _find_younger_file(found, inventory)):
        # The inventory is an older copy. Files that it lists may have been removed rightly, so it is ignored.
        damage.append(Damage(INVENTORY, 0, 0, f"an older copy: generation {inventory.generation}, {reason}"))
        found = _read_files(directory, record, None)
    newest = max([*found.generations.values(), 0 if inventory is None else inventory.generation])
    return found._replace(other_damage=[*damage, *found.other_damage], generation=newest)


def name_drafts(directory: Directory, found: FoundFiles) -> None:
    """Rename the drafts that count as segments, which a crash left without their final names."""
    for draft, name in found.unnamed:
        directory.rename(draft, name)
    if found.unnamed:
        directory.sync_names()


def _read_inventory(directory: Directory, record: Mapping[str, Any], damage: list[Damage]) -> Inventory | None:
    """Return the inventory of a directory, or None if there is no valid one.

    In a directory with the older format, an inventory is ignored. A crash between the first inventory and the new
    format leaves one there. An older release, which does not know inventories, may have written to the directory since.

    Args:
        directory: the directory of the bucket.
        record: the content of `bucket.json`.
        damage: receives the damage of the inventory and of `bucket.json`.
    """
    has_older_format = record["format"] == FORMAT_WITHOUT_INVENTORY
    try:
        inventory = read_inventory(directory, bytes.fromhex(record["uuid"]))
    except FileNotFoundError:
        if not has_older_format:
            damage.append(Damage(INVENTORY, None, 0, "missing"))
        return None
    except BadInventory as error:
        if not has_older_format:
            damage.append(Damage(INVENTORY, 0, 0, str(error)))
        return None
    revision = record.get("revision", 0)
    if revision < inventory.revision:
        reason = f"an older copy: revision {revision}, expected {inventory.revision} or above"
        damage.append(Damage(BUCKET, 0, 0, reason))
    elif has_older_format:
        return None
    return inventory


def _find_younger_file(found: FoundFiles, inventory: Inventory) -> str | None:
    """Return a part of a sentence about a file that is younger than the inventory, None if no file is."""
    for name, generation in found.generations.items():
        if generation > inventory.generation:
            return f"and {name} names generation {generation}"
    for sealed in found.unlisted:
        if sealed.generation >= inventory.generation:
            return f"and {sealed.name}, which it does not list, names generation {sealed.generation}"
    return None


def _read_files(directory: Directory, record: Mapping[str, Any], inventory: Inventory | None) -> FoundFiles:
    names = directory.list_names()
    promised = find_promised_drafts(directory, bytes.fromhex(record["uuid"]), names)
    if inventory is None:
        arranged = arrange_by_names(names, promised)
    else:
        arranged = arrange_by_inventory(names, inventory, promised)
    found = FoundFiles([], [], None, arranged.obsolete, [], [], None, [], inventory, [], {})
    expected = 1
    for one in arranged.segments:
        if one.ids[0] > expected:
            found.gaps.append(_make_gap(expected, one.ids[0] - 1))
        read_segment(found, directory, record, one)
        expected = one.ids[1] + 1
    for name in arranged.unlisted:
        read_unlisted(found, directory, record, name)
    logs = arranged.logs
    if logs and logs[0] > expected:
        found.gaps.append(_make_gap(expected, logs[0] - 1))
        expected = logs[0]
    return read_logs(found, directory, bytes.fromhex(record["uuid"]), logs, expected)


def _make_gap(first: int, last: int) -> FileGap:
    all_of_them = f", with all up to {make_log_name(last)}" if last > first else ""
    return FileGap(
        Damage(make_log_name(first), None, 0, f"missing{all_of_them}, and no segment replaces it"), (first, last)
    )
