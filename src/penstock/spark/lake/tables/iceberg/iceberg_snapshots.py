"""The snapshots of a lake's Iceberg table, and the programs that made them. Pure functions over a table's metadata.

Each snapshot of Penstock has the newest transaction of every application in its properties. It is made on exactly the
snapshot that Penstock has checked before. So only snapshots after the newest own one are unchecked. A snapshot of
another program has no transactions. It may move rows to other files (operation `replace`), and not change them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

TRANSACTIONS = "penstock.transactions"
"""The property of a snapshot for the newest version that each application has committed, as JSON."""


def list_ancestors(metadata: TableMetadata, snapshot: Snapshot | None) -> Iterator[Snapshot]:
    """Yield a snapshot and those before it, newest first, as far as they have not expired."""
    known = {each.snapshot_id: each for each in metadata.snapshots}
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = known.get(parent) if parent is not None else None


def is_own(snapshot: Snapshot) -> bool:
    """Return whether Penstock made a snapshot."""
    return snapshot.summary is not None and snapshot.summary.get(TRANSACTIONS) is not None


def read_transactions(metadata: TableMetadata, snapshot: Snapshot | None) -> dict[str, int]:
    """Return the newest version that each application has committed up to a snapshot."""
    for each in list_ancestors(metadata, snapshot):
        text = None if each.summary is None else each.summary.get(TRANSACTIONS)
        if text is not None:
            found: dict[str, int] = json.loads(text)
            return found
    return {}


def find_foreign_change(metadata: TableMetadata, snapshot: Snapshot, base: Snapshot | None = None) -> Snapshot | None:
    """Return the oldest unchecked snapshot of another program that added or removed rows, None if there is none.

    Args:
        metadata: the table's metadata.
        snapshot: the snapshot to look at.
        base: a checked snapshot of another program; None to look as far as the newest own one.

    Returns:
        The snapshot.
    """
    found = None
    for each in list_ancestors(metadata, snapshot):
        if is_own(each) or (base is not None and each.snapshot_id == base.snapshot_id):
            break
        if name_operation(each) != "replace":
            found = each
    return found


def find_undone(metadata: TableMetadata, snapshot: Snapshot) -> Snapshot | None:
    """Return an own snapshot that another program has undone, by setting the table back to an older one."""
    kept = {each.snapshot_id: each.sequence_number or 0 for each in list_ancestors(metadata, snapshot)}
    # A snapshot before the oldest known ancestor was an ancestor too, until snapshots between them expired.
    oldest = min(kept.values())
    undone = (each for each in metadata.snapshots if each.snapshot_id not in kept and is_own(each))
    return next((each for each in undone if (each.sequence_number or 0) > oldest), None)


def is_past_known(metadata: TableMetadata, snapshot: Snapshot) -> bool:
    """Return whether a snapshot's ancestors are known down to one of Penstock or to the first."""
    return any(is_own(each) or each.sequence_number == 1 for each in list_ancestors(metadata, snapshot))


def name_operation(snapshot: Snapshot) -> str:
    """Return the operation of a snapshot, such as delete."""
    return "unknown" if snapshot.summary is None else snapshot.summary.operation.value
