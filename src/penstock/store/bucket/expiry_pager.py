"""The expiry pager: it goes through all documents of a bucket and ends those whose time is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from penstock.store.bucket.bucket_eraser import BucketEraser
from penstock.store.documents.vbucket import Vbucket
from penstock.store.log.frame_fields import read_expiries, read_keys
from penstock.store.log.segment import Column
from penstock.wire.codec.constants import VbucketState

__all__ = ["ExpiryPager"]

_NANOSECONDS = 10**9
_ROWS_AT_ONCE = 16 * 1024  # a few milliseconds of work
_EXPIRED_AT_ONCE = 256  # tombstones, about a millisecond of work
_ROWS_PER_EXPIRED = 32  # that are looked at in the time that a tombstone takes
_ROWS_PER_CALL = 256  # that take as long as to begin and end with a vbucket's part of a segment


class ExpiryPager:
    """Turns documents whose time is over into tombstones, bit by bit. clock: nanoseconds since the epoch."""

    def __init__(self, vbuckets: Sequence[Vbucket], eraser: BucketEraser, clock: Callable[[], int]) -> None:
        self._vbuckets = vbuckets
        self._eraser = eraser
        self._clock = clock
        self._round: Iterator[int] | None = None

    def expire_some(self) -> bool:
        """Go on with a round, a few milliseconds' worth, or begin the next one; False: the round has ended."""
        if self._eraser.erase_some():
            return True  # nothing may come of a collection behind the event that it has ended
        if self._round is None:
            self._round = self._expire()
        rows = 0
        for looked_at in self._round:
            rows += looked_at
            if rows >= _ROWS_AT_ONCE:
                return True
        self._round = None
        return False

    def _expire(self) -> Iterator[int]:
        """Go through all documents. Yields the work that this was, in rows, piece by piece."""
        now = self._clock() // _NANOSECONDS
        for vbucket in self._vbuckets:
            if vbucket.history.state is VbucketState.ACTIVE:
                for buffer, offsets, _ in vbucket.index.iterate_live_frames():
                    for first in range(0, len(offsets), _ROWS_AT_ONCE):
                        yield from _expire_frames(vbucket, buffer, offsets[first : first + _ROWS_AT_ONCE], now)
                    yield _ROWS_PER_CALL


def _expire_frames(vbucket: Vbucket, buffer: memoryview, offsets: Column, now: int) -> Iterator[int]:
    """End the documents in some frames whose time is over. Yields the work that this was, in rows, piece by piece."""
    times = read_expiries(buffer, offsets)
    over = offsets[(times > 0) & (times <= now)]
    for first in range(0, len(over), _EXPIRED_AT_ONCE):
        some = over[first : first + _EXPIRED_AT_ONCE]
        for key in read_keys(buffer, some):
            vbucket.get(key)
        yield len(some) * _ROWS_PER_EXPIRED
    yield len(offsets)
