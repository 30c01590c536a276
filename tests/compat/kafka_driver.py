"""A Kafka sink in a process that kills itself: `python -m tests.compat.kafka_driver LAKE BROKER DELIVERY POINT STATE`.

POINT is the moment of the kill:

- `record:N`: before the Nth record or commit.
- `timer:SECONDS`: that long after the first record.
- `commit:SECONDS`: that long after the second commit began.
- `position`: before the position file is written.

STATE is a file of one byte, which always has the present state. For each line of its standard input the program sends
the lake's new changes, and prints a line.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from itertools import count
from mmap import mmap
from pathlib import Path
from typing import Any

from penstock.spark import Lake, catch_up
from penstock.spark.dependents.kafka.record_producer import FlushedProducer, TransactionalProducer
from penstock.spark.dependents.kinds import kafka_sink
from penstock.spark.dependents.position_file import PositionFile

TRANSACTION_BYTES = 4 << 10
"""A transaction ends after so few records that a delta has many."""

SMALL_QUEUE = {"queue.buffering.max.messages": 50, "linger.ms": 1}
"""Properties with which a sink waits for the broker again and again."""

STATES = ("between transactions", "in a transaction", "in a commit")
"""The states by their number in the file."""


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def observe(owner: Any, name: str, before: Callable[..., None], after: Callable[[], object] = int) -> None:
    """Call functions before and after each call of a method; the first with the arguments."""
    called = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        before(*arguments)
        result = called(*arguments)
        after()
        return result

    setattr(owner, name, call)


class Killer:
    """Writes the state, and kills the process at the point."""

    def __init__(self, point: str, state: mmap, kill: Callable[[], None]) -> None:
        self._kind, _, self._text = point.partition(":")
        self._state = state
        self._kill = kill
        self._calls, self._commits = count(1), count(1)

    def send(self, *_: Any) -> None:
        self._count_call()
        self._state[0] = 1

    def begin_commit(self, *_: Any) -> None:
        self._count_call()
        self._state[0] = 2
        if next(self._commits) == 2 and self._kind == "commit":
            self._kill_later()

    def end_commit(self) -> None:
        self._state[0] = 0

    def write_position(self, file: PositionFile, *_: Any) -> None:
        if self._kind == "position" and file.path.parent.name == kafka_sink.DIRECTORY:
            self._kill()

    def _count_call(self) -> None:
        number = next(self._calls)
        if self._kind == "timer" and number == 1:
            self._kill_later()
        if self._kind == "record" and number == int(self._text):
            self._kill()

    def _kill_later(self) -> None:
        """Kill the process after a number of seconds, also while librdkafka runs."""
        threading.Timer(float(self._text), self._kill).start()


def watch_sinks(point: str, state: Path, kill: Callable[[], None]) -> None:
    """Make the Kafka sinks of this process send small transactions, write their state, and end at the point.

    Args:
        point: the moment of the kill; sinks ignore other words.
        state: the file of the state.
        kill: kills the process, and those that end with it.
    """
    kafka_sink.TRANSACTION_BYTES = TRANSACTION_BYTES
    state.write_bytes(b"\0")
    with state.open("r+b") as file:
        killer = Killer(point, mmap(file.fileno(), 1), kill)
    for producer in (TransactionalProducer, FlushedProducer):
        observe(producer, "send", killer.send)
        observe(producer, "commit", killer.begin_commit, killer.end_commit)
    observe(PositionFile, "write", killer.write_position)


def make_sink(lake: Lake, broker: str, delivery: str) -> kafka_sink.KafkaSink:
    declared = kafka_sink.KafkaKind(
        name="out",
        brokers=(broker,),
        topic=f"beer-{delivery}",
        delivery=delivery,  # type: ignore[arg-type]
        properties=SMALL_QUEUE,
    )
    return declared.open(lake)


def drive(path: str, broker: str, delivery: str, point: str, state: str) -> None:
    watch_sinks(point, Path(state), kill_process)
    lake = Lake(path)
    sink = make_sink(lake, broker, delivery)
    print("ready", flush=True)
    for _ in sys.stdin:
        catch_up(sink, lake)
        print("sent", flush=True)


if __name__ == "__main__":
    drive(*sys.argv[1:])
