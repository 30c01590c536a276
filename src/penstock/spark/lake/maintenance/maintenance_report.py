"""Reports of maintenance: files and bytes of each table, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TableReport:
    """Files and bytes before and after: of the table where files were joined, on disk where files were removed."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """Files and bytes of each table that maintenance found and left.

    Attributes:
        changelog, current: these tables.
        tables: the typed tables by name.
        indexes: the indexes by name, where they were maintained too.
    """

    changelog: TableReport
    current: TableReport
    tables: Mapping[str, TableReport] = field(default_factory=dict)
    indexes: Mapping[str, TableReport] = field(default_factory=dict)
