"""The newest branch and the seqnos of each vbucket: in memory and on disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.connect.stat_numbers import read_number


class HeldSeqno(NamedTuple):
    """A change that is held back until it is on disk.

    Attributes:
        vbuuid: its branch.
        seqno: its seqno.
    """

    vbuuid: int
    seqno: int


class PersistedSeqno(NamedTuple):
    """The seqnos of a vbucket on its node.

    Attributes:
        vbuuid: the newest branch.
        high_seqno: the newest change.
        persisted_seqno: the newest change on disk.
    """

    vbuuid: int
    high_seqno: int
    persisted_seqno: int


_NAMES = ("uuid", "high_seqno", "last_persisted_seqno")


def find_unreported(stats: Mapping[str, str], vbuckets: int) -> dict[int, PersistedSeqno]:
    """Return the vbuckets whose seqnos on disk the statistics do not have: Couchbase 3.x reports none.

    Args:
        stats: the statistics vbucket-seqno.
        vbuckets: the number of vbuckets of the bucket.

    Returns:
        The seqnos as they are once the disk has everything.

    Raises RemoteProtocolError if a statistic is no number.
    """
    uuid, high, persisted = _NAMES
    found = {}
    for vbucket in range(vbuckets):
        known = [f"vb_{vbucket}:{name}" for name in (uuid, high)]
        if all(name in stats for name in known) and f"vb_{vbucket}:{persisted}" not in stats:
            branch, seqno = (read_number(name, stats[name]) for name in known)
            found[vbucket] = PersistedSeqno(branch, seqno, seqno)
    return found


def read_persisted_seqnos(stats: Mapping[str, str], vbuckets: int) -> dict[int, PersistedSeqno]:
    """Return the seqnos of the vbuckets in the statistics vbucket-seqno.

    Args:
        stats: the statistics.
        vbuckets: the number of vbuckets of the bucket.

    Raises RemoteProtocolError if a statistic is no number.
    """
    found = {}
    for vbucket in range(vbuckets):
        names = [f"vb_{vbucket}:{name}" for name in _NAMES]
        if all(name in stats for name in names):
            found[vbucket] = PersistedSeqno(*(read_number(name, stats[name]) for name in names))
    return found
