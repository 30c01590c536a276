"""A vbucket's failover log and seqnos at one moment, from which reads are planned."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.store.history.failover_log import FailoverLog


@dataclass(frozen=True, slots=True)
class VbucketInfo:
    """The failover log and seqnos of a vbucket at one moment.

    Attributes:
        failover_log: newest entry first, the same before and after the two seqnos were read.
        high_seqno: the seqno of the newest change.
        purge_seqno: the highest seqno of a tombstone that compaction has dropped.
        safe_seqno: the highest seqno that the active node and all replicas have on disk; None: not requested.
    """

    failover_log: FailoverLog
    high_seqno: int
    purge_seqno: int = 0
    safe_seqno: int | None = None

    @property
    def end_seqno(self) -> int:
        """The seqno up to which a read goes: the newest change, or the newest that no failover makes void."""
        return self.high_seqno if self.safe_seqno is None else min(self.safe_seqno, self.high_seqno)

    @property
    def vbuuid(self) -> int:
        """The vbuuid of the newest branch."""
        return self.failover_log[0].vbuuid
