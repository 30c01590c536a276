"""Selected collections that are dropped and created again: streams follow the names, without a loss or a repetition."""

import asyncio
from contextlib import aclosing, suppress
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Node
from penstock.client.consumers.consumer import Consumer
from penstock.client.positions.file_positions import FilePositions
from penstock.errors import KeyNotFound, NoSuchCollection, UnknownCollection
from penstock.wire.columns.schema import Event
from tests.client.peer import in_loop
from tests.client.restarting import InterruptingServer
from tests.client.test_collections import change
from tests.examples import scaled
from tests.patience import PATIENCE
from tests.waiting import pass_turns, wait_until

VBUCKETS = 4
NAMES = ["s.c", "s.d"]
MANY = 100


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        change(node, lambda manifest: manifest.with_scope("s"))
        create(node, "c", "d")
        yield node


@pytest.fixture
def store(tmp_path):
    return FilePositions(tmp_path / "positions.json")


def create(node, *names):
    for name in names:
        change(node, lambda manifest, name=name: manifest.with_collection("s", name))


def drop(node, *names):
    for name in names:
        change(node, lambda manifest, name=name: manifest.without_collection("s", name))


async def write(bucket, collection, *keys):
    await bucket.upsert_many([(key, b"1") for key in keys], collection=collection)


def name_keys(prefix, count=MANY):
    return [f"{prefix}{number}" for number in range(count)]


async def read_until(changes, *expected):
    """Return the keys that arrive up to the last of the expected ones, in their order."""
    found: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while not {*expected} <= {*found}:
            row = await anext(changes)
            found += [row.key.decode()] if row.key else []
    return found


@in_loop
async def test_later_collection_of_the_same_name_is_followed(node, store):
    async with penstock.connect(node.url("beer")) as bucket:
        async with Consumer(bucket, store, collections=NAMES) as consumer, aclosing(consumer.changes()) as changes:
            await write(bucket, "s.c", "old")
            assert await read_until(changes, "old") == ["old"]
            drop(node, "c")
            create(node, "c", "other")
            await write(bucket, "s.c", *name_keys("new"))
            await write(bucket, "s.other", *name_keys("other"))
            await write(bucket, "s.d", *name_keys("d"))
            expected = [*name_keys("new"), *name_keys("d")]
            assert sorted(await read_until(changes, *expected)) == sorted(expected)
            await consumer.commit()
        async with Consumer(bucket, store, stop="now", collections=NAMES) as consumer:
            assert [row.key async for row in consumer.changes()] == []


@pytest.mark.parametrize("selected", [{"collections": ["s.c"]}, {"scope": "s"}])
@in_loop
async def test_endless_stream_waits_until_the_selected_part_exists_again(node, selected, caplog):
    async with (
        penstock.connect(node.url("beer")) as bucket,
        await bucket.stream("now", **selected) as stream,
        aclosing(stream.changes()) as changes,
    ):
        coming = asyncio.create_task(anext(changes))
        await wait_until(lambda: stream.is_connected, coming)
        change(node, lambda manifest: manifest.without_scope("s"))
        assert (await coming).event in (Event.END_COLLECTION, Event.DROP_SCOPE)
        keys = asyncio.create_task(read_until(changes, "new"))
        await wait_until(lambda: "reads it as soon as it exists" in caplog.text, keys)
        await write(bucket, "_default", *name_keys("unselected"))
        change(node, lambda manifest: manifest.with_scope("s").with_collection("s", "c"))
        await write(bucket, "s.c", "new")
        assert await keys == ["new"]
        assert not stream.missing


@in_loop
async def test_reconnection_goes_on_without_a_dropped_collection(node):
    async with (
        penstock.connect(node.url("beer")) as bucket,
        await bucket.stream(collections=NAMES) as stream,
        aclosing(stream.changes()) as changes,
    ):
        await write(bucket, "s.d", "first")
        await read_until(changes, "first")
        drop(node, "c")
        await bucket.close_streams(stream.counts.connection_name)
        await write(bucket, "s.d", "second")
        assert await read_until(changes, "second") == ["second"]
        create(node, "c")
        await write(bucket, "s.c", "third")
        assert await read_until(changes, "third") == ["third"]


@pytest.mark.parametrize("is_there", [True, False])
@in_loop
async def test_saved_positions_continue_over_a_recreated_collection(node, store, is_there):
    async with penstock.connect(node.url("beer")) as bucket:
        await write(bucket, "s.c", *name_keys("old"))
        async with Consumer(bucket, store, stop="now", collections=NAMES) as consumer:
            assert len([row async for row in consumer.changes() if row.key]) == MANY
        drop(node, "c")
        create(node, *["c"] * is_there)
        await write(bucket, "s.d", *name_keys("d"))
        async with Consumer(bucket, store, collections=NAMES) as consumer, aclosing(consumer.changes()) as changes:
            assert sorted(await read_until(changes, *name_keys("d"))) == sorted(name_keys("d"))
            create(node, *["c"] * (not is_there))
            await write(bucket, "s.c", *name_keys("new"))
            assert sorted(await read_until(changes, *name_keys("new"))) == sorted(name_keys("new"))
        with pytest.raises(NoSuchCollection, match=r"has no collection 's\.never'"):
            await bucket.stream(collections=["s.never"])


@pytest.mark.parametrize("dropped", [["c"], ["c", "d"]])
@in_loop
async def test_collection_is_dropped_before_the_stream_request(node, store, dropped):
    """The stream has the ids of the names, and they no longer exist when the node gets its first request."""
    with InterruptingServer(node) as server:
        async with penstock.connect(node.url("beer")) as bucket:
            for name in NAMES:
                await write(bucket, name, f"{name}-old")

            def interrupt():
                drop(node, *dropped)
                create(node, *dropped)

            server.interrupt = interrupt
            async with (
                penstock.connect(server.url()) as follower,
                Consumer(follower, store, collections=NAMES) as consumer,
                aclosing(consumer.changes()) as changes,
            ):
                coming = asyncio.create_task(read_until(changes, "s.c-new", "s.d-new"))
                await wait_until(lambda: server.interrupt is None, coming)
                for name in NAMES:
                    await write(bucket, name, f"{name}-new")
                kept = [] if "d" in dropped else ["s.d-old"]
                assert sorted(await coming) == sorted(["s.c-new", "s.d-new", *kept])
                await consumer.commit()
            server.interrupt = interrupt
            found = {row.key async for row in bucket.changes(stop="now", collections=NAMES) if row.key}
            assert found == {b"s.c-new", b"s.d-new", *[key.encode() for key in kept]}


@pytest.mark.parametrize("is_group", [False, True])
@in_loop
async def test_start_at_positions_waits_for_a_dropped_collection(node, store, is_group):
    """Also at positions that have not passed any change, and each time that the share of a member changes."""
    place = {"group": "g"} if is_group else {"store": store}
    async with penstock.connect(node.url("beer")) as bucket:
        async with Consumer(bucket, **place, collections=NAMES) as consumer:
            await consumer.commit()
        drop(node, "c")
        async with Consumer(bucket, **place, collections=NAMES) as consumer, aclosing(consumer.changes()) as changes:
            await write(bucket, "s.d", "d")
            assert await read_until(changes, "d") == ["d"]
            create(node, "c")
            await write(bucket, "s.c", "new")
            assert await read_until(changes, "new") == ["new"]


@in_loop
async def test_first_start_of_a_group_needs_the_collections(node):
    async with penstock.connect(node.url("beer")) as bucket:
        with pytest.raises(NoSuchCollection, match=r"has no collection 's\.never'"):
            await Consumer(bucket, group="g", collections=["s.never"]).open()


@in_loop
async def test_write_waits_for_a_collection_that_is_created_again(node):
    """Its name is unknown for a moment. A name that never had an id is an error at once."""
    url = f"{node.url('beer')}?operationTimeout={PATIENCE:g}"
    async with penstock.connect(url) as bucket:
        await write(bucket, "s.c", "old")
        drop(node, "c")
        writing = asyncio.create_task(write(bucket, "s.c", "new"))
        await pass_turns(50)
        assert not writing.done()
        create(node, "c")
        await writing
        assert (await bucket.get("new", collection="s.c")).value == b"1"
        with pytest.raises(UnknownCollection):
            await write(bucket, "s.never", "new")


# Any schedule

STEPS = ("toggle", "write", "settle", "reconnect", "restart")


class Schedule:
    """Takes steps against a node while a consumer follows the collections `c` and `d` of a scope.

    Attributes:
        required: keys that must arrive: their collection was not dropped after they were written.
        found: keys that have arrived.
    """

    def __init__(self, node, bucket, store, scope):
        self._node, self._bucket, self._store, self._scope = node, bucket, store, scope
        self._written = count()
        self._in_c: set[str] = set()
        self._has_c = True
        self.required: set[str] = set()
        self.found: list[str] = []
        change(
            node, lambda manifest: manifest.with_scope(scope).with_collection(scope, "c").with_collection(scope, "d")
        )
        change(node, lambda manifest: manifest.with_collection(scope, "other"))

    def _make_consumer(self, stop=None):
        names = [f"{self._scope}.c", f"{self._scope}.d"]
        return Consumer(self._bucket, self._store, stop=stop, collections=names)

    async def _read(self):
        async for row in self._consumer.changes():
            self.found += [row.key.decode()] if row.key else []

    async def follow(self, steps):
        """Take steps, and end the consumer after each step `restart`, and after the last step."""
        parts: list[list[str]] = [[]]
        for step in steps:
            if step == "restart":
                parts.append([])
            else:
                parts[-1].append(step)
        for part in parts:
            async with self._make_consumer() as self._consumer:
                self._reading = asyncio.create_task(self._read())
                for step in part:
                    await getattr(self, step)()
                await self.settle()
                self._reading.cancel()
                await asyncio.gather(self._reading, return_exceptions=True)
                await self._consumer.commit()

    async def read_rest(self):
        async with self._make_consumer("now") as self._consumer:
            await self._read()

    # steps

    async def toggle(self):
        """Drop `c`, or create it again."""
        scope, self._has_c = self._scope, not self._has_c
        if self._has_c:
            change(self._node, lambda manifest: manifest.with_collection(scope, "c"))
        else:
            change(self._node, lambda manifest: manifest.without_collection(scope, "c"))
            self.required -= self._in_c

    async def write(self):
        for name in ("c", "other", "d") if self._has_c else ("other", "d"):
            keys = {f"{name}{next(self._written)}" for _ in range(5)}
            await write(self._bucket, f"{self._scope}.{name}", *keys)
            self.required |= keys if name != "other" else set()
            self._in_c |= keys if name == "c" else set()

    async def settle(self):
        await self.write()
        await wait_until(lambda: self.required <= {*self.found}, self._reading)

    async def reconnect(self):
        with suppress(KeyNotFound):  # the stream has no connection at this moment
            await self._bucket.close_streams((await self._consumer.report()).counts.connection_name)


@pytest.fixture(scope="module")
def shared_node():
    with Node.running(["beer"], vbuckets=2) as node:
        yield node


@settings(max_examples=scaled(32), deadline=None)
@given(steps=st.lists(st.sampled_from(STEPS), min_size=4, max_size=9))
def test_no_schedule_loses_or_repeats_a_change(shared_node, tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("schedule")

    async def main():
        async with penstock.connect(shared_node.url("beer")) as bucket:
            schedule = Schedule(shared_node, bucket, FilePositions(path / "positions.json"), path.name)
            await schedule.follow(["settle", "restart", *steps])  # a consumer needs all its collections to start once
            await schedule.read_rest()
            return schedule

    schedule = asyncio.run(main())
    assert schedule.required <= {*schedule.found}
    assert len({*schedule.found}) == len(schedule.found)
    assert not [key for key in schedule.found if key.startswith("other")]
