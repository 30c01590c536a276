"""What a producer reports of a vbucket, as plans are made from it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.store.history.failover_log import FailoverLog

__all__ = ["VbucketInfo"]


@dataclass(frozen=True, slots=True)
class VbucketInfo:
    """What a producer reports of a vbucket at one moment.

    Attributes:
        failover_log: newest entry first, the same before and after the two seqnos were read.
        high_seqno: the seqno of the newest change.
        purge_seqno: the highest seqno of a tombstone that compaction has dropped.
    """

    failover_log: FailoverLog
    high_seqno: int
    purge_seqno: int = 0

    @property
    def vbuuid(self) -> int:
        return self.failover_log[0].vbuuid
