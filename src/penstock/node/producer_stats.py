"""What STAT says of producers: their totals, each of them, and each in one value for programs.

Names are those of ep-engine. What is counted comes from `ChangeProducer.load` and `report`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from penstock.errors import InvalidArguments
from penstock.node.producers import ProducerReport
from penstock.node.served import ServedBucket
from penstock.wire.constants import Dialect

__all__ = ["GROUPS", "totals"]

Stats = Iterator[tuple[str, object]]

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
        yield f"ep_{family}_num_running_streams", sum(load.streams for load in loads)
        yield f"ep_{family}_streams_opened", sum(each.streams_opened for each in sent)
        yield f"ep_{family}_items_sent", sum(each.items for each in sent)
        yield f"ep_{family}_total_bytes", sum(each.nbytes for each in sent)
        yield f"ep_{family}_turns", sum(load.turns for load in loads)
        yield f"ep_{family}_streams_ready", sum(load.ready for load in loads)
        yield f"ep_{family}_items_remaining", sum(load.remaining for load in loads)
        yield f"ep_{family}_total_backlog_size", sum(load.remaining for load in loads)
        yield f"ep_{family}_unacked_bytes", sum(load.unacked for load in loads)


def _reports(bucket: ServedBucket, family: str) -> list[ProducerReport]:
    return [p.report() for p in bucket.producers.values() if p.dialect in FAMILIES[family]]


def _text(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _each(bucket: ServedBucket, family: str, argument: str) -> Stats:
    """Every producer of a family with its streams, then the totals."""
    if argument:
        raise InvalidArguments(f"{family}: expected nothing behind it, found {argument!r}")
    for report in _reports(bucket, family):
        prefix = f"eq_{family}q:{report.name}"
        for name, value in _of_producer(report).items():
            yield f"{prefix}:{name}", _text(value)
        for stream in report.streams:
            said: dict[str, Any] = {
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
            for name, value in said.items():
                if value is not None:
                    yield f"{prefix}:stream_{stream.vbucket}_{name}", _text(value)
    yield from ((name, value) for name, value in totals(bucket) if name.startswith(f"ep_{family}_"))


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
        "total_bytes_sent": sum(stream.bytes_sent for stream in report.streams),
        "bytes_unsent": report.bytes_unsent,
        **report.details,
    }


def _together(bucket: ServedBucket, group: str, separator: str) -> Stats:
    """The producers of a family, added up by what their names begin with, up to the separator."""
    if len(separator) > _LONGEST_SEPARATOR:
        raise InvalidArguments(f"{group}: separator of {len(separator)} characters, limit {_LONGEST_SEPARATOR}")
    family = group.removesuffix("agg")
    sums: dict[str, Counter[str]] = {}
    for report in _reports(bucket, family):
        said = {
            "count": 1,
            "producer_count": 1,
            "items_sent": report.items_sent,
            "items_remaining": report.items_remaining,
            "total_bytes": sum(stream.bytes_sent for stream in report.streams),
            "total_backlog_size": report.items_remaining,
        }
        first, found, _ = report.name.partition(separator or ":")
        for prefix in (":total", *([first] if found else [])):
            sums.setdefault(prefix, Counter()).update(said)
    for prefix, added in sums.items():
        for name, number in added.items():
            yield f"{prefix}:{name}", number


def _as_json(bucket: ServedBucket, group: str, argument: str) -> Stats:
    """One JSON value for each producer."""
    if argument:
        raise InvalidArguments(f"{group}: expected nothing behind it, found {argument!r}")
    for producer in bucket.producers.values():
        report = producer.report()
        yield f"{report.dialect}:{report.name}", json.dumps(report.to_json(), separators=(",", ":"))


GROUPS: dict[str, Callable[[ServedBucket, str, str], Stats]] = {
    **dict.fromkeys(FAMILIES, _each),
    **dict.fromkeys((f"{family}agg" for family in FAMILIES), _together),
    "streams": _as_json,
}
"""By name of the group; called with the bucket, the name, and what stands behind it."""
