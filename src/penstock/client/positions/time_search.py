"""The positions at a time in the past, found by the times in the changes."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.bucket import Bucket
from penstock.client.feeds.stream_position import BEGINNING, Position, SnapshotEnd
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import UsageError
from penstock.store.history.failover_log import find_branch

__all__ = ["find_position_before", "find_positions_at"]

_FIRST_TIME = int(datetime(2010, 1, 1, tzinfo=UTC).timestamp()) * 10**9
"""A cas below this time in nanoseconds is no time. Couchbase before 4.0 counts instead."""


async def find_positions_at(bucket: Bucket, moment: datetime) -> dict[int, Position]:
    """Return the positions before the first changes that are not older than a time: vbucket -> position.

    The cas of a change is its time. The search reads the keys of the whole history.

    Args:
        bucket: the connected bucket.
        moment: the time, with a time zone.

    Raises:
        UsageError: the changes have no times, or the history since then is incomplete, because deletions were purged.
    """
    infos = await bucket.vbucket_infos()
    ends = {vbucket: info.high_seqno for vbucket, info in infos.items() if info.high_seqno}
    limit = int(moment.timestamp() * 10**9)
    first: dict[int, int] = {}
    async with await bucket.stream(stop=ends, vbuckets=sorted(ends), protocol="dcp", values=False) as stream:
        async for batch in stream:
            documents = batch.filter(pc.is_valid(batch.column("key")))
            _check_times(documents)
            late = documents.filter(pc.greater_equal(documents.column("cas"), limit))
            for vbucket, seqno in zip(
                late.column("vbucket").to_pylist(), late.column("seqno").to_pylist(), strict=True
            ):
                first[vbucket] = min(first.get(vbucket, seqno), seqno)
    return {
        vbucket: find_position_before(vbucket, first.get(vbucket, info.high_seqno + 1), info, moment)
        for vbucket, info in infos.items()
    }


def _check_times(documents: pa.RecordBatch) -> None:
    """Raise UsageError if a change has no time."""
    least = pc.min(documents.column("cas")).as_py()
    if least is not None and least < _FIRST_TIME:
        raise UsageError(f"the changes have no times: found the cas {least}, expected nanoseconds since 1970")


def find_position_before(vbucket: int, seqno: int, info: VbucketInfo, moment: datetime) -> Position:
    """Return the position before a change, as a complete snapshot.

    Args:
        vbucket: the vbucket.
        seqno: the seqno of the change.
        info: the failover log and the seqnos of the vbucket.
        moment: the time for which the position is searched, for the error.

    Raises:
        UsageError: a deletion after the position may have been purged.
    """
    before = min(seqno - 1, info.high_seqno)
    if not before:
        return BEGINNING
    if before < info.purge_seqno:
        raise UsageError(
            f"the history since {moment.isoformat()} is incomplete: found seqno {before} of vbucket {vbucket} at that "
            f"time, expected at least {info.purge_seqno}, because older deletions were purged; move to the beginning"
        )
    end = SnapshotEnd(before, find_branch(info.failover_log, before).vbuuid)
    return Position(seqno=before, vbuuid=end.vbuuid, snap_start=before, snap_end=before, ends=(end,))
