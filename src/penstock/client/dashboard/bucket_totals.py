"""Figures of a bucket from STAT without a group, as each of its nodes answers it. One that no node has is None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.client.connect.stat_numbers import find_decimal, find_number
from penstock.client.dashboard.dashboard_document import BucketTotals, RatePoint, VbucketRow
from penstock.wire.codec.constants import VbucketState

NodeStats = Mapping[str, str]
"""The statistics of one node."""

_FAMILIES = ("dcp", "upr", "tap")
_MILLISECONDS = 1000

_SUMS = {
    "documents": ("curr_items",),
    "active": ("vb_active_num",),
    "memory": ("mem_used",),
    "quota": ("ep_max_size",),
    "disk": ("ep_db_file_size",),
    "unpersisted": ("ep_queue_size",),
    "index": ("ep_index_bytes",),
    "log_live": ("ep_log_live_bytes",),
    "log_dead": ("ep_log_dead_bytes",),
    "segments": ("ep_log_segments",),
    "commits": ("ep_commit_num",),
    "compactions": ("ep_compactions",),
    "refused": ("ep_oom_errors", "ep_tmp_oom_errors"),
}
"""Figure -> the statistics whose sum it is."""


def make_totals(reported: Sequence[NodeStats]) -> BucketTotals:
    """Return the figures of all nodes together.

    Args:
        reported: the statistics of each node.
    """
    commits = [time for each in reported if (time := find_decimal(each, "ep_commit_time")) is not None]
    return BucketTotals(
        **{figure: _add(reported, names) for figure, names in _SUMS.items()},
        commit_seconds=max(commits) / _MILLISECONDS if commits else None,
        fault="; ".join(text for each in reported if (text := each.get("ep_storage_fault"))),
    )


def make_rate_point(at: float, reported: Sequence[NodeStats], rows: Sequence[VbucketRow]) -> RatePoint:
    """Return the counters of a bucket.

    Args:
        at: seconds since the epoch.
        reported: the statistics of each node.
        rows: the row of each vbucket.
    """
    active = [row[1] for row in rows if row[0] == VbucketState.ACTIVE]
    known = [seqno for seqno in active if seqno is not None]
    return RatePoint(
        at=at,
        changes=sum(known) if len(known) == len(active) and known else None,
        gets=_add(reported, ("cmd_get",)),
        sets=_add(reported, ("cmd_set",)),
        deletes=_add(reported, ("cmd_delete",)),
        items_sent=_add(reported, [f"ep_{family}_items_sent" for family in _FAMILIES]),
        bytes_sent=_add(reported, [f"ep_{family}_total_bytes" for family in _FAMILIES]),
        memory=_add(reported, ("mem_used",)),
    )


def count_rollbacks(reported: Sequence[NodeStats]) -> int | None:
    """Return the number of rollbacks that the producers of all nodes have demanded."""
    return _add(reported, [f"ep_{family}_rollbacks" for family in _FAMILIES])


def _add(reported: Sequence[NodeStats], names: Sequence[str]) -> int | None:
    """Return a sum; None if a node has none of these statistics, because the sum would then miss a part."""
    found = [[number for name in names if (number := find_number(each, name)) is not None] for each in reported]
    return sum(map(sum, found)) if found and all(found) else None
