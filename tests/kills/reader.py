"""Compares the content of a bucket after a kill with the expected content."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

from penstock.store.bucket_store import BucketStore
from penstock.store.disk.durable_log import DurableLog
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.messages.dcp import Mutation
from tests.kills.expected import ACTIVE, Change, ExpectedBucket, ExpectedVbucket, add_branch
from tests.kills.workload import NANOSECONDS, PLANS, generate_turns
from tests.kills.writer import WRITER, Life, generate_vbuuids
from tests.store.model import Tombstone, decode_changes

_AHEAD = 50_000
"""The maximum number of turns that a writer executes after its last report of the turns on disk."""

_VIEWS = 5


def _summarize_state(vbucket: ExpectedVbucket) -> tuple[object, ...]:
    return vbucket.state, vbucket.log, vbucket.whole_seqno, vbucket.last_frame[-60:]


class Mismatch(AssertionError):
    """The content of the bucket is not the expected content."""


# The end of the log


def find_end(bucket: BucketStore, life: Life, expected: ExpectedBucket, on_disk: int | None) -> int | None:
    """Advance the expected state to the record at which the log ended.

    Args:
        bucket: the bucket after the kill.
        life: the life that the kill has ended.
        expected: the state at the beginning of that life; it is changed.
        on_disk: how many turns the writer has reported as on disk; None if it has not reported the opening.

    Returns:
        How many turns were complete at the end of the log; None if the bucket was not open yet.

    Raises:
        Mismatch: no place at which the log can end has the content of the bucket.
    """
    clean, torn = "not clean" not in bucket.recovery_summary, "cut off" in bucket.recovery_summary
    states = [
        (v.history.state, v.history.failover_log, v.history.whole_seqno, _read_last_frame(v)) for v in bucket.vbuckets
    ]

    def differs(vbucket: ExpectedVbucket) -> bool:
        state, log, whole, frame = states[vbucket.id]
        if state is ACTIVE and not clean:  # this opening has added an entry
            expected_log = add_branch(vbucket.log, log[0].vbuuid, vbucket.high)
        else:
            expected_log = vbucket.log
        return (vbucket.state, expected_log, vbucket.whole_seqno, vbucket.last_frame) != (state, log, whole, frame)

    differing = {vbucket.id for vbucket in expected.vbuckets if differs(vbucket)}
    closest, fewest = "nowhere", len(states) + 1
    for done, changed in _find_log_ends(expected, life):
        if changed is not None:
            differing.discard(changed)
            if differs(expected.vbuckets[changed]):
                differing.add(changed)
        if on_disk is None or (done is not None and done >= on_disk):
            if not differing and (expected.clean == clean or (expected.clean and torn)):
                return done
            if len(differing) < fewest:
                fewest = len(differing)
                closest = f"after turn {done}: " + ", ".join(
                    f"{_summarize_state(expected.vbuckets[n])}, found {states[n]}" for n in sorted(differing)[:3]
                )
            if (done or 0) > (on_disk or 0) + _AHEAD:
                break
    raise Mismatch(f"{life}: {bucket.recovery_summary}; {on_disk} turns are on disk, closest is {closest}")


def _find_log_ends(expected: ExpectedBucket, life: Life) -> Iterator[tuple[int | None, int | None]]:
    """Yield all places at which the log can end.

    Yields:
        How many turns are complete, None if the bucket is not open yet; and the vbucket of the last record.
    """
    yield None, None
    for vbucket in expected.expect_opening(generate_vbuuids(life.number, WRITER)):
        yield None, vbucket
    yield 0, None
    for turn in generate_turns(life.seed, life.number, PLANS[life.plan]):
        for vbucket in expected.expect_turn(turn):
            yield turn.number - 1, vbucket
        yield turn.number, None


def _read_last_frame(vbucket: Vbucket) -> bytes:
    found = vbucket.index.find(vbucket.changes.high_seqno) if vbucket.changes.high_seqno else None
    if found is None:
        return b""
    rows, row = found
    return rows.buffer[rows.offsets_at[row] :][: rows.lengths_at[row]].tobytes()


# The content


def check_bucket(bucket: BucketStore, life: Life, expected: ExpectedBucket) -> None:
    """Check that the bucket has the expected content.

    Raises:
        Mismatch: it does not.
    """
    assert isinstance(bucket.log, DurableLog)
    names = bucket.log.directory.list_names()
    if left := [name for name in names if name.endswith(".new")]:
        raise Mismatch(f"{life}: left over: {left}")
    chance = random.Random(life.number)
    for vbucket, expected_vbucket in zip(bucket.vbuckets, expected.vbuckets, strict=True):
        try:
            purged = _check_rows(vbucket, expected_vbucket, _read_rows(vbucket), expected.now, life)
            _check_views(vbucket, expected_vbucket, purged, chance)
            _check_documents(vbucket, expected_vbucket, expected.now)
        except Mismatch as mismatch:
            raise Mismatch(f"{life}, vbucket {vbucket.id}: {mismatch}") from None


def _read_rows(vbucket: Vbucket) -> dict[int, bytes]:
    """Return seqno -> frame for all frames of a vbucket in the order of seqnos, superseded frames included.

    Raises:
        Mismatch: the rows are in another order.
    """
    index = vbucket.index
    found: list[tuple[int, bytes]] = []
    for segment in index.segments:
        for row in range(segment.starts[vbucket.id], segment.ends[vbucket.id]):
            at = segment.offsets_at[row]
            found.append((segment.seqnos_at[row], segment.buffer[at : at + segment.lengths_at[row]].tobytes()))
    for seqno, at, length in zip(index.seqnos_at, index.offsets_at, index.lengths_at, strict=True):
        found.append((seqno, index.buffer[at : at + length].tobytes()))
    seqnos = [seqno for seqno, _ in found]
    if any(after <= before for before, after in pairwise(seqnos)):
        raise Mismatch(f"rows out of order: {seqnos}")
    return dict(found)


def _check_rows(
    vbucket: Vbucket, expected_vbucket: ExpectedVbucket, rows: dict[int, bytes], now: int, life: Life
) -> set[int]:
    """Check that all rows are expected, and that only rows are missing that may be dropped.

    Returns:
        The seqnos of tombstones that were dropped.
    """
    plan = PLANS[life.plan]
    by_seqno = {change.seqno: change for change in expected_vbucket.changes}
    for seqno, frame in rows.items():
        if seqno not in by_seqno:
            raise Mismatch(f"never written: {decode_changes(frame)}")
        if frame != by_seqno[seqno].frame:
            raise Mismatch(f"{decode_changes(frame)}, expected {by_seqno[seqno].message}")
    purged = set()
    for seqno in by_seqno.keys() - rows.keys():
        change = by_seqno[seqno]
        if 0 < change.superseded <= vbucket.index.lowest_snapshot_end and plan.forgets:
            continue
        old = 0 < change.deleted_at < now // NANOSECONDS - plan.settings.purge_age
        if not plan.purges or not old or seqno > vbucket.index.purge_seqno or seqno == expected_vbucket.high:
            raise Mismatch(
                f"lost, with floors {vbucket.index.lowest_snapshot_end} and {vbucket.index.purge_seqno}: "
                f"{change.message}, superseded by {change.superseded}"
            )
        purged.add(seqno)
    return purged


def _check_views(vbucket: Vbucket, expected_vbucket: ExpectedVbucket, purged: set[int], chance: random.Random) -> None:
    high = vbucket.changes.high_seqno
    ends = [high, *(chance.randint(0, high) for _ in range(_VIEWS))]
    for end in ends:
        start = 0 if end == high else chance.randint(0, end)
        snapshot = vbucket.history.open_snapshot(start, end)
        begin, last = snapshot.start_seqno, snapshot.end_seqno
        found = bytearray()
        while (chunk := snapshot.read(0, 1 << 20)).frame_count:
            found += chunk.data
        view = [change for change in expected_vbucket.view(begin, last) if change.seqno not in purged]
        if found != b"".join(change.frame for change in view):
            _check_difference(f"from {begin} to {last}", decode_changes(found), view, vbucket.index.purge_seqno)
        if begin != start or (last < min(end, vbucket.history.whole_seqno) and last != start):
            raise Mismatch(f"from {begin} to {last}, requested {start} to {end}")


def _check_difference(
    where: str, found: Sequence[Mutation | Tombstone], view: Sequence[Change], purge_seqno: int
) -> None:
    """Check that the only difference is more deletions: a compaction had dropped them, but that was not on disk yet.

    Raises:
        Mismatch: other changes differ.
    """
    there, expected = set(found), {change.message for change in view}
    more = [message for message in found if message not in expected]
    less = [change for change in view if change.message not in there]
    if less or not all(not isinstance(message, Mutation) and message.by_seqno <= purge_seqno for message in more):
        raise Mismatch(f"{where}: {more} were not expected, {less} are missing")


def _check_documents(vbucket: Vbucket, expected_vbucket: ExpectedVbucket, now: int) -> None:
    if vbucket.changes.items != len(expected_vbucket.documents):
        raise Mismatch(f"{vbucket.changes.items} documents, expected {len(expected_vbucket.documents)}")
    for key, change in expected_vbucket.newest.items():
        item = change.item
        if item is not None and 0 < item.expiry <= now // NANOSECONDS:
            continue  # to read an expired document would delete it
        if (found := vbucket.get(key)) != item:
            raise Mismatch(f"{key!r}: {found}, expected {item}")
    if vbucket.get(b"never") is not None:
        raise Mismatch("a document that was never stored")
    highest = max((change.message.cas for change in expected_vbucket.changes), default=0)
    if vbucket.changes.clock.last < highest:
        raise Mismatch(f"the clock is at {vbucket.changes.clock.last}, expected at least {highest}")
