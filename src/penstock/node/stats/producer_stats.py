"""What STAT says of producers: their totals, each of them, and each in one value for programs.

Names are those of ep-engine. What is counted comes from `ChangeProducer.load` and `report`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from penstock.errors import InvalidArguments
from penstock.node.buckets.producer_reports import ProducerReport, StreamReport
from penstock.node.buckets.served_bucket import BucketProducer, ServedBucket
from penstock.node.stats.stat_group import Argument, StatGroup, StatRequest, Stats, parse_vbucket, shown
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect

__all__ = ["GROUPS", "totals"]

FAMILIES: dict[str, tuple[Dialect, ...]] = {
    "dcp": (Dialect.DCP,),
    "upr": (Dialect.UPR, Dialect.UPR_DRAFT),
    "tap": (Dialect.TAP,),
}
"""The groups of dialects that are counted together."""

_LONGEST_SEPARATOR = 16


def totals(bucket: ServedBucket) -> Stats:
    """What the producers of the bucket have done and have left to do: the latter is 0 on an idle system."""
    for family, dialects in FAMILIES.items():
        loads = [p.load() for p in bucket.producers.values() if p.dialect in dialects]
        sent = [bucket.sent[dialect] for dialect in dialects]
        yield f"ep_{family}_count", len(loads)
        yield f"ep_{family}_producer_count", len(loads)
        yield f"ep_{family}_consumer_count", 0
        yield f"ep_{family}_dead_conn_count", 0
        yield f"ep_{family}_num_running_streams", sum(load.streams for load in loads)
        yield f"ep_{family}_streams_opened", sum(each.streams_opened for each in sent)
        yield f"ep_{family}_items_sent", sum(each.items for each in sent)
        yield f"ep_{family}_total_bytes", sum(each.nbytes for each in sent)
        yield f"ep_{family}_turns", sum(load.turns for load in loads)
        yield f"ep_{family}_streams_ready", sum(load.ready for load in loads)
        yield f"ep_{family}_items_remaining", sum(load.remaining for load in loads)
        yield f"ep_{family}_total_backlog_size", sum(load.remaining for load in loads)
        yield f"ep_{family}_unacked_bytes", sum(load.unacked for load in loads)


def _reports(bucket: ServedBucket, family: str, options: Mapping[str, Any] | None = None) -> list[ProducerReport]:
    producers = [p for p in bucket.producers.values() if p.dialect in FAMILIES[family]]
    return [producer.report() for producer in producers if _is_wanted(producer, options or {})]


def _is_wanted(producer: BucketProducer, options: Mapping[str, Any]) -> bool:
    """Tell whether the filter of the options, a user and a port, lets a producer through."""
    wanted = options.get("filter")
    if not isinstance(wanted, dict):
        return True
    return wanted.get("user") in (None, producer.user) and wanted.get("port") in (None, producer.port)


def _each(request: StatRequest) -> Stats:
    """Show every producer of a family, then the totals, then the streams of the producers.

    Options say what the streams look like: `{"stream_format": "json"}` for one value each, "skip" for none, and which
    producers are shown: `{"filter": {"user": NAME, "port": NUMBER}}`. Another format counts as none was given. Source:
    kv_engine ep_engine.cc, DcpStatsOptions.
    """
    family, bucket = request.name, request.bucket
    return _shown(bucket, family, _reports(bucket, family, request.options), request.options.get("stream_format"))


def _shown(bucket: ServedBucket, family: str, reports: list[ProducerReport], stream_format: object) -> Stats:
    for report in reports:
        for name, value in _of_producer(report).items():
            yield f"eq_{family}q:{report.name}:{name}", shown(value)
    yield from ((name, value) for name, value in totals(bucket) if name.startswith(f"ep_{family}_"))
    if stream_format == "skip":
        return
    for report in reports:
        for stream in report.streams:
            prefix, stats = f"eq_{family}q:{report.name}:stream_{stream.vbucket}", _of_stream(stream)
            if stream_format == "json":
                yield prefix, json.dumps(stats, separators=(",", ":"))
            else:
                yield from ((f"{prefix}_{name}", shown(value)) for name, value in stats.items())


def _of_stream(stream: StreamReport) -> dict[str, Any]:
    stats: dict[str, Any] = {
        "opaque": stream.opaque,
        "start_seqno": stream.start_seqno,
        "end_seqno": stream.end_seqno,
        "state": stream.state,
        "items_sent": stream.items_sent,
        "bytes_sent": stream.bytes_sent,
        "items_remaining": stream.items_remaining,
        **({"filters": ",".join(stream.filters)} if stream.filters else {}),
        **stream.details,
    }
    return {name: value for name, value in stats.items() if value is not None}


def _of_producer(report: ProducerReport) -> dict[str, Any]:
    return {
        "type": "producer",
        "protocol": report.dialect,
        "label": report.label,
        "peer": report.peer,
        **({"agent": report.agent} if report.agent else {}),
        **({"user": report.user} if report.user else {}),
        "created": int(report.created),
        "connected": True,
        "num_streams": len(report.streams),
        "items_sent": report.items_sent,
        "items_remaining": report.items_remaining,
        "total_bytes_sent": report.bytes_sent,
        "bytes_unsent": report.bytes_unsent,
        **report.details,
    }


def _together(request: StatRequest) -> Stats:
    """Add the producers of a family up by what their names begin with, up to the separator."""
    separator, family = request.argument, request.name.removesuffix("agg")
    if len(separator) > _LONGEST_SEPARATOR:
        raise InvalidArguments(f"{request.name}: separator of {len(separator)} characters, limit {_LONGEST_SEPARATOR}")
    sums: dict[str, Counter[str]] = {}
    for report in _reports(request.bucket, family):
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


def _as_json(request: StatRequest) -> Stats:
    """Show one JSON value for each producer."""
    reports = [producer.report() for producer in request.bucket.producers.values()]
    return ((f"{r.dialect}:{r.name}", json.dumps(r.to_json(), separators=(",", ":"))) for r in reports)


def _takeover(request: StatRequest) -> Stats:
    """Estimate how much is left to send of a vbucket to one consumer.

    Source: kv_engine ep_engine.cc, doDcpVbTakeoverStats, and active_stream.cc, addTakeoverStats.
    """
    number, _, name = request.argument.partition(" ")
    bucket, family = request.bucket, request.name.removesuffix("-vbtakeover")
    vbucket = bucket.store.existing(parse_vbucket(request.name, number))
    reports = [report for report in _reports(bucket, family) if report.name == name]
    streams = [stream for report in reports for stream in report.streams if stream.vbucket == vbucket.id]
    return iter(_takeover_of(vbucket, f"eq_{family}q:{name}", bool(reports), streams[0] if streams else None).items())


def _takeover_of(vbucket: Vbucket, name: str, is_connected: bool, stream: StreamReport | None) -> dict[str, object]:
    deletes = vbucket.changes.keys.count - vbucket.changes.items
    amounts = {"on_disk_deletes": deletes, "vb_items": vbucket.changes.items}
    if stream is not None:
        left = stream.items_remaining
        status = "backfilling" if left else "in-memory"
        return {"name": name, "status": status, "estimate": left, "backfillRemaining": left, "chk_items": 0, **amounts}
    if is_connected:
        return {"status": "stream_does_not_exist", "estimate": 0, "backfillRemaining": 0}
    return {
        "status": "connection_does_not_exist",
        **amounts,
        "chk_items": 0,
        "estimate": vbucket.changes.items + deletes,
    }


def _groups_of(family: str) -> dict[str, StatGroup]:
    name, optional = family.upper(), Argument.OPTIONAL
    return {
        family: StatGroup(_each, f"the {name} producers with their streams, and totals"),
        f"{family}agg": StatGroup(_together, f"the {name} producers, added up by names", optional, "SEPARATOR"),
        f"{family}-vbtakeover": StatGroup(
            _takeover, f"what is left to send to one {name} consumer", Argument.REQUIRED, "VBUCKET NAME"
        ),
    }


GROUPS: dict[str, StatGroup] = {
    **_groups_of("dcp"),
    **_groups_of("upr"),
    **_groups_of("tap"),
    "streams": StatGroup(_as_json, "every producer as one JSON value"),
}
