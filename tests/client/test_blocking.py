"""The blocking API: its event loop runs in a thread of its own, and is closed however the caller ends."""

import asyncio
import signal
import subprocess
import sys
import threading
from functools import partial

import pytest

from penstock import connect, read_changes
from penstock.client.blocking import LoopThread
from penstock.client.read_ahead import LentItem
from penstock.errors import Unreachable, UsageError
from penstock.wire.columns.schema import CHANGE_SCHEMA
from tests.client.peer import documents
from tests.patience import PATIENCE
from tests.waiting import pass_turns


@pytest.fixture(autouse=True)
def list_threads():
    """Return a function that lists the names of the threads of this test. Nodes of a session keep their own."""
    earlier = {*threading.enumerate()}

    def list_names():
        found = {thread.name for thread in threading.enumerate() if thread not in earlier}
        return {name for name in found if name.startswith("penstock-")} - {"penstock-task"}  # a worker of Spark

    return list_names


def test_blocking_reader_yields_all_changes(running, list_threads):
    write(running, documents(0, 500))
    batches = list(read_changes(running.url(), stop="now"))
    assert sum(batch.num_rows for batch in batches) == 500
    assert batches[0].schema == CHANGE_SCHEMA
    assert list_threads() == {"penstock-node"}


def write(running, pairs):
    async def upsert():
        async with connect(running.url()) as bucket:
            await bucket.upsert_many(pairs)

    asyncio.run(upsert())


def test_wrong_address_is_reported_at_once():
    with pytest.raises(UsageError, match="port 'x'"):
        read_changes("couchbase://h:x")


def test_closing_the_generator_closes_everything(running, list_threads):
    write(running, documents(0, 500))
    changes = read_changes(running.url())
    assert next(changes).num_rows > 0
    assert list_threads() == {"penstock-node", "penstock-loop"}
    changes.close()
    assert list_threads() == {"penstock-node"}


def test_failing_reader_closes_everything(running, list_threads):
    write(running, documents(0, 500))
    with pytest.raises(ZeroDivisionError):
        [batch.num_rows // 0 for batch in read_changes(running.url())]
    assert list_threads() == {"penstock-node"}


def test_absent_node_is_reported_and_everything_closed(running, list_threads):
    running.stop()
    with pytest.raises(Unreachable):
        next(read_changes(running.url(retrySeconds=0.05)))
    assert list_threads() == set()
    running.start()


def test_ctrl_c_ends_a_wait_and_lets_the_generator_close():
    """The interrupt arrives while an item is awaited. The generator's cleanup then still needs turns of the loop."""
    closed, main = [], threading.get_ident()

    async def items():
        try:
            yield LentItem(1, lambda: None)
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await pass_turns(10)
            closed.append(True)

    with LoopThread() as loop, pytest.raises(KeyboardInterrupt):
        list(loop.iterate(items()))
    assert closed == [True]


def test_leaving_a_loop_thread_cancels_its_tasks(list_threads):
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
    assert list_threads() == set()


def test_an_item_is_given_back_when_the_next_one_is_requested():
    """The loop reads one item ahead, and no more, while the program has one."""
    made: list[int] = []
    returned: list[int] = []

    async def items():
        for number in range(1, 6):
            made.append(number)
            yield LentItem(number, partial(returned.append, number))

    async def settle():
        await pass_turns(10)

    with LoopThread() as loop:
        for number in loop.iterate(items()):
            loop.run(settle())
            assert returned == list(range(1, number))
            assert made == list(range(1, min(number + 1, 5) + 1))
    assert returned == [1, 2, 3, 4, 5]


def test_an_error_arrives_after_the_items_before_it():
    async def items():
        yield LentItem(1, lambda: None)
        yield LentItem(2, lambda: None)
        raise ZeroDivisionError

    with LoopThread() as loop:
        found = loop.iterate(items())
        assert [next(found), next(found)] == [1, 2]
        with pytest.raises(ZeroDivisionError):
            next(found)


def test_a_bucket_larger_than_the_window_is_read_to_its_end(running):
    """The producer stops after a window of bytes without an acknowledgement."""
    write(running, [(f"k{number:05}", bytes(1000)) for number in range(3000)])
    batches = list(read_changes(running.url(flowControlBytes=200_000), stop="now"))
    assert sum(batch.num_rows for batch in batches) == 3000


PROGRAM = """
import sys
import penstock
print(sum(batch.num_rows for batch in penstock.read_changes(sys.argv[1], stop="now")), "pandas" in sys.modules)
"""


UNFINISHED = """
import sys
import penstock
changes = penstock.read_changes(sys.argv[1])
print(next(changes).num_rows > 0)
"""


@pytest.mark.process
def test_program_ends_although_it_has_not_closed_its_generator(running):
    write(running, documents(0, 3))
    command = [sys.executable, "-c", UNFINISHED, running.url()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.process
@pytest.mark.parametrize("count", [3, 3000])
def test_first_batch_does_not_import_pandas(running, count):
    """Arrow imports pandas where it makes an array of Python's objects, which takes half a second."""
    write(running, documents(0, count))
    command = [sys.executable, "-c", PROGRAM, running.url()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr) == (f"{count} False\n", "")
