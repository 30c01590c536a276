"""The policy of merges: when pending changes of the changelog are merged into a table.

Merging rewrites files. A merge whenever a share of the rows is pending keeps what a changed row costs the same however
large the table is; readers see what is pending all the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """A merge is due once `rows` changes and `share` of the table's rows are pending, or any for `age_seconds`.

    share: 0 to 1. files: it is due, too, once as many files of the changelog are pending, all of which readers open.
    """

    rows: int = 100_000
    share: float = 0.05
    age_seconds: float = 600.0
    files: int = 2048

    def due(self, pending_rows: int, table_rows: int, oldest_pending_age: float, pending_files: int = 0) -> bool:
        """Return whether to merge now. oldest_pending_age: seconds since the oldest pending change was committed."""
        if not pending_rows:
            return False
        enough = pending_rows >= max(self.rows, self.share * table_rows)
        return enough or oldest_pending_age >= self.age_seconds or pending_files >= self.files
