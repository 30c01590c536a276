"""The blocking front: a loop in a thread of its own, which nothing that happens to its caller leaves behind."""

import asyncio
import signal
import threading

import pytest

from penstock import connect, read_changes
from penstock.client.blocking import LoopThread
from penstock.errors import Unreachable, UsageError
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.client.peer import documents


def threads():
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-")}


def test_blocking_changes(running):
    write(running, documents(0, 500))
    batches = list(read_changes(running.url(), stop="now"))
    assert sum(batch.num_rows for batch in batches) == 500
    assert batches[0].schema == CHANGE_SCHEMA
    assert threads() == {"penstock-node"}


def write(running, some):
    async def upsert():
        async with connect(running.url()) as bucket:
            await bucket.upsert_many(some)

    asyncio.run(upsert())


def test_blocking_changes_of_a_wrong_address_are_said_at_once():
    with pytest.raises(UsageError, match="port 'x'"):
        read_changes("couchbase://h:x")


def test_blocking_changes_that_are_left_close_everything(running):
    write(running, documents(0, 500))
    changes = read_changes(running.url())
    assert next(changes).num_rows > 0
    assert threads() == {"penstock-node", "penstock-loop"}
    changes.close()
    assert threads() == {"penstock-node"}


def test_blocking_changes_whose_reader_fails_close_everything(running):
    write(running, documents(0, 500))
    with pytest.raises(ZeroDivisionError):
        [batch.num_rows // 0 for batch in read_changes(running.url())]
    assert threads() == {"penstock-node"}


def test_blocking_changes_of_a_node_that_is_not_there(running):
    running.stop()
    with pytest.raises(Unreachable):
        next(read_changes(running.url(retrySeconds=0.05)))
    assert threads() == set()
    running.start()


def test_ctrl_c_ends_a_wait_and_lets_the_generator_close():
    """It comes while an item is awaited; what the generator does then takes turns of the loop of its own."""
    closed, main = [], threading.get_ident()

    async def items():
        try:
            yield 1
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            closed.append(True)

    with LoopThread() as loop, pytest.raises(KeyboardInterrupt):
        list(loop.iterate(items()))
    assert closed == [True]


def test_leaving_a_loop_thread_cancels_what_runs_there():
    cancelled = threading.Event()

    async def waiting():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def nothing():
        pass

    with LoopThread() as loop:
        loop.start(waiting())
        loop.run(nothing())
    assert cancelled.is_set()
    assert threads() == set()
