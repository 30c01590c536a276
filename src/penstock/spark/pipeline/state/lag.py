"""The lag of a lake's tables behind their bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.spark.source.offsets import Offset

__all__ = ["compute_lag"]


def compute_lag(end: Offset | None, high_seqnos: Mapping[int, int], chosen: Iterable[int] | None = None) -> int:
    """Return the number of seqnos that a bucket has beyond a position.

    Args:
        end: the position; None for the start of the bucket.
        high_seqnos: the bucket's high seqno by vbucket.
        chosen: the vbuckets that count; None for all.

    Returns:
        The sum over these vbuckets.
    """
    wanted = high_seqnos.keys() if chosen is None else high_seqnos.keys() & set(chosen)
    known = {} if end is None else dict(enumerate(vbucket.seqno for vbucket in end.vbuckets))
    return sum(max(0, high_seqnos[vbucket] - known.get(vbucket, 0)) for vbucket in wanted)
