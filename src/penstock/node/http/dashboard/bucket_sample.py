"""A sample of a bucket: the values that the dashboard shows, at one moment."""

from __future__ import annotations

import asyncio
import time
from typing import Final, NamedTuple

from penstock.client.dashboard.dashboard_document import ConnectionRow, TimingRow, VbucketRow
from penstock.client.dashboard.lag_clock import LagClock
from penstock.node.buckets.served_bucket import BucketEndpoint, ServedBucket
from penstock.node.http.dashboard.endpoint_rows import make_endpoint_row
from penstock.node.session.node_services import NodeServices
from penstock.node.stats.bucket_stats import read_bucket_stats
from penstock.node.stats.storage_stats import list_tasks
from penstock.node.timing.histogram import Histogram

MAX_ENDPOINTS: Final = 500
"""Connections that a sample shows; the totals include all."""

_QUANTILES = (0.5, 0.95, 0.99)


class BucketSample(NamedTuple):
    """A bucket at one moment.

    Attributes:
        at: seconds since the epoch.
        stats: STAT without a group, as a client receives it.
        vbuckets: a row for each vbucket.
        endpoints: a row for each change-stream connection.
        timings: the durations of background work.
        commands: the durations of commands of the last ten minutes.
        cost: seconds of the processor that the sample took.
    """

    at: float
    stats: dict[str, str]
    vbuckets: list[VbucketRow]
    endpoints: list[ConnectionRow]
    timings: list[TimingRow]
    commands: list[TimingRow]
    cost: float


async def gather_sample(node: NodeServices, bucket: ServedBucket, lags: LagClock[BucketEndpoint]) -> BucketSample:
    """Return a sample. Between two connections, the event loop serves other requests.

    Statistics and vbuckets belong to one moment, and come from the functions that STAT uses.

    Args:
        node: the node.
        bucket: the bucket.
        lags: measures the lags of consumers.
    """
    began, cost = time.thread_time(), 0.0
    count = len(bucket.store.vbuckets)
    remaining, streams = [0] * count, [0] * count
    endpoints, now = tuple(bucket.endpoints.values())[:MAX_ENDPOINTS], node.machine.time()
    lags.forget_others(set(endpoints))
    rows = []
    for endpoint in endpoints:
        report = endpoint.report()
        rows.append(make_endpoint_row(report, lags.measure(endpoint, report.items_remaining, now)))
        for stream in report.streams:
            streams[stream.vbucket] += 1
            remaining[stream.vbucket] = max(remaining[stream.vbucket], stream.items_remaining)
        cost += time.thread_time() - began
        await asyncio.sleep(0)
        began = time.thread_time()
    vbuckets: list[VbucketRow] = [
        (
            0 if (history := vbucket.history).state is None else int(history.state),
            vbucket.changes.high_seqno,
            history.persisted_seqno,
            vbucket.changes.items,
            lag,
            number,
        )
        for vbucket, lag, number in zip(bucket.store.vbuckets, remaining, streams, strict=True)
    ]
    stats = {name: str(value) for name, value in read_bucket_stats(node, bucket)}
    timings, commands = _list_timings(bucket), _list_commands(bucket, node.loop.time())
    cost += time.thread_time() - began
    return BucketSample(node.machine.time(), stats, vbuckets, rows, timings, commands, cost)


def _list_timings(bucket: ServedBucket) -> list[TimingRow]:
    timed = [(task.name, task.times) for task in list_tasks(bucket)]
    timed.append(("stat", Histogram.merge(bucket.stat_times.values())))
    return [_make_timing_row(name, times) for name, times in timed]


def _list_commands(bucket: ServedBucket, now: float) -> list[TimingRow]:
    recent = bucket.command_times.list_recent(now)
    return [_make_timing_row(kind.label, times) for kind, times in recent.items() if times.count]


def _make_timing_row(name: str, times: Histogram) -> TimingRow:
    return TimingRow(name, times.count, times.last, [times.estimate_quantile(part) for part in _QUANTILES])
