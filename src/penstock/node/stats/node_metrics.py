"""The metrics of a node for Prometheus. Most of them are statistics of STAT with a name, a unit and labels.

No metric has a label for a vbucket, a key, a connection or a client. So the number of series depends on the number of
buckets alone: about 250 for each.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.node.buckets.endpoint_reports import EndpointLoad
from penstock.node.buckets.served_bucket import BucketEndpoint, ServedBucket
from penstock.node.session.node_services import NodeServices
from penstock.node.stats.bucket_stats import read_node_stats, read_own_stats
from penstock.node.stats.producer_stats import FAMILIES
from penstock.node.timing.histogram import Histogram
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status

_POWERS = range(4, 29, 2)
"""Bounds of histograms, as exponents of two of microseconds: to 268 s, each four times the one before."""

_MICROSECONDS = 1_000_000
_NUMBERS = {"true": 1.0, "false": 0.0}
_STATUS_NAMES = {status.value: status.name.lower() for status in Status}
_STATES = tuple(state.name.lower() for state in VbucketState)


def _read_number(value: object) -> float:
    text = str(value).lower()
    return _NUMBERS[text] if text in _NUMBERS else float(text)


@dataclass(frozen=True, slots=True)
class StatMetric:
    """A metric whose values are statistics of STAT.

    Attributes:
        name: the name after `penstock_node_`, with the unit, without `_total`.
        text: the meaning.
        stats: label value -> name of the statistic; one entry with the value "" for a metric without a label.
        label: the name of the label beside `bucket`; empty for none.
        is_counter: whether it only grows; otherwise it is a gauge.
        read: returns the value of a statistic.
    """

    name: str
    text: str
    stats: Mapping[str, str]
    label: str = ""
    is_counter: bool = False
    read: Callable[[object], float] = _read_number

    def make_family(self, labels: Sequence[str]) -> CounterMetricFamily | GaugeMetricFamily:
        """Return the metric without values; its labels are these and its own."""
        names = [*labels, *([self.label] if self.label else [])]
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        return kind(f"penstock_node_{self.name}", self.text, labels=names)

    def add_values(self, family: Metric, labels: Sequence[str], stats: Mapping[str, object]) -> None:
        """Add the values of some statistics. A statistic that is missing has no value."""
        name = f"{family.name}{'_total' if self.is_counter else ''}"
        names = [*(["bucket"] if labels else []), *([self.label] if self.label else [])]
        for value, stat in self.stats.items():
            if stat in stats:
                given = [*labels, *([value] if self.label else [])]
                family.add_sample(name, dict(zip(names, given, strict=True)), self.read(stats[stat]))


def _gauge(name: str, stat: str, text: str) -> StatMetric:
    return StatMetric(name, text, {"": stat})


def _counter(name: str, stat: str, text: str) -> StatMetric:
    return StatMetric(name, text, {"": stat}, is_counter=True)


def _by_family(name: str, stat: str, text: str, *, is_counter: bool = False, without: str = "") -> StatMetric:
    """Return a metric with the label `dialect`, of a total of change-stream connections."""
    stats = {family: f"ep_{family}_{stat}" for family in FAMILIES if family != without}
    return StatMetric(name, text, stats, "dialect", is_counter)


NODE_METRICS = (
    _gauge("uptime_seconds", "uptime", "Time since the start of the node."),
    StatMetric(
        "cpu_seconds",
        "Processor time of the node's process.",
        {"user": "rusage_user", "system": "rusage_system"},
        "mode",
        is_counter=True,
    ),
    _gauge("open_connections", "curr_connections", "Open key-value connections."),
    _counter("accepted_connections", "total_connections", "Key-value connections that were accepted."),
    _gauge("waiting_requests", "ep_requests_waiting", "Received requests that wait to be served."),
    _gauge("unsent_bytes", "ep_bytes_unsent", "Bytes that clients have not taken yet."),
    _gauge("unopened_buckets", "buckets_unopened", "Buckets that the node could not open, because of damage."),
    _counter("logins", "auth_cmds", "Logins whose password was checked."),
    _counter("refused_logins", "auth_errors", "Logins with a wrong user name or password."),
    StatMetric(
        "refused_requests",
        "Requests that were answered with an error, by status.",
        {name: f"refused_{name}" for name in _STATUS_NAMES.values()},
        "status",
        is_counter=True,
    ),
    _gauge("disk_size_bytes", "disk_size", "Size of the file system of the data directory."),
    _gauge("disk_free_bytes", "disk_free", "Free bytes of the file system of the data directory."),
)
"""Metrics of the node as a whole."""

BUCKET_METRICS = (
    StatMetric("vbuckets", "Vbuckets.", {state: f"vb_{state}_num" for state in _STATES}, "state"),
    StatMetric("documents", "Documents.", {state: f"vb_{state}_curr_items" for state in _STATES}, "state"),
    _counter("expired_documents", "ep_expired", "Documents that have expired."),
    StatMetric(
        "vbucket_events",
        "Vbuckets whose state was set, that were deleted, flushed, or handed over to another node by a move.",
        {
            "state_changed": "ep_vb_state_changes",
            "deleted": "ep_vb_deletions",
            "flushed": "ep_vb_flushes",
            "handed_over": "ep_vb_handovers",
        },
        "event",
        is_counter=True,
    ),
    StatMetric(
        "operations",
        "Requests for documents, by kind.",
        {"get": "cmd_get", "set": "cmd_set", "delete": "cmd_delete"},
        "operation",
        is_counter=True,
    ),
    _counter("get_misses", "get_misses", "Reads of documents that do not exist."),
    _gauge("pending_durable_writes", "ep_pending_durable_writes", "Durable writes that are not decided yet."),
    _gauge("memory_used_bytes", "mem_used", "Memory that the data occupies."),
    _gauge("memory_quota_bytes", "ep_max_size", "Memory quota; 0 for none."),
    _gauge("index_bytes", "ep_index_bytes", "Memory of keys and indexes."),
    StatMetric(
        "quota_refusals",
        "Changes that were refused above the quota: those of `temporary` can be tried again.",
        {"temporary": "ep_tmp_oom_errors", "final": "ep_oom_errors"},
        "kind",
        is_counter=True,
    ),
    _counter("auto_deleted_documents", "vb_active_auto_delete_count", "Documents that were deleted to free memory."),
    StatMetric(
        "log_bytes",
        "Bytes of the log of changes; compaction drops dead ones.",
        {"live": "ep_log_live_bytes", "dead": "ep_log_dead_bytes"},
        "kind",
    ),
    _gauge("log_segments", "ep_log_segments", "Segments of the log of changes."),
    _gauge("disk_bytes", "ep_db_file_size", "Bytes of the files on disk."),
    _gauge("unpersisted_changes", "ep_queue_size", "Changes that are not on disk."),
    _counter("persisted_changes", "ep_total_persisted", "Changes that were written to disk."),
    _counter("commits", "ep_commit_num", "Commits to disk."),
    _counter("failed_commits", "ep_item_commit_failed", "Commits that the disk refused."),
    _gauge("last_commit_timestamp_seconds", "ep_commit_last", "Time of the newest commit, since the epoch."),
    _gauge("persistence_waiters", "ep_persistence_waiters", "Requests that wait for the disk."),
    _counter("compactions", "ep_compactions", "Pieces of the log that were compacted."),
    _counter("failed_compactions", "ep_compaction_failed", "Compactions that the disk refused."),
    StatMetric(
        "storage_faulty",
        "1 while the bucket refuses changes because of its disk, else 0.",
        {"": "ep_storage_fault"},
        read=lambda reason: float(bool(reason)),
    ),
    _counter("expiry_pager_runs", "ep_num_expiry_pager_runs", "Finished runs of the expiry pager."),
    _gauge("keys_loaded", "ep_keys_loaded", "1 if the keys of the last run are loaded, else 0."),
    _by_family("stream_producers", "producer_count", "Change-stream connections to which the node sends."),
    _by_family("stream_consumers", "consumer_count", "Change-stream connections from which the node receives."),
    _by_family("streams", "num_running_streams", "Open streams to consumers."),
    _by_family("ready_streams", "streams_ready", "Streams that have something to send now."),
    _by_family("blocked_producers", "blocked_count", "Connections whose consumer's window is full.", without="tap"),
    _by_family("unacknowledged_bytes", "unacked_bytes", "Bytes that consumers have not acknowledged.", without="tap"),
    _by_family("remaining_changes", "items_remaining", "Changes that are left to send, at most: the lag of consumers."),
    _by_family("largest_remaining_changes", "max_items_remaining", "The same of the connection that lags most."),
    _by_family("streams_opened", "streams_opened", "Streams that were opened.", is_counter=True),
    _by_family(
        "stream_rollbacks",
        "rollbacks",
        "Stream requests that were answered with ROLLBACK.",
        is_counter=True,
        without="tap",
    ),
    _by_family("sent_changes", "items_sent", "Changes that were sent.", is_counter=True),
    _by_family("sent_bytes", "total_bytes", "Bytes of all messages of streams.", is_counter=True),
)
"""Metrics of each bucket."""

MIRROR_METRICS = (
    _gauge("mirror_connected", "connected", "1 if the streams from the followed bucket are open, else 0."),
    _counter("mirror_connections", "connections", "Connections to the followed bucket."),
    _gauge("mirror_vbuckets", "vbuckets", "Vbuckets that follow another bucket."),
    _counter("mirror_changes", "changes", "Changes that were received from the followed bucket."),
    _counter("mirror_rollbacks", "rollbacks", "Vbuckets that were rolled back, as the followed bucket was."),
    _gauge("mirror_queued_bytes", "queued_bytes", "Bytes that were received, and are not stored yet."),
)
"""Metrics of each bucket that mirrors another node's."""


class HistogramMetric(NamedTuple):
    """A metric of durations of a bucket.

    Attributes:
        text: the meaning.
        find: returns the histograms by value of the label; by "" for a metric without a label.
        label: the name of the label beside `bucket`; empty for none.
    """

    text: str
    find: Callable[[ServedBucket], Mapping[str, Histogram]]
    label: str = ""


HISTOGRAMS: dict[str, HistogramMetric] = {
    "command_duration_seconds": HistogramMetric(
        "Durations of requests, from the read that received them to the write of their replies.",
        lambda bucket: {kind.label: times for kind, times in bucket.command_times.list_all().items()},
        "command",
    ),
    "commit_duration_seconds": HistogramMetric(
        "Durations of commits to disk.",
        lambda bucket: {"": bucket.flusher.times} if bucket.flusher is not None else {},
    ),
    "compaction_duration_seconds": HistogramMetric(
        "Durations of compactions of a piece of the log.",
        lambda bucket: {"": bucket.compactor.times} if bucket.compactor is not None else {},
    ),
    "expiry_pager_duration_seconds": HistogramMetric(
        "Durations of slices of the expiry pager, for which the event loop is held.",
        lambda bucket: {"": bucket.maintenance.pager_times},
    ),
    "key_load_duration_seconds": HistogramMetric(
        "Durations of slices in which keys are loaded after a start, for which the event loop is held.",
        lambda bucket: {"": bucket.maintenance.load_times},
    ),
    "stat_duration_seconds": HistogramMetric(
        "Durations of STAT, all groups together.",
        lambda bucket: {"": Histogram.merge(tuple(bucket.stat_times.values()))},
    ),
}
"""Name -> metric of a bucket."""


@dataclass(slots=True)
class NodeMetrics(Collector):
    """The metrics of a node at one moment. They are filled on the event loop, and can be written on another thread.

    Attributes:
        node_families: families of the node as a whole.
        bucket_families: families of buckets, each filled by `add_bucket`.
    """

    node_families: list[Metric] = field(default_factory=lambda: [metric.make_family(()) for metric in NODE_METRICS])
    bucket_families: list[Metric] = field(default_factory=lambda: [*_make_bucket_families()])

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        yield from self.node_families
        yield from self.bucket_families

    def add_node(self, node: NodeServices) -> None:
        """Add the values of the node as a whole."""
        stats = dict(read_node_stats(node)) | dict(_read_more(node))
        for metric, family in zip(NODE_METRICS, self.node_families, strict=True):
            metric.add_values(family, (), stats)

    def add_bucket(
        self, node: NodeServices, bucket: ServedBucket, measured: Mapping[BucketEndpoint, EndpointLoad]
    ) -> None:
        """Add the values of a bucket, which takes about 2 ms with 1,024 vbuckets.

        Args:
            node: the node.
            bucket: the bucket.
            measured: the loads of its change-stream connections, each of which takes as long with as many streams.
        """
        labels, families = (bucket.store.name,), iter(self.bucket_families)
        stats = dict(read_own_stats(node, bucket, measured))
        mirrored = takewhile(lambda each: not each[0].startswith("vb_"), bucket.bridge.stats() if bucket.bridge else ())
        for metrics, found in ((BUCKET_METRICS, stats), (MIRROR_METRICS, dict(mirrored))):
            for metric in metrics:
                metric.add_values(next(families), labels, found)
        for histograms in HISTOGRAMS.values():
            family = next(families)
            assert isinstance(family, HistogramMetricFamily)
            for value, histogram in histograms.find(bucket).items():
                _add_histogram(family, (*labels, value) if histograms.label else labels, histogram)


def _make_bucket_families() -> Iterator[Metric]:
    for metric in (*BUCKET_METRICS, *MIRROR_METRICS):
        yield metric.make_family(("bucket",))
    for name, histogram in HISTOGRAMS.items():
        labels = ["bucket", histogram.label] if histogram.label else ["bucket"]
        yield HistogramMetricFamily(f"penstock_node_{name}", histogram.text, labels=labels)


def _add_histogram(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    total, counts = histogram.total, histogram.count_below(_POWERS)
    bounds = [repr((1 << power) / _MICROSECONDS) for power in _POWERS]
    buckets: list[tuple[str, float]] = list(zip(bounds, counts, strict=True))
    family.add_metric(labels, [*buckets, ("+Inf", histogram.count)], total)


def _read_more(node: NodeServices) -> Iterator[tuple[str, object]]:
    """Yield statistics of a node that STAT does not have, or has in a group of their own."""
    for status, count in tuple(node.connections.refusals.items()):
        yield f"refused_{_STATUS_NAMES.get(status, status)}", count
    if node.storage.data_dir is not None:
        usage = shutil.disk_usage(node.storage.data_dir)
        yield from (("disk_size", usage.total), ("disk_free", usage.free))
