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

STATES = ("between transactions", "in a transaction", "in a commit")
"""The states by their number in the file."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(text: str) -> None:
    """Kill this process after a number of seconds, also while librdkafka runs."""
    threading.Timer(float(text), kill).start()


def observe(owner: Any, name: str, before: Any, after: Any = int) -> None:
    """Call functions before and after each call of a method."""
    called = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        before()
        result = called(*arguments)
        after()
        return result

    setattr(owner, name, call)


class Killer:
    """Writes the state, and kills the process at the point."""

    def __init__(self, point: str, state: mmap) -> None:
        self._kind, _, self._text = point.partition(":")
        self._state = state
        self._calls, self._commits = count(1), count(1)

    def send(self) -> None:
        self._count_call()
        self._state[0] = 1

    def begin_commit(self) -> None:
        self._count_call()
        self._state[0] = 2
        if next(self._commits) == 2 and self._kind == "commit":
            kill_after(self._text)

    def end_commit(self) -> None:
        self._state[0] = 0

    def write_position(self) -> None:
        if self._kind == "position":
            kill()

    def _count_call(self) -> None:
        number = next(self._calls)
        if self._kind == "timer" and number == 1:
            kill_after(self._text)
        if self._kind == "record" and number == int(self._text):
            kill()


def make_sink(lake: Lake, broker: str, delivery: str) -> kafka_sink.KafkaSink:
    declared = kafka_sink.KafkaKind(
        name="out",
        brokers=(broker,),
        topic=f"beer-{delivery}",
        delivery=delivery,  # type: ignore[arg-type]
        properties={"queue.buffering.max.messages": 50, "linger.ms": 1},
    )
    return declared.open(lake)


def drive(path: str, broker: str, delivery: str, point: str, state: str) -> None:
    kafka_sink.TRANSACTION_BYTES = TRANSACTION_BYTES
    Path(state).write_bytes(b"\0")
    with Path(state).open("r+b") as file:
        killer = Killer(point, mmap(file.fileno(), 1))
    for producer in (TransactionalProducer, FlushedProducer):
        observe(producer, "send", killer.send)
        observe(producer, "commit", killer.begin_commit, killer.end_commit)
    observe(PositionFile, "write", killer.write_position)
    lake = Lake(path)
    sink = make_sink(lake, broker, delivery)
    print("ready", flush=True)
    for _ in sys.stdin:
        catch_up(sink, lake)
        print("sent", flush=True)


if __name__ == "__main__":
    drive(*sys.argv[1:])
