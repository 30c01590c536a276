"""The lag of a lake's tables behind their bucket, of all vbuckets together and by ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.spark.pipeline.state.run_progress import LagRange
from penstock.spark.source.offsets import Offset

MAX_RANGES = 16


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


def list_lag_ranges(
    end: Offset | None, high_seqnos: Mapping[int, int], vbuckets: int, chosen: Iterable[int] | None = None
) -> tuple[LagRange, ...]:
    """Return the lag by ranges of vbuckets of the same size; ranges without a vbucket that counts are left out.

    Args:
        end: the position; None for the start of the bucket.
        high_seqnos: the bucket's high seqno by vbucket.
        vbuckets: the number of vbuckets of the bucket.
        chosen: the vbuckets that count; None for all.
    """
    counted = set(high_seqnos) if chosen is None else high_seqnos.keys() & set(chosen)
    size = -(-vbuckets // MAX_RANGES)
    return tuple(
        LagRange(first, last, compute_lag(end, high_seqnos, within))
        for first in range(0, vbuckets, size)
        for last in (min(first + size, vbuckets) - 1,)
        if (within := counted & set(range(first, last + 1)))
    )
