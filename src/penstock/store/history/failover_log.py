"""The failover log: which history branch a vbucket was on, from which seqno.

A log is a tuple, newest entry first, of at most MAX_ENTRIES entries. Entry `(vbuuid, seqno)` means that the branch
`vbuuid` begins just after `seqno`, and lasts up to the seqno of the entry in front of it. Seqnos never rise from
front to back; two entries may share one. Source: kv_engine failover-table.cc.
"""

from collections.abc import Iterable

from penstock.wire.messages.kv import FailoverEntry

MAX_ENTRIES = 25  # kv_engine's default for max_failover_entries; the oldest entries are forgotten first


FailoverLog = tuple[FailoverEntry, ...]


def create_entry(log: FailoverLog, vbuuid: int, seqno: int) -> FailoverLog:
    """Return the log after a new branch began at `seqno`. Entries above it are removed.

    An empty log begins a vbucket's history.

    Raises:
        ValueError: vbuuid is 0.
    """
    if vbuuid == 0:
        raise ValueError("vbuuid 0 means 'no history' on the wire and cannot name a branch")
    return (FailoverEntry(vbuuid, seqno), *prune_log(log, seqno))[:MAX_ENTRIES]


def prune_log(log: FailoverLog, seqno: int) -> FailoverLog:
    """Return the log without the branches that began above `seqno`, as after a rollback to it.

    The result may be empty, if no known branch is so old; the vbucket then needs a new entry.
    """
    return tuple(entry for entry in log if entry.seqno <= seqno)


def sanitise_log(log: Iterable[tuple[int, int]]) -> FailoverLog:
    """Return the valid part of a log that came from another node; it may be empty.

    It removes vbuuid 0, entries above the one in front of them, and entries beyond MAX_ENTRIES.
    """
    kept: list[FailoverEntry] = []
    for vbuuid, seqno in log:
        if vbuuid and (not kept or seqno <= kept[-1].seqno):
            kept.append(FailoverEntry(vbuuid, seqno))
    return tuple(kept[:MAX_ENTRIES])


def find_branch(log: FailoverLog, seqno: int) -> FailoverEntry:
    """Return the entry of the branch in which `seqno` was written.

    A newer branch includes the seqno as well, but another producer may share only the older one. For 0, and for a seqno
    older than the log, the result is the oldest entry.

    Args:
        log: newest entry first, not empty.
        seqno: the seqno.
    """
    return next((entry for entry in log if entry.seqno < seqno), log[-1])
