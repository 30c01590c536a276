"""The positions at a time in the past, found by the times in the changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.feeds.stream_position import BEGINNING, Position, SnapshotEnd
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.client.topology.vbucket_reports import VbucketReports
from penstock.errors import UsageError
from penstock.store.history.failover_log import find_branch

FIRST_TIME = int(datetime(2010, 1, 1, tzinfo=UTC).timestamp()) * 10**9
"""A cas below this time in nanoseconds is no time. Couchbase before 4.0 counts instead."""


KeyStreamOpener = Callable[[Mapping[int, int]], Awaitable[ChangeStream]]
"""Returns a stream of all keys from the beginning to given seqnos by vbucket."""


def parse_time(text: str) -> datetime:
    """Return the time in a text such as 2026-11-23T08:00:00Z; without a zone, in UTC. Raises UsageError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"found the time {text!r}, expected a time such as 2026-11-23T08:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


async def find_positions_at(
    moment: datetime, reports: VbucketReports, open_keys: KeyStreamOpener, vbuckets: Sequence[int]
) -> dict[int, Position]:
    """Return the positions before the first changes that are not older than a time: vbucket -> position.

    The cas of a change is its time. The search reads the keys of the whole history.

    Args:
        moment: the time, with a time zone.
        reports: the reports of the bucket.
        open_keys: opens the stream that the search reads.
        vbuckets: the vbuckets to search.

    Raises:
        UsageError: the time has no zone, or is in the future. The changes have no times, or deletions since then were
            purged.
    """
    if moment.tzinfo is None or moment > datetime.now(UTC):
        raise UsageError(f"found the time {moment.isoformat()}, expected a time with a zone that has passed")
    infos = await reports.vbucket_infos(vbuckets)
    ends = {vbucket: info.high_seqno for vbucket, info in infos.items() if info.high_seqno}
    limit = (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000
    first: dict[int, int] = {}
    async with await open_keys(ends) as stream:
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
    if least is not None and least < FIRST_TIME:
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
