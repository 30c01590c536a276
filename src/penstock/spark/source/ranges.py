"""Divide a batch among Spark's tasks: few tasks, each for one node, with about equal work.

These are pure functions over the reads of a batch. A task costs about 34 ms even if it reads little.
"""

from collections.abc import Sequence

from penstock.spark.source.offsets import VbucketRange, VbucketRead

MIN_TASK_SEQNOS = 20_000  # so many changes take about as long as a task without changes


def divide_reads(
    reads: Sequence[VbucketRead], max_tasks: int, min_tasks: int = 1, owners: Sequence[int] | None = None
) -> list[VbucketRange]:
    """Return the reads of each task: consecutive vbuckets of one node, and about equal numbers of seqnos.

    The number of tasks follows from the number of seqnos, within the two limits. There are never more tasks than
    vbuckets to read, and never fewer than nodes with changes.

    Args:
        reads: the reads of the batch, ordered by vbucket.
        max_tasks: the most tasks, at least 1.
        min_tasks: the fewest tasks.
        owners: the node of each vbucket, indexed by vbucket. None: one node has all.
    """
    by_owner: dict[int, list[VbucketRead]] = {}
    for read in reads:
        by_owner.setdefault(0 if owners is None else owners[read.vbucket], []).append(read)
    worth = -(-sum(map(_weigh_read, reads)) // MIN_TASK_SEQNOS)
    counts = _allocate_tasks(list(by_owner.values()), max(min_tasks, min(max_tasks, worth)))
    ranges: list[VbucketRange] = []
    for (owner, part), count in zip(by_owner.items(), counts, strict=True):
        ranges += [VbucketRange(tuple(each), owner) for each in _divide_part(part, count, exact=min_tasks > 1)]
    return ranges


def _weigh_read(read: VbucketRead) -> int:
    """Return the work of a read: its seqnos, and one for opening its stream."""
    return 1 + read.end_seqno - read.start_seqno


def _allocate_tasks(parts: Sequence[Sequence[VbucketRead]], total: int) -> list[int]:
    """Return the number of tasks of each node's part.

    Each part has one task. Each further task goes to the part with the most work per task.
    """
    loads = [sum(map(_weigh_read, part)) for part in parts]
    counts = [1] * len(parts)
    for _ in range(total - len(parts)):
        open_ = [at for at, part in enumerate(parts) if counts[at] < len(part)]
        if not open_:
            break
        counts[max(open_, key=lambda at: loads[at] / counts[at])] += 1
    return counts


def _divide_part(reads: Sequence[VbucketRead], count: int, *, exact: bool) -> list[list[VbucketRead]]:
    """Return the reads of one node in at most `count` groups.

    A vbucket belongs to the group in which the middle of its seqnos lies.

    Args:
        reads: the reads of the node.
        count: the number of groups.
        exact: return exactly `count` groups, even if they become less equal.
    """
    total, before, place = sum(map(_weigh_read, reads)), 0, -1
    parts: list[list[VbucketRead]] = [[] for _ in range(count)]
    for at, read in enumerate(reads):
        size = _weigh_read(read)
        place_by_size = (2 * before + size) * count // (2 * total)
        # Each part gets at least one vbucket, so no part is skipped and one vbucket is left for each later part.
        place = max(min(place_by_size, place + 1), count - (len(reads) - at)) if exact else place_by_size
        parts[place].append(read)
        before += size
    return [part for part in parts if part]
