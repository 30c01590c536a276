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
from penstock.store.disk.inventory import INVENTORY
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.failover_log import FailoverLog
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.recovery.repair_run import CheckReport
from penstock.wire.codec.constants import VbucketState
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from tests.store.failing import Place, directory_in_memory, read_files, read_newest_changes
from tests.store.model import read_all
from tests.store.repairs import Change, check_place, read_rows, repair_place, request_rollback
from tests.store.written import flip_bit


@pytest.fixture
def place(memory_path: Path) -> Place:
    return Place(memory_path / "beer")


class SentHistory(NamedTuple):
    """A vbucket before its files were damaged.

    Attributes:
        failover_log: its failover log.
        history: all changes of its present history, including superseded and purged ones.
        ever: all changes that it ever had, including those that it lost by rollbacks and resets.
        rows: the changes that it still held, by seqno.
    """

    failover_log: FailoverLog
    history: list[Change]
    ever: list[Change]
    rows: dict[int, Change]


class RandomChanges:
    """Changes a bucket at random, and keeps each change.

    Attributes:
        histories: for each vbucket, the changes of its present history.
        ever: for each vbucket, all changes that it ever had.
    """

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
            self.replicate: 4,
            self.fail_over: 1,
            self.reset: 0.3,
            self.wait: 1,
            self.seal: 2,
            self.commit: 4,
            self.rewrite: 4,
        }
        (step,) = self.random.choices(list(steps), list(steps.values()))
        step(vbucket)

    def record_change(self, vbucket: Vbucket) -> None:
        change = read_all(Snapshot(vbucket.index, vbucket.changes.high_seqno - 1, vbucket.changes.high_seqno))
        self.histories[vbucket.id] += change
        self.ever[vbucket.id] += change

    def set(self, vbucket: Vbucket) -> None:
        vbucket.set(b"key %d" % self.random.randrange(8), b"value %d" % self.random.randrange(1000))
        self.record_change(vbucket)

    def delete(self, vbucket: Vbucket) -> None:
        try:
            vbucket.delete(b"key %d" % self.random.randrange(8))
        except KeyNotFound:
            return
        self.record_change(vbucket)

    def replicate(self, _: Vbucket) -> None:
        """Apply some changes of another history to the replica, perhaps not up to the end of their snapshot."""
        replica = self.bucket.vbuckets[3]
        end = replica.changes.high_seqno + self.random.randrange(1, 8)
        while replica.changes.high_seqno < end and self.random.random() < 0.8:
            key, seqno = (
                b"key %d" % self.random.randrange(8),
                replica.changes.high_seqno + self.random.choice([1, 1, 2]),
            )
            replica.incoming.apply(Event.MUTATION, key, b"", cas=seqno, rev_seqno=seqno, seqno=seqno, snapshot_end=end)
            self.record_change(replica)

    def fail_over(self, vbucket: Vbucket) -> None:
        """Lose some of the newest changes, and start another branch there."""
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

    def end_process(self) -> list[SentHistory]:
        self.bucket.log.commits.run()
        sent = [
            SentHistory(
                vbucket.history.failover_log, self.histories[vbucket.id], self.ever[vbucket.id], read_rows(vbucket)
            )
            for vbucket in self.bucket.vbuckets
        ]
        if self.random.random() < 0.5:
            self.bucket.close()
        else:
            self.place.directory.kill()
        return sent


def damage_one_file(path: Path, random: Random) -> str:
    """Damage one file of a bucket, if any is left, and return a description of the damage."""
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
        file.write_bytes(flip_bit(content, at))
    return f"{file.name}, {how} at {at} of {len(content)}"


@pytest.mark.long
@given(st.integers(0, 2**32), st.sampled_from([20, 60, 120]), st.sampled_from([1, 1, 2]))
@example(27191, 20, 2)  # loses a segment's change, and also the note in the log that it superseded a dropped change.
@example(3255933, 20, 2)  # Loses the note of a reset. Changes of the older history return.
def test_repair_loses_the_reported_changes_and_misleads_no_consumer(seed: int, steps: int, damages: int) -> None:
    random = Random(seed)
    with directory_in_memory() as path:
        place = Place(path / "beer")
        story = RandomChanges(place, random)
        for _ in range(steps):
            story.step()
        sent = story.end_process()
        done = [damage_one_file(place.path, random) for _ in range(damages)]
        note(f"{done}")
        report = check_place(place)
        for loss in report.losses:
            note(f"{loss}")
        if not report.losses:
            place().close()
            return
        with pytest.raises(StoreDamaged):
            place()
        before = read_files(place.path)
        aside = repair_place(place, report)
        kept = read_files(place.path / aside)
        assert {**read_files(place.path), **kept, "bucket.json": b""} == {
            **read_files(place.path), **before, "bucket.json": b""
        }  # fmt: skip
        again = check_place(place)
        assert not again.losses
        assert again.found.is_clean
        assert again.remaining == [left._replace(rollback=None) for left in report.remaining]
        bucket = place()
        # A missing last log file may have held any changes, which no report can list.
        check_remaining_changes(bucket, report, sent, gone=any(how.startswith("log") and "gone" in how for how in done))
        for _ in range(2):
            for vbucket, before_it in zip(bucket.vbuckets[:3], sent, strict=False):
                check_consumers(vbucket, before_it, report.remaining[vbucket.id].rollback)
            for number in range(3 * random.randrange(20)):  # new changes get the seqnos of lost ones
                bucket.vbuckets[number % 3].set(b"key %d" % (number % 10), b"new")
        bucket.close()


def check_remaining_changes(bucket: BucketStore, report: CheckReport, sent: list[SentHistory], *, gone: bool) -> None:
    """Check that the report lists every change that the repaired bucket has lost, and that nothing else differs."""
    lost = [lost for loss in report.losses for lost in loss.lost]
    # A report cannot list the changes in missing or unreadable bytes.
    unknown = gone or report.found.torn is not None
    unknown |= any(loss.unreadable or not loss.damage.nbytes for loss in report.losses)
    for vbucket, before, left in zip(bucket.vbuckets, sent, report.remaining, strict=True):
        found = read_rows(vbucket)
        assert (vbucket.history.state, vbucket.changes.items, len(found)) == (left.state, left.documents, left.changes)
        assert (min(found, default=0), vbucket.changes.high_seqno) == (left.first_seqno, left.high_seqno)
        assert all(change in before.ever for change in found.values())
        live = read_newest_changes(vbucket)
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
            missed = before.rows[seqno]
            # With the end of the log, the note of a rollback or a reset may be lost. Then older changes return. They
            # may have higher seqnos than this change, but they never superseded it.
            newer = [
                change.by_seqno
                for change in found.values()
                if change.key == missed.key
                and change.by_seqno > seqno
                and before.ever.index(change) > before.ever.index(missed)
            ]
            if newer and report.found.end is None:  # then no snapshot may end where the lost change was newest
                assert vbucket.index.lowest_snapshot_end >= min(newer)
            assert newer or (unknown and seqno > max(same, default=0))


def check_consumers(vbucket: Vbucket, before: SentHistory, rollback: int | None) -> None:
    """Continue the stream of each possible consumer, and compare its documents with those of the vbucket.

    Args:
        vbucket: the repaired vbucket.
        before: the vbucket before the damage.
        rollback: seqno of the rollback that the report names, None for none.
    """
    there = list_documents(read_newest_changes(vbucket))
    for vbuuid, seqno in list_positions(before):
        point = request_rollback(vbucket, vbuuid, seqno)
        if rollback is not None and seqno > rollback and vbuuid == before.failover_log[0].vbuuid:
            assert point in {0, rollback}
        base = seqno if point is None else point
        if point:  # the consumer sends another request from there
            assert base < seqno
        kept = [change for change in before.history if change.by_seqno <= base]
        received = read_all(vbucket.history.open_snapshot(base, vbucket.changes.high_seqno))
        assert list_documents([*kept, *received]) == there


def list_positions(sent: SentHistory) -> Iterator[tuple[int, int]]:
    """Yield the vbuuid and the seqno of each possible consumer: it may have stopped at any change of any branch."""
    end = max((change.by_seqno for change in sent.history), default=0)
    for entry in sent.failover_log:
        for change in sent.history:
            if change.by_seqno <= end:
                yield entry.vbuuid, change.by_seqno
        end = entry.seqno


def list_documents(changes: list[Change]) -> dict[bytes, Change]:
    last = {change.key: change for change in changes}
    return {key: change for key, change in last.items() if isinstance(change, Mutation)}


@pytest.mark.parametrize("has_inventory", [True, False])
def test_lost_note_of_a_compaction_makes_all_consumers_start_over(place: Place, has_inventory: bool) -> None:
    """The segment lacks a purged tombstone, and only the note in the log names it."""
    bucket = place(segment_bytes=100_000, purge_age=0)
    vbucket = bucket.vbuckets[0]
    vbucket.set(b"a", b"1")
    vbucket.set(b"b", b"1")
    vbucket.delete(b"a")
    vbucket.set(b"c", b"3")
    vbuuid = vbucket.history.vbuuid
    place.now += 10**12
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    compaction = bucket.compactor.next_piece(everything=True)
    assert compaction is not None
    compaction.run()
    assert compaction.finish()
    bucket.log.commits.run()
    assert (vbucket.index.purge_seqno, request_rollback(vbucket, vbuuid, 2)) == (3, 0)
    place.directory.kill()
    last = check_place(place).found.logs[-1]
    (at,) = (at for at, note in last.scanned.notes if b"floors" in note)
    file = place.path / last.name
    file.write_bytes(file.read_bytes()[: at + 5])
    if not has_inventory:
        (place.path / INVENTORY).write_bytes(b"{")
    report = check_place(place)
    assert report.losses
    assert repair_place(place, report)
    assert request_rollback(place().vbuckets[0], vbuuid, 2) == 0
