"""How far behind its bucket a lake's tables are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.spark.source.offsets import Offset

__all__ = ["behind"]


def behind(end: Offset | None, high_seqnos: Mapping[int, int], chosen: Iterable[int] | None = None) -> int:
    """Return how many seqnos a bucket has beyond a position. chosen: only these vbuckets count, if not all do."""
    wanted = high_seqnos.keys() if chosen is None else high_seqnos.keys() & set(chosen)
    known = {} if end is None else dict(enumerate(vbucket.seqno for vbucket in end.vbuckets))
    return sum(max(0, high_seqnos[vbucket] - known.get(vbucket, 0)) for vbucket in wanted)
