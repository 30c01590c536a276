"""STAT of the disk and of background work, with the time that it takes.

Names are those of ep-engine's cbstats. A bucket has these background tasks: the flusher, which commits, the compactor,
the expiry pager, and the loading of keys when the bucket is opened. In memory there is no flusher.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import InvalidArguments, NotSupported
from penstock.node.auth import Privilege
from penstock.node.buckets.bucket_storage import count_file_bytes
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.stats.bucket_stats import get_warmup_state
from penstock.node.stats.stat_group import Argument, StatGroup, StatRequest, Stats, make_bucket_group
from penstock.node.timing.histogram import Histogram

_NEVER = 2**63 - 1  # nanoseconds; cbstats shows it as "inf"
_NANOSECONDS = 1_000_000_000
_MICROSECONDS = 1_000_000


class BackgroundTask(NamedTuple):
    """A background task of a bucket.

    Attributes:
        name: name of the task.
        kind: the pool that it would belong to in ep-engine: Writer, AuxIO, NonIO.
        times: durations of its runs.
        is_running: whether it runs now.
        next_run: time of its next run, by the event loop's clock; None if that is not known.
        description: its work, for cbstats.
    """

    name: str
    kind: str
    times: Histogram
    is_running: bool
    next_run: float | None
    description: str


def list_tasks(bucket: ServedBucket) -> Iterator[BackgroundTask]:
    """Yield the background tasks of a bucket."""
    flusher, compactor, maintenance = bucket.flusher, bucket.compactor, bucket.maintenance
    if flusher is not None:
        yield BackgroundTask("flusher", "Writer", flusher.times, flusher.is_committing, None, "Writes changes to disk")
    if compactor is not None:
        yield BackgroundTask(
            "compactor", "AuxIO", compactor.times, compactor.is_running, None, "Rewrites segments of the log"
        )
    yield BackgroundTask(
        "expiry_pager", "NonIO", maintenance.pager_times, False, maintenance.next_pager_run, "Deletes expired documents"
    )
    if not maintenance.keys_loaded:
        yield BackgroundTask("key_loader", "NonIO", maintenance.load_times, False, 0.0, "Loads the keys of documents")


def list_histograms(bucket: ServedBucket) -> Iterator[Histogram]:
    """Return the durations of all background tasks."""
    return (task.times for task in list_tasks(bucket))


def _read_tasks(request: StatRequest, bucket: ServedBucket) -> Stats:
    now, name = request.node.loop.time(), bucket.store.name
    rows = [_build_task_row(number, task, name, now) for number, task in enumerate(list_tasks(bucket), 1)]
    yield f"ep_tasks:tasks:{name}", json.dumps(rows, separators=(",", ":"))
    yield f"ep_tasks:cur_time:{name}", int(now * _NANOSECONDS)


def _build_task_row(number: int, task: BackgroundTask, bucket: str, now: float) -> dict[str, object]:
    wakes = _NEVER if task.next_run is None else int(max(task.next_run, now) * _NANOSECONDS)
    return {
        "tid": number,
        "this": task.name,
        "bucket": bucket,
        "name": task.name,
        "description": task.description,
        "type": task.kind,
        "priority": 0,
        "state": "RUNNING" if task.is_running else "SNOOZED",
        "waketime_ns": wakes,
        "num_runs": task.times.count,
        "total_runtime_ns": int(task.times.total * _NANOSECONDS),
        "previous_runtime_ns": int(task.times.last * _NANOSECONDS),
        "last_starttime_ns": int(now * _NANOSECONDS) if task.is_running else 0,
    }


def _read_all_tasks(request: StatRequest) -> Stats:
    """Return the tasks of all buckets that the user sees."""
    user = request.session.login.effective_user
    buckets = [b for b in request.node.buckets.values() if user is not None and user.can_see(b.store.name)]
    return (line for bucket in buckets for line in _read_tasks(request, bucket))


def _read_runtimes(bucket: ServedBucket) -> Stats:
    return (line for task in list_tasks(bucket) for line in task.times.list_stats(task.name))


def _read_timings(bucket: ServedBucket) -> Stats:
    """Yield the durations of work, and of commands by kind."""
    if bucket.flusher is not None:
        yield from bucket.flusher.times.list_stats("disk_commit")
    yield from bucket.maintenance.pager_times.list_stats("expiry_pager")
    yield from Histogram.merge(bucket.stat_times.values()).list_stats("get_stats_cmd")
    for kind, times in bucket.command_times.list_all().items():
        yield from times.list_stats(kind.stat)


def _read_latencies(request: StatRequest) -> Stats:
    recent = request.bucket.command_times.list_recent(request.node.loop.time())
    return (line for kind, times in recent.items() for line in times.list_stats(kind.label))


def _read_stat_timings(bucket: ServedBucket) -> Stats:
    return (line for group, times in tuple(bucket.stat_times.items()) for line in times.list_stats(group or "all"))


def _read_kv_timings(bucket: ServedBucket) -> Stats:
    if bucket.flusher is not None and bucket.compactor is not None:
        yield from bucket.flusher.times.list_stats("rw_0:commit")
        yield from bucket.compactor.times.list_stats("rw_0:compact")


def _read_kv_store(request: StatRequest) -> Stats:
    """Return the log of the bucket as one store. kv_engine's argument is accepted and ignored."""
    bucket = request.bucket
    flusher, compactor = bucket.flusher, bucket.compactor
    stats: dict[str, object] = {"backend_type": "penstock" if bucket.store.log.durable else "memory"}
    if flusher is not None and compactor is not None:
        stats |= {"failure_set": flusher.failures, "failure_compaction": compactor.failures}
        stats |= {"numCommits": flusher.commits, "numCompactions": compactor.pieces}
    return ((f"rw_0:{name}", value) for name, value in stats.items())


def _read_warmup(bucket: ServedBucket) -> Stats:
    """Return the progress of loading the keys that the bucket had at its start. Values are not loaded.

    Yields:
        Name and value of each statistic.
    """
    if not bucket.store.log.durable:
        yield "ep_warmup", "disabled"
        return
    maintenance, state = bucket.maintenance, get_warmup_state(bucket)
    yield "ep_warmup", "enabled"
    yield "ep_warmup_state", "done" if maintenance.keys_loaded else "loading keys"
    yield "ep_warmup_thread", state
    yield "ep_warmup_value_count", 0
    if maintenance.keys_loaded:
        yield "ep_warmup_time", int(maintenance.load_seconds * _MICROSECONDS)


def _read_disk_info(request: StatRequest) -> Stats:
    """Return the bytes on disk.

    Raises:
        NotSupported: the bucket is in memory, or the files of single vbuckets are requested.
        InvalidArguments: another argument than `detail`.
    """
    bucket, data_dir = request.bucket, request.node.storage.data_dir
    if request.argument not in ("", "detail"):
        raise InvalidArguments(f"diskinfo: expected the argument detail, or none, found {request.argument[:20]!r}")
    if not bucket.store.log.durable or data_dir is None:
        raise NotSupported(f"bucket {bucket.store.name} is in memory: it has no files")
    if request.argument:
        raise NotSupported("vbuckets have no files of their own: all share those of the bucket")
    sizes = {
        "ep_db_data_size": bucket.store.collect_stats().live_bytes,
        "ep_db_file_size": count_file_bytes(data_dir / bucket.store.name),
    }
    return iter(sizes.items())


def _read_disk_failures(bucket: ServedBucket) -> Stats:
    flusher, compactor = bucket.flusher, bucket.compactor
    yield "ep_data_write_failed", sum(part.failures for part in (flusher, compactor) if part is not None)
    yield "ep_data_read_failed", 0


def _read_workload(bucket: ServedBucket) -> Stats:
    """Yield the threads: the event loop for all buckets, one that commits, one that compacts."""
    tasks = list(list_tasks(bucket))
    yield "ep_workload:num_readers", 0
    yield "ep_workload:num_writers", sum(task.kind == "Writer" for task in tasks)
    yield "ep_workload:num_auxio", sum(task.kind == "AuxIO" for task in tasks)
    yield "ep_workload:num_nonio", 1
    yield "ep_workload:num_shards", 1
    yield "ep_workload:ready_tasks", 0
    yield "ep_workload:num_sleepers", sum(not task.is_running for task in tasks)


GROUPS: dict[str, StatGroup] = {
    "disk-failures": make_bucket_group(_read_disk_failures, "how often the disk refused"),
    "diskinfo": StatGroup(_read_disk_info, "the bytes on disk", Argument.OPTIONAL, "detail"),
    "kvstore": StatGroup(_read_kv_store, "the log of the bucket", Argument.OPTIONAL, "anything"),
    "kvtimings": make_bucket_group(_read_kv_timings, "how long commits and compaction took, as histograms"),
    "latencies": StatGroup(_read_latencies, "how long commands of the last ten minutes took, by kind, as histograms"),
    "runtimes": make_bucket_group(_read_runtimes, "how long background tasks ran, as histograms"),
    "stat-timings": make_bucket_group(_read_stat_timings, "how long STAT took, by its group, as histograms"),
    "tasks": StatGroup(lambda request: _read_tasks(request, request.bucket), "the background tasks of the bucket"),
    "tasks-all": StatGroup(_read_all_tasks, "the same of all buckets that the user sees", privilege=Privilege.SETTINGS),
    "timings": make_bucket_group(
        _read_timings, "how long commands, commits, the expiry pager and STAT took, as histograms"
    ),
    "warmup": make_bucket_group(_read_warmup, "the loading of keys after the start"),
    "workload": make_bucket_group(_read_workload, "the threads that work for the bucket"),
}
