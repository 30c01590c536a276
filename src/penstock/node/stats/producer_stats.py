"""STAT of change-stream connections: totals, each connection, and each as JSON.

Names are those of ep-engine. The values come from `StreamEndpoint.load` and `report`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from penstock.errors import InvalidArguments
from penstock.node.buckets.endpoint_reports import EndpointLoad, EndpointReport, StreamReport, StreamRole
from penstock.node.buckets.served_bucket import BucketEndpoint, ServedBucket
from penstock.node.stats.stat_group import Argument, StatGroup, StatRequest, Stats, format_value, parse_vbucket
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect

FAMILIES: dict[str, tuple[Dialect, ...]] = {
    "dcp": (Dialect.DCP,),
    "upr": (Dialect.UPR, Dialect.UPR_DRAFT),
    "tap": (Dialect.TAP,),
}
"""Group of STAT -> the dialects that it counts."""

_LONGEST_SEPARATOR = 16


def read_totals(bucket: ServedBucket, measured: Mapping[BucketEndpoint, EndpointLoad] | None = None) -> Stats:
    """Yield the totals of the bucket's producers, sent and still to send. The latter are 0 on an idle node.

    Args:
        bucket: the bucket.
        measured: the loads of connections that were measured just now; a measurement visits all streams.
    """
    known = measured or {}
    for family, dialects in FAMILIES.items():
        endpoints = [endpoint for endpoint in bucket.endpoints.values() if endpoint.dialect in dialects]
        loads = [known.get(endpoint) or endpoint.load() for endpoint in endpoints]
        sent = [bucket.sent_counts[dialect] for dialect in dialects]
        consumers = sum(endpoint.role is StreamRole.CONSUMER for endpoint in endpoints)
        yield f"ep_{family}_count", len(endpoints)
        yield f"ep_{family}_producer_count", len(endpoints) - consumers
        yield f"ep_{family}_consumer_count", consumers
        yield f"ep_{family}_dead_conn_count", 0
        yield f"ep_{family}_num_running_streams", sum(load.streams for load in loads)
        yield f"ep_{family}_streams_opened", sum(each.streams_opened for each in sent)
        yield f"ep_{family}_rollbacks", sum(each.rollbacks for each in sent)
        yield f"ep_{family}_blocked_count", sum(load.is_blocked for load in loads)
        yield f"ep_{family}_items_sent", sum(each.items for each in sent)
        yield f"ep_{family}_total_bytes", sum(each.nbytes for each in sent)
        yield f"ep_{family}_turns", sum(load.turns for load in loads)
        yield f"ep_{family}_streams_ready", sum(load.ready for load in loads)
        yield f"ep_{family}_items_remaining", sum(load.remaining for load in loads)
        yield f"ep_{family}_total_backlog_size", sum(load.remaining for load in loads)
        yield f"ep_{family}_max_items_remaining", max((load.remaining for load in loads), default=0)
        yield f"ep_{family}_unacked_bytes", sum(load.unacked for load in loads)


def _list_reports(bucket: ServedBucket, family: str, options: Mapping[str, Any] | None = None) -> list[EndpointReport]:
    endpoints = [endpoint for endpoint in bucket.endpoints.values() if endpoint.dialect in FAMILIES[family]]
    return [endpoint.report() for endpoint in endpoints if _is_selected(endpoint, options or {})]


def _is_selected(endpoint: BucketEndpoint, options: Mapping[str, Any]) -> bool:
    """Return whether the filter of the options, a user and a port, selects a connection."""
    selection = options.get("filter")
    if not isinstance(selection, dict):
        return True
    return selection.get("user") in (None, endpoint.user) and selection.get("port") in (None, endpoint.port)


def _read_producers(request: StatRequest) -> Stats:
    """Return every connection of a family, then the totals, then the streams of the connections.

    The option `stream_format` chooses the form of the streams: "json" for one value each, "skip" for none; others are
    ignored. The option `filter` selects producers: `{"filter": {"user": NAME, "port": NUMBER}}`.
    Source: kv_engine ep_engine.cc, DcpStatsOptions.
    """
    family, bucket = request.name, request.bucket
    return _list_producer_stats(
        bucket, family, _list_reports(bucket, family, request.options), request.options.get("stream_format")
    )


def _list_producer_stats(
    bucket: ServedBucket, family: str, reports: list[EndpointReport], stream_format: object
) -> Stats:
    for report in reports:
        for name, value in _build_endpoint_stats(report).items():
            yield f"eq_{family}q:{report.name}:{name}", format_value(value)
    yield from ((name, value) for name, value in read_totals(bucket) if name.startswith(f"ep_{family}_"))
    if stream_format == "skip":
        return
    for report in reports:
        for stream in report.streams:
            prefix, stats = (
                f"eq_{family}q:{report.name}:stream_{stream.vbucket}",
                _build_stream_stats(stream, report.role),
            )
            if stream_format == "json":
                yield prefix, json.dumps(stats, separators=(",", ":"))
            else:
                yield from ((f"{prefix}_{name}", format_value(value)) for name, value in stats.items())


def _build_stream_stats(stream: StreamReport, role: StreamRole) -> dict[str, Any]:
    stats: dict[str, Any] = {
        "opaque": stream.opaque,
        "start_seqno": stream.start_seqno,
        "end_seqno": stream.end_seqno,
        "state": stream.state,
        **(_build_sent_stats(stream) if role is StreamRole.PRODUCER else {}),
        **({"filters": ",".join(stream.filters)} if stream.filters else {}),
        **stream.details,
    }
    return {name: value for name, value in stats.items() if value is not None}


def _build_endpoint_stats(report: EndpointReport) -> dict[str, Any]:
    return {
        "type": report.role,
        "protocol": report.dialect,
        "label": report.label,
        "peer": report.peer,
        **({"agent": report.agent} if report.agent else {}),
        **({"user": report.user} if report.user else {}),
        "created": int(report.created),
        "connected": True,
        "num_streams": len(report.streams),
        **(_build_sent_stats(report) if report.role is StreamRole.PRODUCER else {}),
        "bytes_unsent": report.bytes_unsent,
        **report.details,
    }


def _build_sent_stats(report: EndpointReport | StreamReport) -> dict[str, Any]:
    is_stream = isinstance(report, StreamReport)
    return {
        "items_sent": report.items_sent,
        "bytes_sent" if is_stream else "total_bytes_sent": report.bytes_sent,
        "items_remaining": report.items_remaining,
    }


def _sum_producers(request: StatRequest) -> Stats:
    """Return sums over the connections of a family whose names have the same prefix, up to the separator."""
    separator, family = request.argument, request.name.removesuffix("agg")
    if len(separator) > _LONGEST_SEPARATOR:
        raise InvalidArguments(f"{request.name}: separator of {len(separator)} characters, limit {_LONGEST_SEPARATOR}")
    sums: dict[str, Counter[str]] = {}
    for report in _list_reports(request.bucket, family):
        numbers = {
            "count": 1,
            "producer_count": 1,
            "items_sent": report.items_sent,
            "items_remaining": report.items_remaining,
            "total_bytes": report.bytes_sent,
            "total_backlog_size": report.items_remaining,
        }
        first, found, _ = report.name.partition(separator or ":")
        for prefix in (":total", *([first] if found else [])):
            sums.setdefault(prefix, Counter()).update(numbers)
    return ((f"{prefix}:{name}", number) for prefix, added in sums.items() for name, number in added.items())


def _read_json(request: StatRequest) -> Stats:
    """Return one JSON value for each connection."""
    reports = [endpoint.report() for endpoint in request.bucket.endpoints.values()]
    return ((f"{r.dialect}:{r.name}", json.dumps(r.to_dict(), separators=(",", ":"))) for r in reports)


def _read_takeover(request: StatRequest) -> Stats:
    """Estimate the changes of a vbucket that are left to send to one consumer.

    Source: kv_engine ep_engine.cc, doDcpVbTakeoverStats, and active_stream.cc, addTakeoverStats.

    Returns:
        The statistics.
    """
    number, _, name = request.argument.partition(" ")
    bucket, family = request.bucket, request.name.removesuffix("-vbtakeover")
    vbucket = bucket.store.find_existing(parse_vbucket(request.name, number))
    reports = [report for report in _list_reports(bucket, family) if report.name == name]
    streams = [stream for report in reports for stream in report.streams if stream.vbucket == vbucket.id]
    return iter(
        _build_takeover_stats(vbucket, f"eq_{family}q:{name}", bool(reports), streams[0] if streams else None).items()
    )


def _build_takeover_stats(
    vbucket: Vbucket, name: str, is_connected: bool, stream: StreamReport | None
) -> dict[str, object]:
    deletes = vbucket.changes.keys.count - vbucket.changes.items
    amounts = {"on_disk_deletes": deletes, "vb_items": vbucket.changes.items}
    if stream is not None:
        left, backfill = stream.items_remaining, stream.backfill_remaining
        return {
            "name": name,
            "status": "backfilling" if backfill else "in-memory",
            "estimate": left,
            "backfillRemaining": backfill,
            "chk_items": left - backfill,
            **amounts,
        }
    if is_connected:
        return {"status": "stream_does_not_exist", "estimate": 0, "backfillRemaining": 0}
    return {
        "status": "connection_does_not_exist",
        **amounts,
        "chk_items": 0,
        "estimate": vbucket.changes.items + deletes,
    }


def _make_groups(family: str) -> dict[str, StatGroup]:
    name, optional = family.upper(), Argument.OPTIONAL
    return {
        family: StatGroup(_read_producers, f"the {name} connections with their streams, and totals"),
        f"{family}agg": StatGroup(_sum_producers, f"the {name} producers, added up by names", optional, "SEPARATOR"),
        f"{family}-vbtakeover": StatGroup(
            _read_takeover, f"the changes left to send to one {name} consumer", Argument.REQUIRED, "VBUCKET NAME"
        ),
    }


GROUPS: dict[str, StatGroup] = {
    **_make_groups("dcp"),
    **_make_groups("upr"),
    **_make_groups("tap"),
    "streams": StatGroup(_read_json, "every change-stream connection as one JSON value"),
}
