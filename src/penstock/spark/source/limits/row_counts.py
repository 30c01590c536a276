"""Counts of the rows among the seqnos of a bucket, from its statistics and its keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.client.blocking import LoopThread
from penstock.client.bucket import Bucket
from penstock.client.connect.stat_numbers import find_number
from penstock.client.feeds.collection_selection import StreamContent
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.vbucket_stream import StreamTarget
from penstock.client.streams.session_pool import SessionPool
from penstock.errors import NoSuchCollection
from penstock.spark.source.limits.row_allocation import SHARES, RowCount
from penstock.spark.source.offsets import VbucketRead
from penstock.spark.source.source_options import make_selection
from penstock.spark.source.worker_connections import get_connections, open_planned_stream
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import unsigned64

_NO_STREAM = "penstock-planner"
"""The name of a connection that does not exist: STAT vbtakeover then reports the changes of a new stream."""


class _KnownCount(NamedTuple):
    """The documents and tombstones of a vbucket when they were requested.

    Attributes:
        vbuuid: the newest branch at that time.
        seqno: a seqno that the vbucket had reached.
        documents: the number; None if the node does not report it.
    """

    vbuuid: int
    seqno: int
    documents: int | None


class BucketRowCounter:
    """Counts the rows of a bucket.

    A count of documents costs a request for each vbucket, once: later it grows at most by one for each seqno. A count
    of keys reads the changes without their values, at most as many as the limit of the batch.

    Attributes:
        collection_ids: the ids of the selected collections; None if all are selected.
        seqnos_per_row: seqnos for each row in the last part that was counted; infinite before.
    """

    def __init__(
        self, loop: LoopThread, bucket: Bucket, dialect: Dialect, collection_ids: tuple[int, ...] | None = None
    ) -> None:
        """Count the rows of a bucket.

        Args:
            loop: runs the requests.
            bucket: a connected bucket.
            dialect: the dialect of the streams.
            collection_ids: the ids of the selected collections; None if all are selected.
        """
        self.collection_ids = collection_ids
        self.seqnos_per_row = math.inf
        self._loop = loop
        self._bucket = bucket
        self._dialect = dialect
        self._known: dict[int, _KnownCount] = {}

    def bound_rows(self, read: VbucketRead) -> int | None:
        """Return a number that the rows of a read do not exceed.

        Nothing is known of selected collections in a part of a vbucket: all of its seqnos may belong to others.
        """
        if self.collection_ids is not None and read.start_seqno:
            return None
        known = self._known.get(read.vbucket)
        if known is None or not _is_useful(known, read):
            documents = self._loop.run(self._count_documents(read.vbucket))
            known = self._known[read.vbucket] = _KnownCount(read.vbuuid, read.end_seqno, documents)
        if known.documents is None:
            return None
        return min(read.end_seqno - read.start_seqno, known.documents + max(0, read.end_seqno - known.seqno))

    def is_dense(self, read: VbucketRead, seqnos: int) -> bool:
        """Return whether so few changes of a vbucket were overwritten that nearly each of `seqnos` seqnos has a row."""
        known = self._known.get(read.vbucket)
        if known is None or known.documents is None or self.collection_ids is not None:
            return False
        return read.end_seqno - known.documents <= seqnos // SHARES

    async def _count_documents(self, vbucket: int) -> int | None:
        """Return the number of documents and tombstones in a vbucket; None if the node does not report them.

        The documents are those of the selected collections, the tombstones those of all.
        """
        family = "dcp" if self._dialect is Dialect.DCP else "upr"
        takeover, details = f"{family}-vbtakeover {vbucket} {_NO_STREAM}", f"collections-details {vbucket}"
        groups = [takeover] if self.collection_ids is None else [takeover, details]
        reported = await self._bucket.node_reports.owner_stats(vbucket, groups)
        total = find_number(reported[takeover], "estimate")
        if total is None or self.collection_ids is None:
            return total
        items = [find_number(reported[details], f"vb_{vbucket}:0x{each:x}:items") or 0 for each in self.collection_ids]
        return total - (find_number(reported[takeover], "vb_items") or 0) + sum(items)

    def count_rows(self, reads: Sequence[VbucketRead], limit: int) -> RowCount:
        """Return the number of rows of some reads, from their keys. The count stops above the limit."""
        loop, sessions = get_connections()
        counted = loop.run(self._count_rows(reads, limit, sessions))
        if counted.is_complete and counted.rows:
            self.seqnos_per_row = sum(each.end_seqno - each.start_seqno for each in reads) / counted.rows
        return counted

    async def _count_rows(self, reads: Sequence[VbucketRead], limit: int, sessions: SessionPool) -> RowCount:
        targets = {
            each.vbucket: StreamTarget(position=each.start, end_seqno=each.end_seqno, policy=each.policy)
            for each in reads
        }
        address, dialect = self._bucket.address, self._dialect
        content = StreamContent(selection=make_selection(address, dialect), values=False, skips_missing=True)
        left, reached = limit, dict[int, int]()
        async with await open_planned_stream(address, dialect, targets, content, sessions) as stream:
            with suppress(NoSuchCollection):  # no collection of the selection exists, so there are no rows
                while left >= 0 and (delivery := await stream.next_delivery()) is not None:
                    reached |= _find_last_seqnos(delivery, left)
                    left -= delivery.batch.num_rows
            return RowCount(limit - max(0, left), left >= 0, reached, frozenset(stream.given_up))


def _is_useful(known: _KnownCount, read: VbucketRead) -> bool:
    """Return whether a count is of the same branch, and the seqnos since then do not change it much."""
    return known.vbuuid == read.vbuuid and (
        known.documents is None or read.end_seqno - known.seqno <= known.documents // 4
    )


def _find_last_seqnos(delivery: Delivery, most: int) -> dict[int, int]:
    """Return the last seqno of each vbucket among the first rows of a delivery."""
    if delivery.batch.num_rows <= most:
        return {vb: position.seqno for vb, position in delivery.positions.items()}
    rows = delivery.batch.select(["vbucket", "seqno"]).slice(0, most).to_pydict()
    return dict(zip(rows["vbucket"], map(unsigned64, rows["seqno"]), strict=True))
