"""A consistent view of vbuckets at one moment, from which a read is planned.

Failover logs and seqnos come by different requests, so that the logs must be the same in front of and behind the
seqnos. A log only grows: one that is as it was in an earlier view has not been another in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from penstock.client.connect.stat_numbers import read_number
from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.errors import RemoteProtocolError, TemporaryFailure
from penstock.store.history.failover_log import FailoverLog

__all__ = ["view_vbuckets"]

_FEW = 32
"""Vbuckets that are asked for one by one: a node reports ten lines for each of all of them."""


class SeqnoReports(Protocol):
    """Where the parts of a view come from: VbucketReports."""

    async def failover_logs(self, vbuckets: Sequence[int]) -> dict[int, FailoverLog]: ...
    async def served(self, vbuckets: Sequence[int]) -> dict[int, int]: ...
    async def seqno_stats(self, vbucket: int | None = None) -> dict[str, str]: ...


async def view_vbuckets(
    reports: SeqnoReports, wanted: Sequence[int], known: Mapping[int, VbucketInfo], unsure: Collection[int]
) -> dict[int, VbucketInfo]:
    """Return what is reported of the vbuckets; those that are not served are left out if `served` leaves them out.

    known: of an earlier view; the purge seqno of a vbucket in which nothing has changed since is taken from there,
    unless it is one of `unsure`. Raises TemporaryFailure if failover logs changed meanwhile, RemoteProtocolError for
    statistics that say too little.
    """
    high_seqnos = await reports.served(wanted)
    wanted = [*high_seqnos]
    if known.keys() >= high_seqnos.keys():
        found = await _view_again(reports, high_seqnos, known, unsure)
        if found is not None:
            return found
    before = await reports.failover_logs(wanted)
    stats = await reports.seqno_stats()
    if await reports.failover_logs(wanted) != before:
        raise TemporaryFailure("failover logs changed while the seqnos were read")
    return {vb: _info(vb, before[vb], stats) for vb in wanted}


async def _view_again(
    reports: SeqnoReports, high_seqnos: Mapping[int, int], known: Mapping[int, VbucketInfo], unsure: Collection[int]
) -> dict[int, VbucketInfo] | None:
    """Do what `view_vbuckets` does with less to ask for; return None where a failover log is not what is known.

    high_seqnos: of the wanted vbuckets.
    """
    wanted = [*high_seqnos]
    moved = [vb for vb in wanted if vb in unsure or high_seqnos[vb] != known[vb].high_seqno]
    stats: dict[str, str] = {}
    if len(moved) > _FEW:
        stats = await reports.seqno_stats()
    else:
        for each in await asyncio.gather(*map(reports.seqno_stats, moved)):
            stats.update(each)
    logs = await reports.failover_logs(wanted)
    if any(logs[vb] != known[vb].failover_log for vb in wanted):
        return None
    return {vb: known[vb] for vb in wanted} | {vb: _info(vb, logs[vb], stats) for vb in moved}


def _info(vbucket: int, log: FailoverLog, stats: Mapping[str, str]) -> VbucketInfo:
    names = (f"vb_{vbucket}:high_seqno", f"vb_{vbucket}:purge_seqno")
    if missing := [name for name in names if name not in stats]:
        raise RemoteProtocolError(f"statistics vbucket-seqno without {missing[0]!r}")
    high, purge = (read_number(name, stats[name]) for name in names)
    return VbucketInfo(log, high, purge)
