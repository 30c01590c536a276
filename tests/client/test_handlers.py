"""Handlers of a consumer: every change once for each commit, order, back-pressure, retries and dead letters."""

import asyncio
import json
import threading
from collections import defaultdict

import pytest

import penstock
from penstock import BY_HAND, CommitPolicy, Consumer, DeadLetter, DeadLetterLog, FilePositions, HandlerRetry
from penstock.errors import UsageError
from penstock.node import Node
from tests.patience import PATIENCE
from tests.waiting import pass_turns, wait_until

AT_ONCE = HandlerRetry(attempts=3, first_seconds=0)


@pytest.fixture
def url():
    with Node.running(["beer"], vbuckets=4) as node:
        yield node.url("beer")


@pytest.fixture
def store(tmp_path):
    return FilePositions(tmp_path / "positions.json")


def run(url, main):
    async def connected():
        async with penstock.connect(url) as bucket, asyncio.timeout(PATIENCE):
            return await main(bucket)

    return asyncio.run(connected())


async def write(bucket, first, end):
    await bucket.upsert_many([(f"k{number:05}", b"1") for number in range(first, end)])


async def handle_rest(bucket, store, handler, *, commit=None, **options):
    async with Consumer(bucket, store, stop="now", commit=commit) as consumer:
        await consumer.handle(handler, **options)


async def read_rest(bucket, store):
    async with Consumer(bucket, store, stop="now", commit=BY_HAND) as consumer:
        return [change.key async for change in consumer.changes()]


def test_all_changes_are_handled_in_order_of_each_document(url, store):
    async def main(bucket):
        for _ in range(3):
            await write(bucket, 0, 40)
        seen, running, most = defaultdict(list), set(), 0

        async def handler(change):
            nonlocal most
            assert change.key not in running
            running.add(change.key)
            most = max(most, len(running))
            await pass_turns(1 + change.seqno % 3)
            running.remove(change.key)
            seen[change.key].append(change.seqno)

        async with Consumer(bucket, store) as consumer:
            handling = asyncio.ensure_future(consumer.handle(handler, concurrency=5))
            for _ in range(3):
                await write(bucket, 0, 40)
            highs = await bucket.high_seqnos()
            await wait_until(lambda: {vb: consumer.positions[vb].seqno for vb in highs} == highs, handling)
            handling.cancel()
            await asyncio.wait([handling])
        assert len(seen) == 40
        assert all(seqnos == sorted(set(seqnos)) for seqnos in seen.values())
        assert most == 5
        assert await read_rest(bucket, store) == []

    run(url, main)


def test_commit_contains_nothing_after_an_unfinished_change(url, store):
    """A handler that hangs holds the commit back, although later changes are finished."""

    async def main(bucket):
        await write(bucket, 0, 60)
        seen, others = [], asyncio.Event()

        async def handler(change):
            seen.append(change.key)
            if len(seen) == 20:
                await others.wait()
                raise ZeroDivisionError
            if len(seen) == 60:
                others.set()

        with pytest.raises(ZeroDivisionError):
            await handle_rest(bucket, store, handler, commit=CommitPolicy(changes=1), retry=HandlerRetry(attempts=1))
        rest = await read_rest(bucket, store)
        assert sorted(rest) == sorted(seen[19:])

    run(url, main)


@pytest.mark.parametrize("is_async", [True, False])
def test_failed_change_is_tried_again_and_then_becomes_a_dead_letter(url, store, tmp_path, is_async):
    async def main(bucket):
        await bucket.upsert_many([("good", b"1"), ("late", b"2"), ("bad", b"\xff")])
        calls: defaultdict[bytes, int] = defaultdict(int)

        def handle(change):
            calls[change.key] += 1
            if change.key == b"bad" or (change.key == b"late" and calls[change.key] < 3):
                raise ValueError("no such beer")

        async def handle_async(change):
            handle(change)

        letters = DeadLetterLog(tmp_path / "dead.jsonl")
        handler = handle_async if is_async else handle
        await handle_rest(bucket, store, handler, retry=AT_ONCE, dead_letters=letters)
        assert calls == {b"good": 1, b"late": 3, b"bad": 3}
        (line,) = (tmp_path / "dead.jsonl").read_text().splitlines()
        letter = json.loads(line)
        assert (letter["key"], letter["value_base64"]) == ("bad", "/w==")
        assert (letter["error"], letter["attempts"]) == ("ValueError: no such beer", 3)
        assert await read_rest(bucket, store) == []

    run(url, main)


def test_later_call_goes_on_at_the_oldest_unfinished_change(url, store):
    """A failed handler leaves changes unfinished that the consumer has already received."""

    async def main(bucket):
        await write(bucket, 0, 400)
        seen: defaultdict[bytes, int] = defaultdict(int)

        async def handler(change):
            await pass_turns(change.seqno % 3)
            seen[change.key] += 1
            if change.key == b"k00100" and seen[change.key] == 1:
                raise ZeroDivisionError

        async with Consumer(bucket, store, stop="now") as consumer:
            with pytest.raises(ZeroDivisionError):
                await consumer.handle(handler, concurrency=4, retry=HandlerRetry(attempts=1))
            seqnos = {vbucket: position.seqno for vbucket, position in consumer.positions.items()}
            await consumer.handle(handler, concurrency=4)
        assert len(seen) == 400
        assert sum(seqnos.values()) < sum(seen.values()) <= sum(seqnos.values()) + 400
        assert seen[b"k00100"] == 2
        assert await read_rest(bucket, store) == []

    run(url, main)


def test_handler_that_awaits_something_cancelled_fails(url, store):
    async def main(bucket):
        await write(bucket, 0, 1)
        letters: list[DeadLetter] = []

        async def handler(change):
            waiting = asyncio.get_running_loop().create_future()
            waiting.cancel()
            await waiting

        await handle_rest(bucket, store, handler, retry=AT_ONCE, dead_letters=letters.append)
        (letter,) = letters
        assert letter.attempts == 3
        assert isinstance(letter.error.__cause__, asyncio.CancelledError)

    run(url, main)


def test_dead_letter_that_cannot_be_kept_ends_the_call(url, store, tmp_path):
    async def main(bucket):
        await write(bucket, 0, 1)

        def handler(change):
            raise ValueError

        with pytest.raises(penstock.Error, match="cannot be written"):
            await handle_rest(bucket, store, handler, retry=AT_ONCE, dead_letters=DeadLetterLog(tmp_path))
        assert await read_rest(bucket, store) == [b"k00000"]

    run(url, main)


def test_plain_functions_run_beside_each_other_and_not_on_the_loop(url, store):
    async def main(bucket):
        await write(bucket, 0, 2)
        barrier = threading.Barrier(2)

        def handler(change):
            barrier.wait(PATIENCE)

        await handle_rest(bucket, store, handler, concurrency=2)

    run(url, main)


def test_slow_handler_holds_the_producer_back(url, store):
    """The consumer takes no more than the window while a handler is busy, and all changes arrive afterwards."""
    window, value = 100_000, bytes(1000)

    async def main(bucket):
        await bucket.upsert_many([(f"k{number:05}", value) for number in range(2000)])
        is_open, handled = asyncio.Event(), 0

        async def handler(change):
            nonlocal handled
            await is_open.wait()
            handled += 1

        async with Consumer(bucket, store, stop="now") as consumer:
            handling = asyncio.ensure_future(consumer.handle(handler))
            while not (unacked := await find_unacked(bucket)) >= window:
                assert not handling.done()
                await asyncio.sleep(0.01)
            assert unacked < window + 10 * len(value)
            is_open.set()
            await handling
        assert handled == 2000

    async def find_unacked(bucket):
        stats = await bucket.stats("dcp")
        return max([int(value) for name, value in stats.items() if name.endswith(":unacked_bytes")], default=0)

    run(f"{url}?flowControlBytes={window}", main)


def test_own_documents_are_not_handled(url):
    async def main(bucket):
        store = penstock.DocumentPositions(bucket, "indexer")
        await write(bucket, 0, 3)
        seen = []
        for _ in range(2):
            await handle_rest(bucket, store, lambda change: seen.append(change.key))
        assert sorted(seen) == [b"k00000", b"k00001", b"k00002"]

    run(url, main)


def test_handling_needs_room_for_one_handler(url, store):
    with pytest.raises(UsageError, match="concurrency is 0"):
        run(url, lambda bucket: handle_rest(bucket, store, print, concurrency=0))
