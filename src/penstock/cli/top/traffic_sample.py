"""A sample of a bucket's statistics, and the rates between two samples."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct, ValidationError, convert

from penstock.client.bucket import Bucket
from penstock.client.connect.stat_numbers import find_number
from penstock.client.dashboard.dashboard_document import TimingRow
from penstock.client.dashboard.stat_rows import list_timings
from penstock.errors import KeyNotFound, RemoteProtocolError, UnsupportedServer
from penstock.wire.codec.constants import VbucketState
from penstock.wire.values.peer_json import read_peer_json

_COUNTERS = {
    "gets": ("cmd_get",),
    "sets": ("cmd_set",),
    "deletes": ("cmd_delete",),
    "sent_changes": ("ep_dcp_items_sent", "ep_upr_items_sent", "ep_tap_items_sent"),
    "sent_bytes": ("ep_dcp_total_bytes", "ep_upr_total_bytes", "ep_tap_total_bytes"),
}
"""Rate -> the statistics whose sum grows with it."""

_GAUGES = {
    "documents": "curr_items",
    "memory_bytes": "mem_used",
    "quota_bytes": "ep_max_size",
    "disk_bytes": "ep_db_file_size",
    "unpersisted": "ep_queue_size",
    "connections": "curr_connections",
}
"""Value -> its statistic, summed over all nodes."""


class ConnectionSample(Struct, kw_only=True):
    """A change-stream connection, as a node of this project reports it.

    Attributes:
        name, dialect, role, user, peer: as in `penstock streams list`.
        items_sent, bytes_sent: totals since the connection began.
        streams: number of its streams.
        remaining: changes that are left to send, at most.
        unsent: bytes in buffers of the node.
    """

    name: str
    dialect: str
    role: str
    user: str | None
    peer: str
    items_sent: int
    bytes_sent: int
    streams: int
    remaining: int
    unsent: int


class _StreamFields(Struct):
    items_remaining: int


class _ConnectionFields(Struct):
    name: str
    dialect: str
    role: str
    user: str | None
    peer: str
    items_sent: int
    bytes_sent: int
    bytes_unsent: int
    streams: list[_StreamFields]


@dataclass(frozen=True, slots=True)
class TrafficSample:
    """The statistics of a bucket at one moment, of all its nodes together.

    Attributes:
        at: monotonic seconds.
        version: the version of the first node.
        nodes: number of nodes.
        values: the keys of _GAUGES -> value; a statistic that the server does not have is left out.
        counts: the keys of _COUNTERS -> count.
        states: name of a vbucket state -> number of vbuckets.
        seqnos: vbucket -> high seqno; empty at a server without them.
        streams: the change-stream connections; None at a server that does not list them.
        commands: durations of commands of the last ten minutes; None at a server that does not report them.
    """

    at: float
    version: str
    nodes: int
    values: Mapping[str, int]
    counts: Mapping[str, int]
    states: Mapping[str, int]
    seqnos: Mapping[int, int]
    streams: Sequence[ConnectionSample] | None
    commands: Sequence[TimingRow] | None


@dataclass(frozen=True, slots=True)
class BucketRates:
    """The changes between two samples, for each second.

    Attributes:
        counts: as in the samples.
        vbuckets: vbucket -> new seqnos.
        streams: name of a connection -> sent changes and sent bytes.
    """

    counts: Mapping[str, float] = field(default_factory=dict)
    vbuckets: Mapping[int, float] = field(default_factory=dict)
    streams: Mapping[str, tuple[float, float]] = field(default_factory=dict)


async def read_sample(bucket: Bucket) -> TrafficSample:
    """Return the statistics of a bucket now. Raises the errors of `Bucket.stats`."""
    reported = await bucket.reports.node_stats()
    totals = {name: sum(_read_numbers(name, reported)) for stats in reported for name in stats}
    try:
        seqnos = await bucket.high_seqnos()
    except UnsupportedServer:
        seqnos = {}
    return TrafficSample(
        at=time.monotonic(),
        version=reported[0].get("ep_version") or reported[0].get("version", ""),
        nodes=len(reported),
        values={name: totals[stat] for name, stat in _GAUGES.items() if stat in totals},
        counts={name: sum(totals.get(stat, 0) for stat in stats) for name, stats in _COUNTERS.items()},
        states={state.name.lower(): totals.get(f"vb_{state.name.lower()}_num", 0) for state in VbucketState},
        seqnos=seqnos,
        streams=await _read_streams(bucket),
        commands=await _read_commands(bucket),
    )


def _read_numbers(name: str, reported: Sequence[Mapping[str, str]]) -> list[int]:
    return [number for stats in reported if (number := find_number(stats, name)) is not None]


async def _read_streams(bucket: Bucket) -> Sequence[ConnectionSample] | None:
    try:
        texts = [text for stats in await bucket.reports.node_stats("streams") for text in stats.values()]
        found = [convert(_parse_report(text), _ConnectionFields) for text in texts]
    except (KeyNotFound, RemoteProtocolError, ValidationError):
        return None  # no node of this project
    return [
        ConnectionSample(
            name=each.name,
            dialect=each.dialect,
            role=each.role,
            user=each.user,
            peer=each.peer,
            items_sent=each.items_sent,
            bytes_sent=each.bytes_sent,
            streams=len(each.streams),
            remaining=sum(stream.items_remaining for stream in each.streams),
            unsent=each.bytes_unsent,
        )
        for each in found
    ]


async def _read_commands(bucket: Bucket) -> Sequence[TimingRow] | None:
    try:
        return list_timings(await bucket.reports.node_stats("latencies")) or ()
    except (KeyNotFound, RemoteProtocolError):
        return None  # no node of this project


def _parse_report(text: str) -> dict[str, Any]:
    return read_peer_json(text.encode(), dict[str, Any], "statistic streams")


def compute_rates(before: TrafficSample, after: TrafficSample) -> BucketRates:
    """Return the rates between two samples. A count that has decreased, as after a restart, has the rate 0."""
    seconds = max(after.at - before.at, 1e-9)
    earlier = {each.name: each for each in before.streams or ()}

    def rate(old: int, new: int) -> float:
        return max(new - old, 0) / seconds

    return BucketRates(
        counts={name: rate(before.counts[name], count) for name, count in after.counts.items()},
        vbuckets={vb: rate(before.seqnos.get(vb, seqno), seqno) for vb, seqno in after.seqnos.items()},
        streams={
            each.name: (rate(old.items_sent, each.items_sent), rate(old.bytes_sent, each.bytes_sent))
            for each in after.streams or ()
            for old in (earlier.get(each.name, each),)
        },
    )
