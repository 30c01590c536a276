"""Short builders of failover logs, offsets and plans, for the tests of planning."""

from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.spark.source.offsets import (
    Offset,
    ProvenEnd,
    VbucketOffset,
    VbucketRange,
    derive_reads,
)
from penstock.spark.source.ranges import divide_reads
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.messages.kv import FailoverEntry

A, B, C = 0xA, 0xB, 0xC


def log(*entries: tuple[int, int]) -> FailoverLog:
    return tuple(FailoverEntry(*entry) for entry in entries)


def info(high: int, purge: int = 0, vbuuid: int = A) -> VbucketInfo:
    return VbucketInfo(log((vbuuid, 0)), high, purge)


def at(history: int, vbuuid: int, seqno: int, *proven: tuple[int, int], **more: int) -> VbucketOffset:
    return VbucketOffset(history, vbuuid, seqno, tuple(ProvenEnd(*pair) for pair in proven), **more)


def partitions(start: Offset, end: Offset, most: int) -> list[VbucketRange]:
    return divide_reads(derive_reads(start, end), most)


BRANCHED = log((B, 10), (A, 0))  # branch A up to seqno 10, then branch B
