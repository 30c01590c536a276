"""The rule by which a consumer commits its positions. Decisions without I/O."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.argument_types import check_arguments
from penstock.errors import UsageError


@check_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """The times at which a consumer commits by itself: after a number of changes or some time, whichever comes first.

    Attributes:
        changes: changes that were processed since the last commit; None: any number.
        seconds: seconds since the last commit, if a change was processed since then; None: any time.
        idle_seconds: seconds since the last commit, if positions moved without a change for the caller; None: never.
            Each commit into the same bucket moves a position, so this time is long.
    """

    changes: int | None = 10_000
    seconds: float | None = 5.0
    idle_seconds: float | None = 60.0

    def __post_init__(self) -> None:
        for name in ("changes", "seconds", "idle_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name} of a commit policy is {value!r}, expected a number above 0 or None")

    @property
    def is_automatic(self) -> bool:
        """Whether the consumer ever commits by itself."""
        return any(value is not None for value in (self.changes, self.seconds, self.idle_seconds))

    def is_due(self, processed: int, *, has_moved: bool, elapsed: float) -> bool:
        """Return whether a commit is due.

        Args:
            processed: changes that were processed since the last commit.
            has_moved: whether a position differs from the last commit.
            elapsed: seconds since the last commit.
        """
        if processed and self.changes is not None and processed >= self.changes:
            return True
        wait = self.find_wait(processed, has_moved=has_moved)
        return wait is not None and elapsed >= wait

    def find_wait(self, processed: int, *, has_moved: bool) -> float | None:
        """Return the seconds after the last commit at which the next one is due; None: not by time."""
        if processed:
            return self.seconds
        return self.idle_seconds if has_moved else None


BY_HAND = CommitPolicy(changes=None, seconds=None, idle_seconds=None)
"""The policy of a consumer that commits only by `commit()`."""
