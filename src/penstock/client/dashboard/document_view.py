"""The news of the dashboard for one viewer: later documents have only the values that changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.client.dashboard.dashboard_document import RatePoint, VbucketRow


class DocumentView:
    """One viewer.

    Attributes:
        is_new: whether the viewer has seen no document.
    """

    def __init__(self) -> None:
        self.is_new = True
        self._rows: Sequence[VbucketRow] = ()
        self._seen_at = 0.0

    def take_new(
        self, rows: Sequence[VbucketRow], points: Iterable[RatePoint], at: float
    ) -> tuple[list[tuple[int | None, ...]], list[RatePoint]]:
        """Return the vbuckets that changed, each with its number, and the new points; all for a new viewer.

        Args:
            rows: the row of each vbucket.
            points: the counters, oldest first.
            at: the time of the rows.
        """
        before = self._rows
        is_other = len(before) != len(rows)
        changed: list[tuple[int | None, ...]] = [
            (number, *row) for number, row in enumerate(rows) if is_other or row != before[number]
        ]
        found = [point for point in points if point.at > self._seen_at]
        self.is_new, self._rows, self._seen_at = False, rows, at
        return changed, found
