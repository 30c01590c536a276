"""Property: a repair loses the changes that it reports, and no consumer keeps changes of a lost history."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import example, given, note
from hypothesis import strategies as st

from penstock.errors import KeyNotFound, StoreDamaged
from penstock.store.bucket_store import BucketStore
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.failover_log import FailoverLog
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.recovery.repair_run import CheckReport
from penstock.wire.codec.constants import VbucketState
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from tests.store.failing import Place, contents, directory_in_memory, newest
from tests.store.model import read_all
from tests.store.repairs import Change, check, repair, request_rollback, rows
from tests.store.written import flipped


@pytest.fixture
def place(memory: Path) -> Place:
    return Place(memory / "beer")


class SentHistory(NamedTuple):
    """A vbucket as it was before its files were damaged.

    history: all changes of the history that it is on. ever: all that there have been. rows: those that it still had.
    """

    failover_log: FailoverLog
    history: list[Change]
    ever: list[Change]
    rows: dict[int, Change]


class Story:
    """Changes a bucket at random, and takes note of each change."""

    def __init__(self, place: Place, random: Random) -> None:
        self.place = place
        self.random = random
        self.bucket = place(segment_bytes=random.choice([700, 1200, 2500]), purge_age=random.choice([0, 10**6]))
        self.histories: list[list[Change]] = [[] for _ in self.bucket.vbuckets]
        self.ever: list[list[Change]] = [[] for _ in self.bucket.vbuckets]
        self.bucket.vbuckets[3].set_state(VbucketState.REPLICA)

    def step(self) -> None:
        vbucket = self.random.choice(self.bucket.vbuckets[:3])
        steps: dict[Callable[[Vbucket], None], float] = {
            self.set: 20,
            self.delete: 4,
            self.copy: 4,
            self.fail_over: 1,
            self.reset: 0.3,
            self.wait: 1,
            self.seal: 2,
            self.commit: 4,
            self.rewrite: 4,
        }
        (what,) = self.random.choices(list(steps), list(steps.values()))
        what(vbucket)

    def note(self, vbucket: Vbucket) -> None:
        change = read_all(Snapshot(vbucket.index, vbucket.changes.high_seqno - 1, vbucket.changes.high_seqno))
        self.histories[vbucket.id] += change
        self.ever[vbucket.id] += change

    def set(self, vbucket: Vbucket) -> None:
        vbucket.set(b"key %d" % self.random.randrange(8), b"value %d" % self.random.randrange(1000))
        self.note(vbucket)

    def delete(self, vbucket: Vbucket) -> None:
        try:
            vbucket.delete(b"key %d" % self.random.randrange(8))
        except KeyNotFound:
            return
        self.note(vbucket)

    def copy(self, _: Vbucket) -> None:
        """Let the replica have some more changes of another history, perhaps not to the end of a snapshot."""
        replica = self.bucket.vbuckets[3]
        end = replica.changes.high_seqno + self.random.randrange(1, 8)
        while replica.changes.high_seqno < end and self.random.random() < 0.8:
            key, seqno = (
                b"key %d" % self.random.randrange(8),
                replica.changes.high_seqno + self.random.choice([1, 1, 2]),
            )
            replica.incoming.apply(Event.MUTATION, key, b"", cas=seqno, rev_seqno=seqno, seqno=seqno, snapshot_end=end)
            self.note(replica)

    def fail_over(self, vbucket: Vbucket) -> None:
        """Some of the newest changes are lost, and another branch begins there."""
        vbucket.set_state(VbucketState.REPLICA)
        high = vbucket.rollback(max(vbucket.changes.high_seqno - self.random.randrange(4), 0))
        vbucket.set_state(VbucketState.ACTIVE)
        history = self.histories[vbucket.id]
        history[:] = [change for change in history if change.by_seqno <= high]

    def reset(self, vbucket: Vbucket) -> None:
        vbucket.reset()
        self.histories[vbucket.id].clear()

    def wait(self, _: Vbucket) -> None:
        self.place.now += 10**9

    def seal(self, _: Vbucket) -> None:
        self.bucket.log.room.seal_active()

    def commit(self, _: Vbucket) -> None:
        self.bucket.log.commits.run()

    def rewrite(self, _: Vbucket) -> None:
        compaction = self.bucket.compactor.next_piece(everything=self.random.random() < 0.5)
        if compaction is not None:
            compaction.run()
            compaction.finish()

    def end(self) -> list[SentHistory]:
        self.bucket.log.commits.run()
        sent = [
            SentHistory(vbucket.history.failover_log, self.histories[vbucket.id], self.ever[vbucket.id], rows(vbucket))
            for vbucket in self.bucket.vbuckets
        ]
        if self.random.random() < 0.5:
            self.bucket.close()
        else:
            self.place.directory.let_go()
        return sent


def damage(path: Path, random: Random) -> str:
    """Damage one file of a bucket, if there is any left, and return how."""
    files = [file for file in sorted(path.iterdir()) if file.name not in {"bucket.json", "bucket-copy.json", "lock"}]
    if not files:
        return "nothing left to damage"
    file = random.choice(files)
    content = file.read_bytes()
    at = random.randrange(len(content)) if content else 0
    how = random.choice(["flipped", "flipped", "cut", "zeros", "gone"])
    if how == "gone" or not content:
        file.unlink()
    elif how == "cut":
        file.write_bytes(content[:at])
    elif how == "zeros":
        file.write_bytes(content[:at] + bytes(len(content[at : at + 200])) + content[at + 200 :])
    else:
        file.write_bytes(flipped(content, at))
    return f"{file.name}, {how} at {at} of {len(content)}"


@given(st.integers(0, 2**32), st.sampled_from([20, 60, 120]), st.sampled_from([1, 1, 2]))
@example(27191, 20, 2)  # a segment's change is lost, and the note in the log that it superseded a dropped one
def test_repair_loses_the_reported_changes_and_misleads_no_consumer(seed: int, steps: int, damages: int) -> None:
    random = Random(seed)
    with directory_in_memory() as path:
        place = Place(path / "beer")
        story = Story(place, random)
        for _ in range(steps):
            story.step()
        sent = story.end()
        done = [damage(place.path, random) for _ in range(damages)]
        note(f"{done}")
        report = check(place)
        for loss in report.losses:
            note(f"{loss}")
        if not report.losses:
            place().close()
            return
        with pytest.raises(StoreDamaged):
            place()
        before = contents(place.path)
        aside = repair(place, report)
        kept = contents(place.path / aside)
        assert {**contents(place.path), **kept, "bucket.json": b""} == {
            **contents(place.path), **before, "bucket.json": b""
        }  # fmt: skip
        again = check(place)
        assert not again.losses
        assert again.found.is_clean
        assert again.remaining == [left._replace(rollback=None) for left in report.remaining]
        bucket = place()
        # A last log file that is gone may have held anything, and who should know?
        check_remaining_changes(bucket, report, sent, gone=any(how.startswith("log") and "gone" in how for how in done))
        for _ in range(2):
            for vbucket, before_it in zip(bucket.vbuckets[:3], sent, strict=False):
                check_consumers(vbucket, before_it, report.remaining[vbucket.id].rollback)
            for number in range(3 * random.randrange(20)):  # the seqnos of what was lost are given out again
                bucket.vbuckets[number % 3].set(b"key %d" % (number % 10), b"new")
        bucket.close()


def check_remaining_changes(bucket: BucketStore, report: CheckReport, sent: list[SentHistory], *, gone: bool) -> None:
    lost = [lost for loss in report.losses for lost in loss.lost]
    # Of bytes that are not there, or not to be read, nobody can say what they were.
    unknown = gone or report.found.torn is not None
    unknown |= any(loss.unreadable or not loss.damage.nbytes for loss in report.losses)
    for vbucket, before, left in zip(bucket.vbuckets, sent, report.remaining, strict=True):
        found = rows(vbucket)
        assert (vbucket.history.state, vbucket.changes.items, len(found)) == (left.state, left.documents, left.changes)
        assert (min(found, default=0), vbucket.changes.high_seqno) == (left.first_seqno, left.high_seqno)
        assert all(change in before.ever for change in found.values())
        live = newest(vbucket)
        assert len({change.key for change in live}) == len(live)
        last = {change.key: change for change in found.values()}
        assert sorted(change.by_seqno for change in live) == sorted(change.by_seqno for change in last.values())
        same = {seqno for seqno, change in before.rows.items() if found.get(seqno) == change}
        missing = before.rows.keys() - same
        for one in lost:
            if one.vbucket == vbucket.id:
                high = one.last_seqno or max(missing, default=0)
                missing -= set(range(one.first_seqno, high + 1))
        for seqno in missing:
            superseding = last.get(before.rows[seqno].key)
            is_superseded = superseding is not None and superseding.by_seqno > seqno
            if is_superseded and report.found.end is None:  # so no snapshot can end where it was the newest
                key = before.rows[seqno].key
                newer = (one.by_seqno for one in found.values() if one.key == key and one.by_seqno > seqno)
                assert vbucket.index.lowest_snapshot_end >= min(newer)
            assert is_superseded or (unknown and seqno > max(same, default=0))


def check_consumers(vbucket: Vbucket, before: SentHistory, rollback: int | None) -> None:
    """Let every consumer that there may have been go on, and compare what it has then with what there is."""
    there = documents(newest(vbucket))
    for vbuuid, seqno in positions(before):
        point = request_rollback(vbucket, vbuuid, seqno)
        if rollback is not None and seqno > rollback and vbuuid == before.failover_log[0].vbuuid:
            assert point in {0, rollback}
        base = seqno if point is None else point
        if point:  # it asks again from there
            assert base < seqno
        has = [change for change in before.history if change.by_seqno <= base]
        comes = read_all(vbucket.history.open_snapshot(base, vbucket.changes.high_seqno))
        assert documents([*has, *comes]) == there


def positions(sent: SentHistory) -> Iterator[tuple[int, int]]:
    """Yield the branch and the seqno of each consumer that there may be: at any change of a branch."""
    end = max((change.by_seqno for change in sent.history), default=0)
    for entry in sent.failover_log:
        for change in sent.history:
            if change.by_seqno <= end:
                yield entry.vbuuid, change.by_seqno
        end = entry.seqno


def documents(changes: list[Change]) -> dict[bytes, Change]:
    last = {change.key: change for change in changes}
    return {key: change for key, change in last.items() if isinstance(change, Mutation)}


# What is record
