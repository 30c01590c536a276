"""Samples a bucket by the statistics of its servers: the documents of a dashboard beside a cluster."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.client.bucket import Bucket
from penstock.client.connect.address import Address
from penstock.client.connect.cluster_map import NO_NODE
from penstock.client.connect.stat_numbers import find_decimal, find_number
from penstock.client.dashboard.bucket_totals import count_rollbacks, make_rate_point, make_totals
from penstock.client.dashboard.dashboard_document import (
    ConnectionRow,
    DashboardDocument,
    NodeFacts,
    NodeRow,
    RatePoint,
    VbucketDetail,
    VbucketRow,
    ViewerFacts,
)
from penstock.client.dashboard.lag_clock import LagClock
from penstock.client.dashboard.stat_rows import (
    ConnectionStats,
    list_collections,
    list_timings,
    make_connection_row,
    make_vbucket_row,
    make_vbucket_stream_row,
    read_connections,
)
from penstock.client.discovery.endpoint import format_endpoint
from penstock.client.login.credentials import Credentials
from penstock.client.topology.node_reports import BucketReport, NodeStatsReport
from penstock.client.topology.vbucket_requests import read_failovers

SECONDS: Final = 1.0
"""The shortest time between two samples."""

_LARGEST_SHARE = 0.1
"""The part of the time that servers and this process may spend on samples: after a slow one, the next is later."""

_MOST_SECONDS: Final = 15.0
"""The longest time between two samples, so that the page notices when a node that did not answer returns."""

_POINTS: Final = 600
_MAX_CONNECTIONS = 500

_STATES = ("vbucket", "vbucket-details", "vbucket-seqno")
_STREAMS = ("dcp", "tap")
_GROUPS = ("", *_STATES, *_STREAMS, "collections", "timings", "latencies")
_VBUCKET_GROUPS = ("vbucket-details", "vbucket-seqno", "failovers")
"""The groups that have the details of one vbucket. Without a number they have those of all."""


class StatsSample(NamedTuple):
    """A bucket at one moment.

    Attributes:
        document: the document, without vbuckets and points.
        rows: the row of each vbucket.
        report: the statistics of which both were made.
    """

    document: DashboardDocument
    rows: Sequence[VbucketRow]
    report: BucketReport


class StatsSampler:
    """Takes at most one sample a second, however many viewers there are; none without a viewer.

    Args:
        bucket: the bucket.

    Attributes:
        points: the counters of the samples, oldest first.
        seconds: seconds between two samples.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.points: deque[RatePoint] = deque(maxlen=_POINTS)
        self.seconds = SECONDS
        self._bucket = bucket
        self._lags = LagClock[tuple[int, str, str]]()
        self._lock = asyncio.Lock()
        self._newest: StatsSample | None = None
        self._due_at = 0.0

    async def take_sample(self) -> StatsSample:
        """Return the newest sample, after taking one if it is due. Raises the errors of `Bucket.stats`."""
        async with self._lock:
            began = time.monotonic()
            if self._newest is not None and began < self._due_at:
                return self._newest
            try:
                report = await self._bucket.node_reports.all_node_stats(_GROUPS)
            finally:
                self.seconds = min(max(SECONDS, (time.monotonic() - began) / _LARGEST_SHARE), _MOST_SECONDS)
                # A viewer whose timer is a little early gets a new sample nevertheless.
                self._due_at = began + 0.9 * self.seconds
            self._newest = self._make_sample(report, time.time())
            return self._newest

    async def read_vbucket(self, vbucket: int) -> VbucketDetail:
        """Return the details of a vbucket. Raises the errors of `Bucket.stats`.

        Args:
            vbucket: its number, below the number of vbuckets.
        """
        groups = {group: f"{group} {vbucket}" for group in _VBUCKET_GROUPS}
        found = await self._bucket.node_reports.owner_stats(vbucket, [*groups.values(), *_STREAMS])
        own, stats = f"vb_{vbucket}", {}
        for group in ("vbucket-details", "vbucket-seqno"):
            for name, text in found[groups[group]].items():
                if name.partition(":")[0] == own:
                    stats[name.partition(":")[2] or "state"] = text
        log = read_failovers(found[groups["failovers"]]).get(vbucket, ())
        high = find_number(stats, "high_seqno")
        connections = read_connections(_merge(found, _STREAMS))
        return VbucketDetail(
            vbucket,
            stats,
            [(str(entry.vbuuid), entry.seqno) for entry in log],
            [make_vbucket_stream_row(each, vbucket, high) for each in connections if vbucket in each.streams],
        )

    def _make_sample(self, report: BucketReport, now: float) -> StatsSample:
        answered = [node.groups for node in report.nodes if node.groups is not None]
        connections = [None if node.groups is None else _read_streams(node.groups) for node in report.nodes]
        rows = _list_rows(report, connections)
        # kv_engine has the totals of streams in the group dcp, a node of this project in both.
        reported = [_merge(groups, ("dcp", "tap", "")) for groups in answered]
        # A sum without the nodes that did not answer would look like a bucket that has lost documents.
        whole = reported if len(reported) == len(report.nodes) else []
        self.points.append(make_rate_point(now, whole, rows))
        first = next((node.groups[""] for node in report.nodes if node.is_first and node.groups is not None), {})
        address = self._bucket.address
        document = DashboardDocument(
            at=now,
            seconds=self.seconds,
            node=NodeFacts(
                version=first.get("ep_version") or first.get("version"),
                uptime=find_decimal(first, "uptime"),
                address=str(address),
            ),
            user=ViewerFacts(_find_user(address), [], may_read_changes=True, may_end_streams=False),
            buckets=[address.bucket],
            bucket=address.bucket,
            kind=first.get("ep_bucket_type"),
            on_disk=_has_disk(first),
            stats=dict(first),
            totals=make_totals(whole),
            vbuckets=[],
            endpoints=self._list_connections(report, connections, rows, now),
            points=[],
            timings=list_timings(groups["timings"] for groups in answered),
            commands=list_timings(groups["latencies"] for groups in answered),
            rollbacks=None,
            rollback_count=count_rollbacks(whole),
            collections=list_collections(groups["collections"] for groups in answered),
            nodes=[_make_node_row(report, index) for index in range(len(report.nodes))],
            users=None,
            has_chains=True,
        )
        return StatsSample(document, rows, report)

    def _list_connections(
        self,
        report: BucketReport,
        connections: Sequence[Sequence[ConnectionStats] | None],
        rows: Sequence[VbucketRow],
        now: float,
    ) -> list[ConnectionRow] | None:
        """Return the connections to all nodes; None if no node lists them."""
        if all(each is None for each in connections):
            return None
        found, keys = [], set()
        for index, each in ((index, each) for index, of_node in enumerate(connections) for each in of_node or ()):
            key = (index, each.dialect, each.name)
            keys.add(key)
            remaining = _count_remaining(each, rows)
            lag = None if remaining is None else round(self._lags.measure(key, remaining, now), 1)
            row = make_connection_row(each, remaining, lag)
            if len(report.nodes) > 1:
                row.node = format_endpoint(*report.nodes[index].endpoint)
            found.append(row)
        self._lags.forget_others(keys)
        found.sort(key=lambda row: (-(row.lag_seqnos or 0), row.name))
        return found[:_MAX_CONNECTIONS]


def _find_user(address: Address) -> str:
    return address.credentials.username if isinstance(address.credentials, Credentials) else ""


def _merge(groups: Mapping[str, Mapping[str, str]], names: Sequence[str]) -> dict[str, str]:
    return {name: text for group in names for name, text in groups[group].items()}


def _read_streams(groups: Mapping[str, Mapping[str, str]]) -> list[ConnectionStats] | None:
    """Return the connections of a node; None if it has no group with them."""
    return read_connections(_merge(groups, _STREAMS)) if any(groups[group] for group in _STREAMS) else None


def _list_rows(report: BucketReport, connections: Sequence[Sequence[ConnectionStats] | None]) -> list[VbucketRow]:
    """Return the row of each vbucket, from the node that has it active."""
    merged = [{} if node.groups is None else _merge(node.groups, _STATES) for node in report.nodes]
    rows = []
    for vbucket, owner in enumerate(report.map.owners):
        is_owned = owner != NO_NODE
        stats, streams = (merged[owner], connections[owner]) if is_owned else ({}, None)
        rows.append(make_vbucket_row(vbucket, stats, streams, is_owned=is_owned))
    return rows


def _count_remaining(each: ConnectionStats, rows: Sequence[VbucketRow]) -> int | None:
    """Return the changes that are left to send to a connection: its own count, or that of its streams together."""
    found = find_number(each.stats, "items_remaining")
    left = [each.count_remaining(vb, rows[vb][1] if vb < len(rows) else None) for vb in each.streams]
    known = [number for number in left if number is not None]
    return found if found is not None or len(known) < len(left) or not left else sum(known)


def _has_disk(stats: Mapping[str, str]) -> bool | None:
    """Return whether the bucket has files; None: not known. A bucket of a node without a directory has no size."""
    if stats.get("ep_bucket_type") == "ephemeral":
        return False
    return True if "ep_db_file_size" in stats else None


def _make_node_row(report: BucketReport, index: int) -> NodeRow:
    node: NodeStatsReport = report.nodes[index]
    address = format_endpoint(*node.endpoint)
    return NodeRow(
        address=address,
        name=address,
        status="lost" if node.groups is None else "healthy",
        membership=None,
        is_this=node.is_first,
        active=report.map.owners.count(index),
        replicas=sum(chain.count(index) for chain in report.map.replicas),
    )
