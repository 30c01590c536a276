"""The conflict log of a run: warnings about values that the columns of typed tables cannot hold."""

from __future__ import annotations

import logging

from penstock.names import make_printable
from penstock.spark.tables.misfits import RestCount, RestReport

_log = logging.getLogger("penstock.pipeline")


class ConflictLog:
    """Logs the conflicts of one table: each field with each JSON type once.

    Those of the first report were there before the run, and are not logged. The values are in `_rest`, and
    `penstock pipeline status` counts them.

    Args:
        table: the name of the table.
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._known: set[tuple[str, str]] | None = None

    def add(self, report: RestReport | None) -> None:
        """Log the conflicts that no earlier report had. None is a table before its first commit."""
        conflicts = [each for each in report.misfits if each.is_conflict] if report is not None else []
        places = {place for each in conflicts for place in _list_places(each)}
        if self._known is None:
            self._known = places
        for each in conflicts:
            if not self._known.issuperset(_list_places(each)):
                self._log_conflict(each)
        self._known |= places

    def _log_conflict(self, conflict: RestCount) -> None:
        field = f"field {make_printable(conflict.field)}" if conflict.field else "document"
        expected = f", expected {conflict.expected}" if conflict.expected is not None else ""
        example = f", for example of {conflict.keys[0]}" if conflict.keys else ""
        _log.warning(
            "table %s: %s is %s in %s values%s; they are in _rest%s",
            *(self._table, field, conflict.found or conflict.reason, f"{conflict.values:,}", expected, example),
        )


def _list_places(conflict: RestCount) -> list[tuple[str, str]]:
    return [(conflict.field, found) for found in conflict.found.split(", ")]
