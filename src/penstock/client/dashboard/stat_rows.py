"""Rows of the dashboard from the standard groups of statistics: vbuckets, connections, collections, timings.

kv_engine documents the groups in docs/stats.org. A name that is missing makes its value None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.client.connect.stat_numbers import find_decimal, find_number
from penstock.client.dashboard.dashboard_document import (
    CollectionRow,
    ConnectionRow,
    TimingRow,
    VbucketRow,
    VbucketStreamRow,
)
from penstock.wire.codec.constants import MAX_SEQNO, VbucketState
from penstock.wire.codec.flags import OpenFlag

Stats = Mapping[str, str]

_CONNECTION = re.compile(r"eq_(dcp|upr|tap)q:(.+):([^:]+)", re.DOTALL)
_STREAM = re.compile(r"stream_(\d{1,5})_([a-z_]+)", re.ASCII)
_COLLECTION = re.compile(r"(0x[0-9a-f]{1,8}:0x[0-9a-f]{1,8}):(name|scope_name|items)", re.ASCII)
_TIMING = re.compile(r"(.{1,100})_(\d{1,20}),(\d{1,20})", re.ASCII)

_STATES: Final = {state.name.lower(): int(state) for state in VbucketState}
_PERSISTED = ("last_persisted_seqno", "persisted_seqno", "persistence_seqno")
_QUANTILES = (0.5, 0.95, 0.99)
_MICROSECONDS = 1_000_000


class ConnectionStats(NamedTuple):
    """The statistics of one change-stream connection.

    Attributes:
        dialect: the protocol that its names begin with.
        name: its name.
        stats: its own statistics.
        streams: vbucket -> statistics of its stream.
    """

    dialect: str
    name: str
    stats: dict[str, str]
    streams: dict[int, dict[str, str]]

    def count_remaining(self, vbucket: int, high_seqno: int | None) -> int | None:
        """Return the changes that are left to send to a stream, at most.

        Args:
            vbucket: that of the stream.
            high_seqno: the vbucket's newest seqno.
        """
        stream = self.streams[vbucket]
        found, sent = find_number(stream, "items_remaining"), find_number(stream, "last_sent_seqno")
        if found is not None or high_seqno is None or sent is None:
            return found
        return max(0, high_seqno - sent)


def read_connections(stats: Stats) -> list[ConnectionStats]:
    """Return the connections in the groups `dcp` and `tap`: `eq_dcpq:NAME:STATISTIC`, where NAME may have colons."""
    found: dict[tuple[str, str], ConnectionStats] = {}
    for name, text in stats.items():
        if (parts := _CONNECTION.fullmatch(name)) is None:
            continue
        dialect, connection, statistic = parts.groups()
        known = found.setdefault((dialect, connection), ConnectionStats(dialect, connection, {}, {}))
        if stream := _STREAM.fullmatch(statistic):
            known.streams.setdefault(int(stream[1]), {})[stream[2]] = text
        else:
            known.stats[statistic] = text
    return list(found.values())


def make_connection_row(each: ConnectionStats, remaining: int | None, lag_seconds: float | None) -> ConnectionRow:
    """Return the row of a connection.

    Args:
        each: its statistics.
        remaining: changes that are left to send to its streams.
        lag_seconds: seconds since its consumer had all changes.
    """
    stats = each.stats
    streams = find_number(stats, "num_streams")
    flags, has_noop, has_window = find_number(stats, "flags"), stats.get("noop_enabled"), stats.get("flow_control")
    role = "consumer" if stats.get("type") in ("consumer", "notifier-consumer") else stats.get("type", "producer")
    return ConnectionRow(
        name=each.name,
        label=stats.get("label", each.name),
        dialect=stats.get("protocol", each.dialect),
        role=role,
        user=stats.get("user"),
        peer=stats.get("peer"),
        agent=stats.get("agent"),
        created=find_decimal(stats, "created"),
        vbuckets=len(each.streams) or streams,
        streams=len(each.streams) if streams is None else streams,
        flags=name_open_flags(flags or 0) if each.dialect == "dcp" else [],
        items_sent=find_number(stats, "items_sent"),
        bytes_sent=find_number(stats, "total_bytes_sent"),
        bytes_unsent=find_number(stats, "bytes_unsent"),
        bytes_acked=find_number(stats, "total_acked_bytes"),
        unacked=find_number(stats, "unacked_bytes"),
        window=0 if has_window == "disabled" or each.dialect == "tap" else find_number(stats, "max_buffer_bytes"),
        noop_interval=0.0 if has_noop == "false" or each.dialect == "tap" else find_decimal(stats, "noop_tx_interval"),
        noop_answered=find_decimal(stats, "noop_answered") or None,
        lag_seqnos=remaining,
        lag_seconds=lag_seconds,
        phase=_find_phase(each, role, remaining),
    )


def _find_phase(each: ConnectionStats, role: str, remaining: int | None) -> str:
    if role == "consumer":
        return "receiving"
    states = [stream.get("state", "") for stream in each.streams.values()]
    if not states:
        return "no streams" if each.stats.get("num_streams") == "0" else "unknown"
    if any(state.startswith("takeover") for state in states) or any(
        "takeover_state" in one for one in each.streams.values()
    ):
        return "takeover"
    if any(state.startswith("backfill") for state in states):
        return "backfill"
    return "unknown" if remaining is None else "catching up" if remaining else "in step"


def make_vbucket_stream_row(each: ConnectionStats, vbucket: int, high_seqno: int | None) -> VbucketStreamRow:
    """Return the stream of a vbucket.

    Args:
        each: the connection.
        vbucket: the vbucket.
        high_seqno: its newest seqno.
    """
    stream = each.streams[vbucket]
    end = find_number(stream, "end_seqno")
    return VbucketStreamRow(
        consumer=each.name,
        label=each.stats.get("label", each.name),
        dialect=each.stats.get("protocol", each.dialect),
        role=each.stats.get("type", "producer"),
        state=stream.get("state"),
        start_seqno=find_number(stream, "start_seqno"),
        end_seqno=None if end is None or end >= MAX_SEQNO else end,
        vbuuid=stream.get("vb_uuid"),
        snap_start=find_number(stream, "snap_start_seqno"),
        snap_end=find_number(stream, "snap_end_seqno"),
        seqno=find_number(stream, "last_sent_snap_end_seqno"),
        items_sent=find_number(stream, "items_sent"),
        bytes_sent=find_number(stream, "bytes_sent"),
        items_remaining=each.count_remaining(vbucket, high_seqno),
    )


def make_vbucket_row(
    vbucket: int, stats: Stats, connections: Sequence[ConnectionStats] | None, *, is_owned: bool
) -> VbucketRow:
    """Return the row of a vbucket.

    Args:
        vbucket: the vbucket.
        stats: the groups vbucket, vbucket-details and vbucket-seqno of its node, as far as the node has them.
        connections: the connections of its node; None: not known.
        is_owned: whether the cluster map has a node for it.
    """
    own = f"vb_{vbucket}"
    high = find_number(stats, f"{own}:high_seqno")
    persisted = [number for name in _PERSISTED if (number := find_number(stats, f"{own}:{name}")) is not None]
    remaining: int | None = None
    count: int | None = None
    if connections is not None:
        readers = [each for each in connections if vbucket in each.streams]
        left = [each.count_remaining(vbucket, high) for each in readers]
        known = [number for number in left if number is not None]
        remaining = max(known, default=0) if len(known) == len(left) else None
        count = len(readers)
    return (
        # A node that reports no states has the vbuckets that the map gives to it.
        _STATES.get(stats.get(own, ""), int(VbucketState.ACTIVE) if is_owned else 0),
        high,
        persisted[0] if persisted else None,
        find_number(stats, f"{own}:num_items"),
        remaining,
        count,
    )


def list_collections(reported: Iterable[Stats]) -> list[CollectionRow] | None:
    """Return the collections with the documents of all nodes together; None if no node has the group.

    Args:
        reported: the group `collections` of each node.
    """
    found: dict[str, CollectionRow] = {}
    for stats in reported:
        names: dict[str, dict[str, str]] = {}
        for name, text in stats.items():
            if parts := _COLLECTION.fullmatch(name):
                names.setdefault(parts[1], {})[parts[2]] = text
        for key, fields in names.items():
            row = found.setdefault(key, CollectionRow(fields.get("scope_name", "?"), fields.get("name", "?"), 0))
            items = find_number(fields, "items")
            row.items = None if items is None or row.items is None else row.items + items
    return list(found.values()) or None


def list_timings(reported: Iterable[Stats]) -> list[TimingRow] | None:
    """Return the durations of all nodes together; None if no node has the group.

    Args:
        reported: the group `timings` or `latencies` of each node: `NAME_LOW,HIGH`, bounds in microseconds.
    """
    counts: dict[str, dict[int, int]] = {}
    for stats in reported:
        for name in stats:
            if (parts := _TIMING.fullmatch(name)) and (count := find_number(stats, name)):
                bounds = counts.setdefault(parts[1], {})
                bounds[int(parts[3])] = bounds.get(int(parts[3]), 0) + count
    rows = [
        TimingRow(name, sum(bounds.values()), None, [_find_quantile(bounds, part) for part in _QUANTILES])
        for name, bounds in counts.items()
    ]
    return rows or None


def _find_quantile(bounds: Mapping[int, int], part: float) -> float:
    """Return an upper bound of the duration that a part of all durations does not exceed, in seconds."""
    wanted = part * sum(bounds.values())
    for bound, count in sorted(bounds.items()):
        wanted -= count
        if wanted <= 0:
            return bound / _MICROSECONDS
    return max(bounds) / _MICROSECONDS


def name_open_flags(flags: int) -> list[str]:
    """Return the names of DCP OPEN's flags, without PRODUCER, which all consumers send."""
    known = [flag for flag in OpenFlag if flag & flags and flag is not OpenFlag.PRODUCER]
    rest = flags & ~sum(OpenFlag)
    return [*((flag.name or "").lower() for flag in known), *([f"0x{rest:x}"] if rest else [])]
