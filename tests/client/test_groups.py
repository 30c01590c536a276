"""Consumers that share a bucket: parts of living members, of members that come and go, and of fixed shares."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

import penstock
from penstock.client.consumers.commit_policy import BY_HAND, CommitPolicy
from penstock.client.consumers.consumer import Consumer
from penstock.client.documents.document_attributes import AttributeVersion
from penstock.client.groups.group_positions import GroupPositions
from penstock.client.positions.file_positions import FilePositions
from penstock.errors import PositionOfOtherBucket, PositionsUnreadable, UsageError
from penstock.node import Node
from tests.patience import PATIENCE
from tests.waiting import pass_turns, wait_until

VBUCKETS = 16
LEASE = 2 * PATIENCE
"""The lease of members that do not die, however slow the machine is."""


@pytest.fixture
def url():
    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        yield node.url("beer")


def run(url, main):
    async def connected():
        async with asyncio.timeout(PATIENCE), penstock.connect(url) as bucket:
            return await main(bucket)

    return asyncio.run(connected())


def make_keys(first, end):
    return [b"k%05d" % number for number in range(first, end)]


async def write(bucket, first, end):
    await bucket.upsert_many([(key, b"1") for key in make_keys(first, end)])


class Member:
    """A member that reads until it is stopped.

    Attributes:
        keys: the keys that it has processed, with their number.
    """

    def __init__(self, url, *, has_handler=False, **options):
        self._has_handler = has_handler
        self.keys: Counter[bytes] = Counter()
        self.consumer: Consumer | None = None
        self._url = url
        self._options = {"group": "g", "lease_seconds": LEASE, **options}
        self._stop = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self):
        async with (
            penstock.connect(self._url) as bucket,
            Consumer(bucket, **self._options) as consumer,
        ):
            self.consumer = consumer
            reading = asyncio.create_task(self._read(consumer))
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
            await pass_turns(10)  # handlers that have counted their change end meanwhile
            stopping.cancel()
            reading.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)

    async def _read(self, consumer):
        if self._has_handler:
            await consumer.handle(self._handle, concurrency=4)
        async for change in consumer.changes():
            self.keys[change.key] += 1

    async def _handle(self, change):
        await pass_turns(change.seqno % 5)
        self.keys[change.key] += 1

    async def stop(self):
        self._stop.set()
        await self.task

    async def stop_when_open(self):
        await wait_until(lambda: self.consumer is not None, self.task)
        await self.stop()

    @property
    def share(self):
        return set() if self.consumer is None else set(self.consumer.positions)


async def wait_for_shares(*members):
    """Wait until each vbucket has one of the members, and the members have equal parts."""
    sizes = {VBUCKETS // len(members)}
    await wait_until(
        lambda: (
            {len(each.share) for each in members} == sizes
            and set().union(*(each.share for each in members)) == set(range(VBUCKETS))
        ),
        *(each.task for each in members),
    )


async def wait_for_keys(count, *members, running=None):
    await wait_until(
        lambda: len(set().union(*(each.keys for each in members))) == count,
        *(each.task for each in (members if running is None else running)),
    )


def test_member_alone_reads_everything_and_the_next_one_continues(url):
    async def main(bucket):
        await write(bucket, 0, 100)
        first = Member(url)
        await wait_for_keys(100, first)
        await first.stop()
        await write(bucket, 100, 150)
        second = Member(url)
        await wait_for_keys(50, second)
        await second.stop()
        assert set(first.keys.values()) == set(second.keys.values()) == {1}
        assert not first.keys & second.keys

    run(url, main)


@pytest.mark.parametrize("has_handler", [False, True])
def test_members_share_the_vbuckets_without_loss_and_repetition(url, has_handler):
    async def main(bucket):
        await write(bucket, 0, 100)
        members = [Member(url, has_handler=has_handler)]
        await wait_for_keys(100, *members)
        for joined in (2, 4):
            members += [Member(url, has_handler=has_handler) for _ in range(joined - len(members))]
            await write(bucket, 50 * joined, 50 * joined + 100)  # while vbuckets are handed over
            await wait_for_shares(*members)
        await wait_for_keys(300, *members)
        await asyncio.gather(members[0].stop(), members[3].stop())
        await write(bucket, 300, 400)
        await wait_for_keys(400, *members, running=members[1:3])
        await wait_for_shares(*members[1:3])
        assert sum((each.keys for each in members), Counter()) == dict.fromkeys(make_keys(0, 400), 1)
        for member in members[1:3]:
            await member.stop()

    run(url, main)


def test_vbucket_that_was_claimed_by_another_program_is_lost_and_claimed_again(url, caplog):
    """A command that writes the positions fences the member, which then continues at the position of the command."""

    async def main(bucket):
        await write(bucket, 0, 20)
        member = Member(url, commit=CommitPolicy(changes=1))
        await wait_for_keys(20, member)
        positions = GroupPositions(bucket, "g")
        saved = await positions.read()
        assert saved is not None
        await positions.write(replace(saved, by_vbucket={}))
        await write(bucket, 20, 40)
        await wait_until(lambda: member.keys[b"k00000"] == 2 and len(member.keys) == 40, member.task)
        await member.stop()

    run(url, main)
    assert "not committed" in caplog.text


def test_uncommitted_changes_come_again_if_the_caller_commits_by_hand(url):
    async def main(bucket):
        await write(bucket, 0, 20)
        member = Member(url, commit=BY_HAND)
        await wait_for_keys(20, member)
        assert member.consumer is not None
        await member.consumer.commit()
        await member.stop()
        await write(bucket, 20, 30)
        for _ in range(2):
            member = Member(url, commit=BY_HAND)
            await wait_for_keys(10, member)
            await member.stop()
            assert set(member.keys) == set(make_keys(20, 30))

    run(url, main)


def test_start_now_skips_only_the_changes_before_the_group(url):
    async def main(bucket):
        await write(bucket, 0, 20)
        await Member(url, start="now").stop_when_open()
        await write(bucket, 20, 40)
        member = Member(url, start="now")
        await wait_for_keys(20, member)
        await member.stop()
        assert set(member.keys) == set(make_keys(20, 40))

    run(url, main)


def test_group_of_a_deleted_bucket_is_refused(url):
    async def main(bucket):
        await Member(url).stop_when_open()
        positions = GroupPositions(bucket, "g")
        saved = await positions.read()
        assert saved is not None
        await positions.write(replace(saved, uuid="0" * 32))
        with pytest.raises(PositionOfOtherBucket):
            await Member(url).task
        await bucket.attributes.write_many(
            {"_penstock:group:h": AttributeVersion(b'{"penstock_group":2,"members":[],"token":0,"shares":[]}', 0)}
        )
        with pytest.raises(PositionsUnreadable):
            await Member(url, group="h").task

    run(url, main)


def test_a_member_ends_with_the_error_that_ended_its_beats(url, monkeypatch):
    """Any error: a member that no longer beats loses its share, and must not read on as if it had it."""

    async def main(bucket):
        async with Consumer(bucket, group="g", lease_seconds=LEASE) as consumer:

            async def fail(keys):
                raise ZeroDivisionError("a fault of the program")

            monkeypatch.setattr(bucket.attributes, "read_many", fail)
            with pytest.raises(ZeroDivisionError, match=r"^a fault of the program$"):
                async for _ in consumer.changes():
                    pass
            monkeypatch.undo()

    run(url, main)


def test_invalid_sharing_is_refused(url, tmp_path):
    store = FilePositions(tmp_path / "p")

    async def main(bucket):
        for place, options in (
            (None, {}),
            (store, {"group": "g"}),
            (None, {"group": ""}),
            (None, {"group": "g", "stop": "now"}),
            (None, {"group": "g", "vbuckets": [1]}),
            (None, {"group": "g", "share": (0, 2)}),
            (store, {"share": (2, 2)}),
            (store, {"share": (0, 2), "vbuckets": [1]}),
            (None, {"group": "g", "lease_seconds": 0}),
        ):
            with pytest.raises(UsageError):
                Consumer(bucket, place, **options)

    run(url, main)


def test_fixed_shares_have_all_vbuckets_once(url, tmp_path):
    async def main(bucket):
        await write(bucket, 0, 100)
        keys: Counter[bytes | None] = Counter()
        for number in range(3):
            store = FilePositions(tmp_path / str(number))
            async with Consumer(bucket, store, share=(number, 3), stop="now") as consumer:
                async for change in consumer.changes():
                    assert change.vbucket % 3 == number
                    keys[change.key] += 1
        assert len(keys) == 100
        assert set(keys.values()) == {1}

    run(url, main)
