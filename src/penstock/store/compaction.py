"""A piece of rewriting: what to rewrite, and the three steps in which that is done.

Made and finished on the thread that owns the bucket, each in milliseconds; run in between on any thread, while the
bucket goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.store.rewrite import Limits, Rewritten, rewrite
from penstock.store.segment import Column, Segment

if TYPE_CHECKING:
    from penstock.store.log import Log

__all__ = ["Compaction", "worthwhile"]


def worthwhile(sealed: Sequence[Segment], gains: Sequence[int], segment_bytes: int) -> slice | None:
    """Return which segments to rewrite next, None for none: the one with most to gain if that is more than half of it,
    with neighbours that fit in. gains: of each the bytes that a rewrite would drop.
    """
    most = max(range(len(sealed)), key=lambda n: gains[n] / (sealed[n].size or 1), default=None)
    if most is None or 2 * gains[most] <= sealed[most].size:
        return None
    left = [segment.size - gain for segment, gain in zip(sealed, gains, strict=True)]
    start, end, live = most, most + 1, left[most]
    while end < len(sealed) and sealed[end].clustered and live + left[end] <= segment_bytes:
        live += left[end]
        end += 1
    while start > 0 and live + left[start - 1] <= segment_bytes:
        start -= 1
        live += left[start]
    return slice(start, end)


class Compaction:
    """The rewriting of some segments of a log, neighbours, into one.

    error: what the disk said, if it did not take it.
    """

    def __init__(self, log: Log, sources: Sequence[Segment], limits: Limits) -> None:
        self.sources = sources
        self.error: OSError | None = None
        self._log = log
        self._limits = limits
        self._cuts = [source.cuts for source in sources]
        self._fates: list[Column] = [source.fate.copy() for source in sources]
        self._rewritten: Rewritten | None = None

    def run(self) -> None:
        """Do the work, all but to put it in place."""
        held = self._log.held(self.sources)
        try:
            self._rewritten = self._log.keep(rewrite(self.sources, self._fates, self._limits, held))
        except OSError as error:
            self.error = error

    def finish(self) -> bool:
        """Let the new segment stand for the old ones.

        False, and nothing has changed: it could not be written, or a rollback meanwhile wants frames back.
        """
        if self._rewritten is None or [source.cuts for source in self.sources] != self._cuts:
            self._log.discard(self._rewritten)
            return False
        self._log.install(self.sources, self._rewritten)
        self.sources, self._fates, self._rewritten = (), [], None  # the log decides where the old ones end
        return True
