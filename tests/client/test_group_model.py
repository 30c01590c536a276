"""Groups in virtual time: members pause, die and join at any point between two requests, and their clocks drift.

The members run as they are. The documents are a dictionary with versions, and each request is executed at a moment
that the schedule chooses.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from penstock.client.documents.document_attributes import AttributeVersion
from penstock.client.feeds.stream_position import Position
from penstock.client.groups.group_member import GroupMember
from penstock.client.groups.group_state import decode_state
from penstock.client.positions.saved_positions import SavedPositions, decode_positions
from tests.examples import scaled

VBUCKETS = 5
LEASE = 10.0
STATE = "_penstock:group:g"


class Pending:
    """A request on its way. Awaiting it returns its reply."""

    def __init__(self, run, is_ready=lambda: True):
        self.run = run
        self.is_ready = is_ready

    def __await__(self):
        return (yield self)


class Documents:
    """A bucket's documents, and the changes that were committed in the positions of a group."""

    vbuckets = VBUCKETS

    def __init__(self):
        self.found: dict[str, AttributeVersion] = {}
        self.cas = 0
        self.highs = [0] * VBUCKETS
        self.processed: dict[str, set[tuple[int, int]]] = {}
        self.deliveries: Counter[tuple[int, int]] = Counter()
        self.is_overtaken = False

    @property
    def attributes(self):
        return self

    async def read_many(self, keys):
        return [await Pending(lambda key=key: self.found.get(key)) for key in keys]

    async def write_many(self, items):
        return {key: await Pending(lambda key=key, new=new: self._write(key, new)) for key, new in items.items()}

    replace_many = write_many

    async def remove_many(self, keys):
        for key in keys:
            await Pending(lambda key=key: self.found.pop(key, None))
        return 0

    def _write(self, key, new):
        old = self.found.get(key)
        if (0 if old is None else old.cas) != new.cas:
            return None
        self._check(key, b"" if old is None else old.value, new.value)
        self.cas += 1
        self.found[key] = AttributeVersion(new.value, self.cas)
        return self.cas

    def _check(self, key, old, new):
        """Check a write of a position: its member must have processed exactly the changes since the last position."""
        if ":vbucket:" in key:
            vbucket = int(key.rpartition(":")[2])
            saved = decode_positions(new, key)
            last = decode_positions(old, key) if old else saved
            before = last.by_vbucket[vbucket].seqno if old else 0
            assert saved.notes["token"] >= last.notes["token"]
            after = saved.by_vbucket[vbucket].seqno
            assert after >= before
            assert {(vbucket, seqno) for seqno in range(before + 1, after + 1)} <= self.processed[saved.notes["member"]]
        elif key == STATE and old:
            gone = {*decode_state(old, VBUCKETS, "").members} - {*decode_state(new, VBUCKETS, "").members}
            self.is_overtaken |= bool(gone)


class Process:
    """A member and its program, which beats, reads, commits and changes its share."""

    def __init__(self, documents, name, rate):
        self.documents = documents
        self.member = GroupMember(documents, "g", name, LEASE)
        self.name = name
        self.rate = rate
        self.positions: dict[int, int] = {}
        self.processed = documents.processed.setdefault(name, set())
        self.is_beating = False
        self.has_left = False
        self.now = 0.0
        self.work: dict[str, tuple[object, Pending]] = {}

    def begin(self, kind, now):
        self.now = now * self.rate
        if kind not in self.work:
            self._advance(kind, getattr(self, kind)(), None)

    def can_step(self, kind):
        return kind in self.work and self.work[kind][1].is_ready()

    def step(self, kind):
        """Execute the request of a kind of work."""
        coroutine, pending = self.work.pop(kind)
        self._advance(kind, coroutine, pending.run())

    def _advance(self, kind, coroutine, reply):
        with suppress(StopIteration):
            self.work[kind] = (coroutine, coroutine.send(reply))

    async def beat(self):
        await Pending(lambda: None, lambda: not self.is_beating)
        self.is_beating = True
        await self.member.beat(self.now)
        self.is_beating = False

    async def change_share(self):
        await self.commit()
        positions, self.positions = self.positions, {}
        self.member.drop_lost()
        await self.beat()
        claimed = await self.member.claim(self._find_start)
        new = {} if claimed is None else {vb: each.seqno for vb, each in claimed.by_vbucket.items()}
        self.positions = {vb: new[vb] if vb in new else positions[vb] for vb in self.member.held}

    async def commit(self):
        await self.member.commit(make_saved(self.positions))

    async def leave(self):
        await self.commit()
        self.positions = {}
        await Pending(lambda: None, lambda: not self.is_beating)
        self.is_beating = True  # for good: it beats no more
        await self.member.leave()
        self.has_left = True

    async def _find_start(self, saved, absent):
        return saved or make_saved({})

    def read(self):
        """Process the next change of each vbucket that the program reads."""
        for vbucket, seqno in self.positions.items():
            if seqno < self.documents.highs[vbucket]:
                self.positions[vbucket] = seqno + 1
                self.processed.add((vbucket, seqno + 1))
                self.documents.deliveries[vbucket, seqno + 1] += 1

    def is_changing(self):
        """Whether the caller waits: no change is processed during a commit or a hand-over."""
        return bool({"change_share", "commit", "leave"} & self.work.keys())

    def has_changed_share(self):
        return self.member.has_changes and not {"change_share", "leave"} & self.work.keys()


def make_saved(seqnos):
    by_vbucket = {vb: Position(seqno=each, vbuuid=1, snap_start=each, snap_end=each) for vb, each in seqnos.items()}
    return SavedPositions(bucket="b", uuid="u", vbuckets=VBUCKETS, by_vbucket=by_vbucket)


KINDS = ("beat", "change_share", "commit", "leave")
picks = st.integers(0, 99)


class Groups(RuleBasedStateMachine):
    @initialize(is_calm=st.booleans())
    def start(self, is_calm):
        self.is_calm = is_calm  # no member dies or pauses, so nothing may arrive twice
        self.documents = Documents()
        self.now = 0.0
        self.living: list[Process] = []
        self.stray: list[Pending] = []
        self.names = 0
        self.died = False

    def pick(self, number):
        return self.living[number % len(self.living)]

    @precondition(lambda self: len(self.living) < 4)
    @rule(rate=st.sampled_from([0.7, 1.0, 1.4]))
    def join(self, rate):
        self.names += 1
        process = Process(self.documents, f"m{self.names}", rate)
        self.living.append(process)
        process.begin("beat", self.now)

    @rule(vbucket=st.integers(0, VBUCKETS - 1), count=st.integers(1, 3))
    def write(self, vbucket, count):
        self.documents.highs[vbucket] += count

    @precondition(lambda self: self.living)
    @rule(number=picks, kind=st.sampled_from(KINDS), steps=st.integers(1, 30))
    def step(self, number, kind, steps):
        process = self.pick(number)
        for _ in range(steps):
            if process.can_step(kind):
                process.step(kind)
        self.living = [each for each in self.living if not each.has_left]

    @precondition(lambda self: self.living)
    @rule(number=picks, kind=st.sampled_from(["beat", "commit", "change_share"]))
    def begin(self, number, kind):
        process = self.pick(number)
        # A program changes its share between two commits, and only if there is a change.
        if kind == "beat" or (not process.is_changing() and (kind == "commit" or process.member.has_changes)):
            process.begin(kind, self.now)

    @precondition(lambda self: self.living)
    @rule(number=picks)
    def read(self, number):
        process = self.pick(number)
        if not process.is_changing():
            process.read()

    @precondition(lambda self: self.living)
    @rule(number=picks)
    def leave(self, number):
        process = self.pick(number)
        if not process.work and not process.is_beating:
            process.begin("leave", self.now)

    @precondition(lambda self: self.living and not self.is_calm)
    @rule(number=picks)
    def die(self, number):
        process = self.pick(number)
        self.living.remove(process)
        self.died = True
        self.stray += [pending for _, pending in process.work.values()]  # they may still reach the server
        for coroutine, _ in process.work.values():
            coroutine.close()

    @precondition(lambda self: self.stray)
    @rule(number=picks)
    def arrive_late(self, number):
        self.stray.pop(number % len(self.stray)).run()

    @rule(seconds=st.sampled_from([1.0, 3.0, 4.0, 12.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @precondition(lambda self: not self.is_calm)
    @rule()
    def remove_group(self):
        """Lose the shares and their tokens: the claims of the positions still fence."""
        self.documents.is_overtaken |= self.documents.found.pop(STATE, None) is not None

    @precondition(lambda self: self.living)
    @rule(rounds=st.integers(1, 12), number=picks, kinds=st.sampled_from([KINDS, ("beat",), ()]))
    def run_rounds(self, rounds, number, kinds):
        """Let the members work. One of them may be busy, so that it only beats, or paused."""
        slow = self.pick(number)
        for _ in range(rounds):
            self.run_round({slow.name: kinds or (("beat",) if self.is_calm else ())})

    def run_round(self, limited=None):
        """Let all members do their due work, in turns of one request."""
        self.now += LEASE / 8
        kinds = {each: (limited or {}).get(each.name, KINDS) for each in self.living}
        for process in self.living:
            if "beat" in kinds[process]:
                process.begin("beat", self.now)
            if "change_share" in kinds[process] and process.has_changed_share() and "commit" not in process.work:
                process.begin("change_share", self.now)
        while ready := [(each, kind) for each in self.living for kind in kinds[each] if each.can_step(kind)]:
            for process, kind in ready:
                if process.can_step(kind):
                    process.step(kind)
        self.living = [each for each in self.living if not each.has_left]
        for process in self.living:
            if not process.is_changing() and "beat" in kinds[process]:
                process.read()

    def teardown(self):
        if not hasattr(self, "living"):
            return
        if all("leave" in each.work for each in self.living):
            self.join(rate=1.0)  # no other member stays to take over
        for _ in range(60):
            self.run_round()
        for _ in range(max(self.documents.highs)):
            self.run_round()
        for process in self.living:
            process.begin("commit", self.now)
        self.run_round()
        shares = [sorted(each.member.held) for each in self.living]
        assert sorted(vb for share in shares for vb in share) == list(range(VBUCKETS))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        for process in self.living:
            assert process.positions == {vb: self.documents.highs[vb] for vb in process.member.held}
        everything = {(vb, seqno) for vb, high in enumerate(self.documents.highs) for seqno in range(1, high + 1)}
        assert self.documents.deliveries.keys() == everything
        if not (self.died or self.documents.is_overtaken):
            assert set(self.documents.deliveries.values()) <= {1}


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=scaled(300), stateful_step_count=40)


@pytest.mark.parametrize("go", [Groups.die, Groups.leave])
def test_a_new_member_takes_over_from_a_group_that_all_members_left(go):
    groups = Groups()
    groups.start(is_calm=False)
    groups.join(rate=0.7)
    groups.join(rate=0.7)
    groups.write(vbucket=0, count=3)
    groups.run_rounds(kinds=KINDS, number=0, rounds=1)
    groups.leave(number=0)
    go(groups, number=1)
    groups.teardown()
    assert [each.name for each in groups.living] == ["m3"]
