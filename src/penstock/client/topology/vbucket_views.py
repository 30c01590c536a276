"""A consistent view of vbuckets at one moment, from which a read is planned.

Failover logs and seqnos come from different requests. The view is consistent if the logs are the same before and after
the seqnos were read. A log only grows: a log that equals an earlier view's log has not changed in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from penstock.client.connect.stat_numbers import read_number
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import AccessDenied, RemoteProtocolError, TemporaryFailure
from penstock.store.history.failover_log import FailoverLog

FEW_VBUCKETS = 32
"""Vbuckets that are requested one by one: the statistics of all vbuckets have ten lines for each vbucket."""


class SeqnoReports(Protocol):
    """The requests that a view needs; VbucketReports implements them."""

    async def failover_logs(self, vbuckets: Sequence[int]) -> dict[int, FailoverLog]:
        """Return the failover logs of vbuckets."""

    async def served_seqnos(self, vbuckets: Sequence[int]) -> dict[int, int]:
        """Return the high seqnos of those of the vbuckets that are served."""

    async def seqno_stats(self, vbucket: int | None = None) -> dict[str, str]:
        """Return STAT vbucket-seqno, of all vbuckets by default."""


async def view_vbuckets(
    reports: SeqnoReports, wanted: Sequence[int], known: Mapping[int, VbucketInfo], recheck: Collection[int]
) -> dict[int, VbucketInfo]:
    """Return the failover logs and seqnos of vbuckets, without those that `served_seqnos` leaves out.

    Args:
        reports: makes the requests.
        wanted: the vbuckets.
        known: an earlier view. An unchanged vbucket keeps its known purge seqno.
        recheck: vbuckets whose purge seqnos are read again although nothing else changed.

    Raises TemporaryFailure if failover logs changed while the seqnos were read, RemoteProtocolError if the statistics
    are incomplete. Raises AccessDenied if the user may not read statistics.
    """
    try:
        return await _view_vbuckets(reports, wanted, known, recheck)
    except AccessDenied as error:
        raise AccessDenied(
            f"{error}: planned reads need the purge seqnos in the statistics; give the user a role of the bucket with "
            "the privilege SimpleStats, such as data_monitoring"
        ) from None


async def _view_vbuckets(
    reports: SeqnoReports, wanted: Sequence[int], known: Mapping[int, VbucketInfo], recheck: Collection[int]
) -> dict[int, VbucketInfo]:
    high_seqnos = await reports.served_seqnos(wanted)
    wanted = [*high_seqnos]
    if known.keys() >= high_seqnos.keys():
        found = await _refresh_view(reports, high_seqnos, known, recheck)
        if found is not None:
            return found
    before = await reports.failover_logs(wanted)
    stats = await reports.seqno_stats()
    if await reports.failover_logs(wanted) != before:
        raise TemporaryFailure("failover logs changed while the seqnos were read")
    return {vb: _make_info(vb, before[vb], stats) for vb in wanted}


async def view_ends(reports: SeqnoReports, wanted: Sequence[int]) -> dict[int, VbucketInfo]:
    """Return the failover logs and high seqnos of vbuckets, without those that `served_seqnos` leaves out.

    The purge seqnos are 0: they are in statistics, which data_dcp_reader may not read since Couchbase 7.0.

    Raises TemporaryFailure if failover logs changed while the seqnos were read.
    """
    served = [*await reports.served_seqnos(wanted)]
    before = await reports.failover_logs(served)
    high_seqnos = await reports.served_seqnos(served)
    if await reports.failover_logs(served) != before:
        raise TemporaryFailure("failover logs changed while the seqnos were read")
    return {vb: VbucketInfo(before[vb], seqno) for vb, seqno in high_seqnos.items()}


async def _refresh_view(
    reports: SeqnoReports, high_seqnos: Mapping[int, int], known: Mapping[int, VbucketInfo], recheck: Collection[int]
) -> dict[int, VbucketInfo] | None:
    """Return a view made from an earlier view with fewer requests; None if a failover log has changed."""
    wanted = [*high_seqnos]
    moved = [vb for vb in wanted if vb in recheck or high_seqnos[vb] != known[vb].high_seqno]
    stats: dict[str, str] = {}
    if len(moved) > FEW_VBUCKETS:
        stats = await reports.seqno_stats()
    else:
        for each in await asyncio.gather(*map(reports.seqno_stats, moved)):
            stats.update(each)
    logs = await reports.failover_logs(wanted)
    if any(logs[vb] != known[vb].failover_log for vb in wanted):
        return None
    return {vb: known[vb] for vb in wanted} | {vb: _make_info(vb, logs[vb], stats) for vb in moved}


def _make_info(vbucket: int, log: FailoverLog, stats: Mapping[str, str]) -> VbucketInfo:
    names = (f"vb_{vbucket}:high_seqno", f"vb_{vbucket}:purge_seqno")
    if missing := [name for name in names if name not in stats]:
        raise RemoteProtocolError(f"statistics vbucket-seqno without {missing[0]!r}")
    high, purge = (read_number(name, stats[name]) for name in names)
    return VbucketInfo(log, high, purge)
