"""The groups of STAT about the disk, about what a bucket does in the background, and how long all that takes.

Names are those of ep-engine's cbstats. A node has these background tasks for a bucket: the flusher, which commits, the
compactor, the expiry pager, and the loading of keys when the bucket is opened. In memory there is no flusher.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import InvalidArguments, NotSupported
from penstock.node.auth import Privilege
from penstock.node.buckets.bucket_storage import file_bytes
from penstock.node.buckets.histogram import Histogram
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.stats.bucket_stats import warmup_state
from penstock.node.stats.stat_group import Argument, StatGroup, StatRequest, Stats, group_of_bucket

__all__ = ["GROUPS", "histograms"]

_NEVER = 2**63 - 1  # nanoseconds; cbstats shows "inf"
_NANOSECONDS = 1_000_000_000
_MICROSECONDS = 1_000_000


class _Task(NamedTuple):
    """A background task of a bucket.

    Attributes:
        name: of the task.
        kind: the pool that it would belong to in ep-engine: Writer, AuxIO, NonIO.
        times: of its runs.
        running: whether it runs now.
        next_run: when it runs next, by the event loop's clock; None if that is not decided.
        description: what it does.
    """

    name: str
    kind: str
    times: Histogram
    running: bool
    next_run: float | None
    description: str


def _tasks(bucket: ServedBucket) -> Iterator[_Task]:
    flusher, compactor, upkeep = bucket.flusher, bucket.compactor, bucket.upkeep
    if flusher is not None:
        yield _Task("flusher", "Writer", flusher.times, flusher.committing, None, "Writes changes to disk")
    if compactor is not None:
        yield _Task("compactor", "AuxIO", compactor.times, compactor.running, None, "Rewrites segments of the log")
    yield _Task("expiry_pager", "NonIO", upkeep.pager_times, False, upkeep.next_page, "Deletes expired documents")
    if not upkeep.keys_loaded:
        yield _Task("key_loader", "NonIO", upkeep.load_times, False, 0.0, "Loads the keys of documents")


def histograms(bucket: ServedBucket) -> Iterator[Histogram]:
    """Return the times of all background tasks."""
    return (task.times for task in _tasks(bucket))


def _tasks_of(request: StatRequest, bucket: ServedBucket) -> Stats:
    now, name = request.node.loop.time(), bucket.store.name
    rows = [_row(number, task, name, now) for number, task in enumerate(_tasks(bucket), 1)]
    yield f"ep_tasks:tasks:{name}", json.dumps(rows, separators=(",", ":"))
    yield f"ep_tasks:cur_time:{name}", int(now * _NANOSECONDS)


def _row(number: int, task: _Task, bucket: str, now: float) -> dict[str, object]:
    wakes = _NEVER if task.next_run is None else int(max(task.next_run, now) * _NANOSECONDS)
    return {
        "tid": number,
        "this": task.name,
        "bucket": bucket,
        "name": task.name,
        "description": task.description,
        "type": task.kind,
        "priority": 0,
        "state": "RUNNING" if task.running else "SNOOZED",
        "waketime_ns": wakes,
        "num_runs": task.times.count,
        "total_runtime_ns": int(task.times.total * _NANOSECONDS),
        "previous_runtime_ns": int(task.times.last * _NANOSECONDS),
        "last_starttime_ns": int(now * _NANOSECONDS) if task.running else 0,
    }


def _all_tasks(request: StatRequest) -> Stats:
    """Show the tasks of all buckets that the user sees."""
    user = request.session.login.acting
    buckets = [b for b in request.node.buckets.values() if user is not None and user.sees(b.store.name)]
    return (line for bucket in buckets for line in _tasks_of(request, bucket))


def _runtimes(bucket: ServedBucket) -> Stats:
    return (line for task in _tasks(bucket) for line in task.times.lines(task.name))


def _timings(bucket: ServedBucket) -> Stats:
    """Show how long work took; single commands are not timed."""
    if bucket.flusher is not None:
        yield from bucket.flusher.times.lines("disk_commit")
    yield from bucket.upkeep.pager_times.lines("expiry_pager")
    yield from Histogram.merged(bucket.stat_times.values()).lines("get_stats_cmd")


def _stat_timings(bucket: ServedBucket) -> Stats:
    return (line for group, times in tuple(bucket.stat_times.items()) for line in times.lines(group or "all"))


def _kv_timings(bucket: ServedBucket) -> Stats:
    if bucket.flusher is not None and bucket.compactor is not None:
        yield from bucket.flusher.times.lines("rw_0:commit")
        yield from bucket.compactor.times.lines("rw_0:compact")


def _kv_store(request: StatRequest) -> Stats:
    """Show the log of the bucket as one store. The argument, which kv_engine takes too, changes nothing."""
    bucket = request.bucket
    flusher, compactor = bucket.flusher, bucket.compactor
    stats: dict[str, object] = {"backend_type": "penstock" if bucket.store.log.durable else "memory"}
    if flusher is not None and compactor is not None:
        stats |= {"failure_set": flusher.failures, "failure_compaction": compactor.failures}
        stats |= {"numCommits": flusher.commits, "numCompactions": compactor.pieces}
    return ((f"rw_0:{name}", value) for name, value in stats.items())


def _warmup(bucket: ServedBucket) -> Stats:
    """Show how far the keys are loaded that were there when the bucket was opened. Values are not loaded at all."""
    if not bucket.store.log.durable:
        yield "ep_warmup", "disabled"
        return
    upkeep, state = bucket.upkeep, warmup_state(bucket)
    yield "ep_warmup", "enabled"
    yield "ep_warmup_state", "done" if upkeep.keys_loaded else "loading keys"
    yield "ep_warmup_thread", state
    yield "ep_warmup_value_count", 0
    if upkeep.keys_loaded:
        yield "ep_warmup_time", int(upkeep.load_seconds * _MICROSECONDS)


def _disk_info(request: StatRequest) -> Stats:
    """Raises NotSupported in memory and for the files of single vbuckets, InvalidArguments for another argument."""
    bucket, data_dir = request.bucket, request.node.storage.data_dir
    if request.argument not in ("", "detail"):
        raise InvalidArguments(f"diskinfo: expected detail behind it, or nothing, found {request.argument[:20]!r}")
    if not bucket.store.log.durable or data_dir is None:
        raise NotSupported(f"bucket {bucket.store.name} is in memory: it has no files")
    if request.argument:
        raise NotSupported("vbuckets have no files of their own: all share those of the bucket")
    sizes = {
        "ep_db_data_size": bucket.store.stats().live_bytes,
        "ep_db_file_size": file_bytes(data_dir / bucket.store.name),
    }
    return iter(sizes.items())


def _disk_failures(bucket: ServedBucket) -> Stats:
    flusher, compactor = bucket.flusher, bucket.compactor
    yield "ep_data_write_failed", sum(part.failures for part in (flusher, compactor) if part is not None)
    yield "ep_data_read_failed", 0


def _workload(bucket: ServedBucket) -> Stats:
    """Show the threads: the event loop for all buckets, one that commits, one that compacts."""
    tasks = list(_tasks(bucket))
    yield "ep_workload:num_readers", 0
    yield "ep_workload:num_writers", sum(task.kind == "Writer" for task in tasks)
    yield "ep_workload:num_auxio", sum(task.kind == "AuxIO" for task in tasks)
    yield "ep_workload:num_nonio", 1
    yield "ep_workload:num_shards", 1
    yield "ep_workload:ready_tasks", 0
    yield "ep_workload:num_sleepers", sum(not task.running for task in tasks)


GROUPS: dict[str, StatGroup] = {
    "disk-failures": group_of_bucket(_disk_failures, "how often the disk refused"),
    "diskinfo": StatGroup(_disk_info, "the bytes on disk", Argument.OPTIONAL, "detail"),
    "kvstore": StatGroup(_kv_store, "the log of the bucket", Argument.OPTIONAL, "anything"),
    "kvtimings": group_of_bucket(_kv_timings, "how long commits and compaction took, as histograms"),
    "runtimes": group_of_bucket(_runtimes, "how long background tasks ran, as histograms"),
    "stat-timings": group_of_bucket(_stat_timings, "how long STAT took, by its group, as histograms"),
    "tasks": StatGroup(lambda request: _tasks_of(request, request.bucket), "the background tasks of the bucket"),
    "tasks-all": StatGroup(_all_tasks, "the same of all buckets that the user sees", privilege=Privilege.SETTINGS),
    "timings": group_of_bucket(_timings, "how long commits, the expiry pager and STAT took, as histograms"),
    "warmup": group_of_bucket(_warmup, "the loading of keys after the start"),
    "workload": group_of_bucket(_workload, "the threads that work for the bucket"),
}
