"""The expiry pager: scans all documents of a bucket and deletes the expired ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from penstock.store.bucket.bucket_eraser import BucketEraser
from penstock.store.documents.vbucket import Vbucket
from penstock.store.log.frame_fields import read_expiries, read_keys
from penstock.store.log.segment import Column
from penstock.wire.codec.constants import VbucketState

_NANOSECONDS = 10**9
_ROWS_AT_ONCE = 16 * 1024  # a few milliseconds of work.
_EXPIRED_AT_ONCE = 256  # tombstones: about a millisecond of work.
_ROWS_PER_EXPIRED = 32  # rows that are scanned in the time of one tombstone.
_ROWS_PER_CALL = 256  # rows that take as long as the start and end of a vbucket's part of a segment.


class ExpiryPager:
    """Turns expired documents into tombstones, in slices of a few milliseconds.

    Args:
        vbuckets: all vbuckets of the bucket; the pager works on the active ones.
        eraser: erases the documents of dropped collections, which the pager must not see.
        clock: returns nanoseconds since the epoch.
    """

    def __init__(self, vbuckets: Sequence[Vbucket], eraser: BucketEraser, clock: Callable[[], int]) -> None:
        self._vbuckets = vbuckets
        self._eraser = eraser
        self._clock = clock
        self._round: Iterator[int] | None = None

    def expire_some(self) -> bool:
        """Continue the scan for a few milliseconds, or begin the next one.

        Returns:
            False if the scan has ended.
        """
        if self._eraser.erase_some():
            return True  # no tombstone of a collection may follow the event that ended the collection
        if self._round is None:
            self._round = self._expire()
        rows = 0
        for scanned in self._round:
            rows += scanned
            if rows >= _ROWS_AT_ONCE:
                return True
        self._round = None
        return False

    def _expire(self) -> Iterator[int]:
        """Scan all documents once.

        Yields:
            The work since the last yield, in rows.
        """
        now = self._clock() // _NANOSECONDS
        for vbucket in self._vbuckets:
            if vbucket.history.state is VbucketState.ACTIVE:
                for buffer, offsets, _ in vbucket.index.iterate_live_frames():
                    for first in range(0, len(offsets), _ROWS_AT_ONCE):
                        yield from _expire_frames(vbucket, buffer, offsets[first : first + _ROWS_AT_ONCE], now)
                    yield _ROWS_PER_CALL


def _expire_frames(vbucket: Vbucket, buffer: memoryview, offsets: Column, now: int) -> Iterator[int]:
    """Delete the expired documents in some frames.

    Args:
        vbucket: the vbucket of the frames.
        buffer: the memory with the frames.
        offsets: where the frames begin in the buffer.
        now: epoch seconds.

    Yields:
        The work since the last yield, in rows.
    """
    times = read_expiries(buffer, offsets)
    expired = offsets[(times > 0) & (times <= now)]
    for first in range(0, len(expired), _EXPIRED_AT_ONCE):
        some = expired[first : first + _EXPIRED_AT_ONCE]
        for key in read_keys(buffer, some):
            vbucket.get(key)  # reading an expired document deletes it
        yield len(some) * _ROWS_PER_EXPIRED
    yield len(offsets)
