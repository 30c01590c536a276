"""A bucket: its vbuckets, over one log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import NotMyVbucket
from penstock.store.index import RowIndex
from penstock.store.log import SEGMENT_BYTES, Log
from penstock.store.vbucket import Vbucket
from penstock.wire.constants import VbucketState

__all__ = ["Bucket", "BucketStats"]


class BucketStats(NamedTuple):
    """items: documents. index_bytes: an estimate. segments: sealed ones and the active one."""

    items: int
    index_bytes: int
    live_bytes: int
    dead_bytes: int
    segments: int


class Bucket:
    """A bucket in memory; in the beginning all of its vbuckets are active.

    changed: numbers of vbuckets in which an access has found a document expired, so that its deletion is the newest
    change; for the caller to take out.

    vbuckets: how many, a power of two up to 65536. clock: nanoseconds since the epoch. new_vbuuid: a random number
    from 1 to 2^48-1 at each call. Raises ValueError for another number of vbuckets or segments over 1 GiB.
    """

    def __init__(
        self,
        name: str,
        *,
        vbuckets: int = 1024,
        clock: Callable[[], int],
        new_vbuuid: Callable[[], int],
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        if not 1 <= vbuckets <= 65536 or vbuckets & (vbuckets - 1):
            raise ValueError(f"{vbuckets} vbuckets, expected a power of two from 1 to 65536")
        indexes = [RowIndex(vbucket) for vbucket in range(vbuckets)]
        self.name = name
        self.log = Log(indexes, segment_bytes)
        self.changed: set[int] = set()
        self.vbuckets = [
            Vbucket(index, self.log, clock=clock, new_vbuuid=new_vbuuid, changed=self.changed) for index in indexes
        ]

    def find(self, vbucket: int) -> Vbucket:
        """Return an active vbucket. Raises NotMyVbucket if there is none of that number."""
        if vbucket < len(self.vbuckets) and (found := self.vbuckets[vbucket]).state is VbucketState.ACTIVE:
            return found
        raise NotMyVbucket(vbucket=vbucket)

    def existing(self, vbucket: int) -> Vbucket:
        """Return a vbucket in whatever state. Raises NotMyVbucket if it is deleted or there is none of that number."""
        if vbucket < len(self.vbuckets) and (found := self.vbuckets[vbucket]).state is not None:
            return found
        raise NotMyVbucket(vbucket=vbucket)

    def stats(self) -> BucketStats:
        """Return the totals over all vbuckets. Takes time in proportion to their number."""
        return BucketStats(
            items=sum(vbucket.items for vbucket in self.vbuckets),
            index_bytes=self.log.index_bytes + sum(vbucket.index_bytes for vbucket in self.vbuckets),
            live_bytes=self.log.frame_bytes - self.log.dead_bytes,
            dead_bytes=self.log.dead_bytes,
            segments=len(self.log.sealed) + 1,
        )
