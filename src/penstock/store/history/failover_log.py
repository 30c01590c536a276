"""The failover log: which history branch a vbucket was on, from which seqno.

A log is a tuple, newest entry first, of at most MAX_ENTRIES entries. Entry `(vbuuid, seqno)` says that the branch
`vbuuid` begins just after `seqno`, and lasts up to the seqno of the entry in front of it. Seqnos never rise from
front to back; two entries may share one. Source: kv_engine failover-table.cc.
"""

from collections.abc import Iterable

from penstock.wire.messages.kv import FailoverEntry

__all__ = ["MAX_ENTRIES", "FailoverEntry", "FailoverLog", "branch_at", "create_entry", "prune", "sanitised"]

MAX_ENTRIES = 25  # kv_engine's default for max_failover_entries; the oldest entries are forgotten first


FailoverLog = tuple[FailoverEntry, ...]


def create_entry(log: FailoverLog, vbuuid: int, seqno: int) -> FailoverLog:
    """Return the log after a new branch has begun at `seqno`; entries above it never happened on this branch.

    An empty log begins a vbucket's history. Raises ValueError if vbuuid is 0.
    """
    if vbuuid == 0:
        raise ValueError("vbuuid 0 means 'no history' on the wire and cannot name a branch")
    return (FailoverEntry(vbuuid, seqno), *prune(log, seqno))[:MAX_ENTRIES]


def prune(log: FailoverLog, seqno: int) -> FailoverLog:
    """Return the log without the branches that began above `seqno`, as after a rollback to it.

    The result may be empty (nothing known goes back so far): the vbucket then needs a new entry.
    """
    return tuple(entry for entry in log if entry.seqno <= seqno)


def sanitised(log: Iterable[tuple[int, int]]) -> FailoverLog:
    """Return a log that came from elsewhere without what cannot be in one; it may be empty then.

    That is vbuuid 0, an entry above the one in front of it, and what is more than MAX_ENTRIES.
    """
    kept: list[FailoverEntry] = []
    for vbuuid, seqno in log:
        if vbuuid and (not kept or seqno <= kept[-1].seqno):
            kept.append(FailoverEntry(vbuuid, seqno))
    return tuple(kept[:MAX_ENTRIES])


def branch_at(log: FailoverLog, seqno: int) -> FailoverEntry:
    """Return the entry of the branch in which `seqno` was written.

    A newer branch of the log knows the seqno as well, but another producer may share only the older one. For a seqno
    older than the log, and for 0, it is the oldest entry that is left. log: newest entry first, not empty.
    """
    return next((entry for entry in log if entry.seqno < seqno), log[-1])
