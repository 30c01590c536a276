"""Positions of idle tables: the changelog versions without changes for a table since its last commit.

A merge into many tables commits only those whose rows change. For each of the others it records that nothing between
the last commit of the table and the new position concerns it. That stays true for ever. So the record needs no commit
with the tables, and a lost record costs a second look at the same versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.storage.stored_documents import replace_document

IDLE_POSITIONS = "_idle.json"
"""The file in the lake with the records."""


def find_idle_version(lake: LakeDirectory, changelog_id: str, table_id: str, committed: int) -> int:
    """Return the changelog version that a table has reached.

    Args:
        lake: the lake.
        changelog_id: the changelog.
        table_id: the table.
        committed: the version of the table's last commit.

    Returns:
        `committed`, or the later version up to which the changelog has no changes for the table.
    """
    found = _read_records(lake, changelog_id).get(table_id)
    return committed if found is None or found[0] != committed else max(committed, found[1])


def record_idle_tables(lake: LakeDirectory, changelog_id: str, committed: Mapping[str, int], reached: int) -> None:
    """Record that tables have no changes up to a version of the changelog.

    Args:
        lake: the lake.
        changelog_id: the changelog.
        committed: the version of each table's last commit, by the table's id.
        reached: the version.
    """
    if committed:
        records = _read_records(lake, changelog_id) | {name: (base, reached) for name, base in committed.items()}
        replace_document(lake.path / IDLE_POSITIONS, json.dumps({"changelog": changelog_id, "tables": records}))


def _read_records(lake: LakeDirectory, changelog_id: str) -> dict[str, tuple[int, int]]:
    """Return the records of a changelog; none if they are missing or damaged."""
    try:
        found = json.loads((lake.path / IDLE_POSITIONS).read_text())
        if found["changelog"] != changelog_id:
            return {}
        return {str(name): (int(base), int(reached)) for name, (base, reached) in found["tables"].items()}
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, AttributeError):
        return {}
