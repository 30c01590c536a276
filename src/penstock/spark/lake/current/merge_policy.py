"""The merge policy: when pending changes of the changelog are merged into a table.

A merge rewrites files. If a merge begins once a share of the rows is pending, the cost of a changed row does not depend
on the table's size. Readers see pending changes in any case.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.argument_types import check_arguments


@check_arguments
@dataclass(frozen=True, slots=True)
class MergePolicy:
    """A merge is due once enough rows are pending, or once the oldest pending row is old enough.

    Attributes:
        rows: pending rows that are enough, if they are also `share` of the table's rows.
        share: 0 to 1.
        age_seconds: age of the oldest pending row that is enough.
        files: pending changelog files that are enough, because every reader opens them.
    """

    rows: int = 100_000
    share: float = 0.05
    age_seconds: float = 600.0
    files: int = 2048

    def is_due(self, pending_rows: int, table_rows: int, oldest_pending_age: float, pending_files: int = 0) -> bool:
        """Return whether to merge now.

        Args:
            pending_rows: changelog rows that are not merged.
            table_rows: rows of the table.
            oldest_pending_age: seconds since the oldest pending row was committed.
            pending_files: changelog files that are not merged.

        Returns:
            False without pending rows.
        """
        if not pending_rows:
            return False
        enough = pending_rows >= max(self.rows, self.share * table_rows)
        return enough or oldest_pending_age >= self.age_seconds or pending_files >= self.files
