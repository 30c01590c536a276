"""How a batch is shared out among Spark's tasks: few of them, each talking to one node, of about as much work.

Pure functions over what is to be read. A task costs about 34 ms however little it reads.
"""

from collections.abc import Sequence

from penstock.spark.source.offsets import VbucketRange, VbucketRead

__all__ = ["cut"]

LEAST_SEQNOS = 20_000  # this many changes take about as long as a task without any


def cut(
    reads: Sequence[VbucketRead], most: int, least: int = 1, owners: Sequence[int] | None = None
) -> list[VbucketRange]:
    """Return what each task reads: about the same number of seqnos, of consecutive vbuckets of one node.

    reads: in order of their vbuckets. owners: the node of each vbucket, all the same one if not given. There are as
    many tasks as the work is worth, at most `most` and at least `least`; but never more than vbuckets to read, nor
    fewer than nodes that have any of them.
    """
    by_owner: dict[int, list[VbucketRead]] = {}
    for read in reads:
        by_owner.setdefault(0 if owners is None else owners[read.vbucket], []).append(read)
    worth = -(-sum(map(_size, reads)) // LEAST_SEQNOS)
    counts = _counts(list(by_owner.values()), max(least, min(most, worth)))
    ranges: list[VbucketRange] = []
    for (owner, part), count in zip(by_owner.items(), counts, strict=True):
        ranges += [VbucketRange(tuple(each), owner) for each in _parts(part, count, exact=least > 1)]
    return ranges


def _size(read: VbucketRead) -> int:
    return 1 + read.end_seqno - read.start_seqno


def _counts(parts: Sequence[Sequence[VbucketRead]], total: int) -> list[int]:
    """Return how many tasks each node's part gets: one, and then one more where each of its tasks has most to do."""
    loads = [sum(map(_size, part)) for part in parts]
    counts = [1] * len(parts)
    for _ in range(total - len(parts)):
        open_ = [at for at, part in enumerate(parts) if counts[at] < len(part)]
        if not open_:
            break
        counts[max(open_, key=lambda at: loads[at] / counts[at])] += 1
    return counts


def _parts(reads: Sequence[VbucketRead], count: int, *, exact: bool) -> list[list[VbucketRead]]:
    """Cut into at most `count` parts; a vbucket goes where the middle of its seqnos falls.

    exact: into just as many, though the parts differ more for it.
    """
    total, before, place = sum(map(_size, reads)), 0, -1
    parts: list[list[VbucketRead]] = [[] for _ in range(count)]
    for at, read in enumerate(reads):
        size = _size(read)
        place_by_size = (2 * before + size) * count // (2 * total)
        # No part is passed over, and there is a vbucket left for each part that is still to come.
        place = max(min(place_by_size, place + 1), count - (len(reads) - at)) if exact else place_by_size
        parts[place].append(read)
        before += size
    return [part for part in parts if part]
