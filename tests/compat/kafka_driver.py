"""A Kafka sink in a process that kills itself: `python -m tests.compat.kafka_driver LAKE BROKER DELIVERY POINT`.

POINT is `record:N`, before the Nth record or commit; `timer:SECONDS`, that long after the first record; or `position`,
before the position file is written. For each line of its standard input the program sends the lake's new changes, and
prints a line.
"""

import os
import signal
import sys
from itertools import count
from typing import Any

from penstock.spark import Lake, catch_up
from penstock.spark.dependents.kafka.record_producer import FlushedProducer, TransactionalProducer
from penstock.spark.dependents.kinds import kafka_sink
from penstock.spark.dependents.position_file import PositionFile

TRANSACTION_BYTES = 4 << 10
"""A transaction ends after so few records that a delta has many."""


def kill_before(owner: Any, name: str, is_now: Any) -> None:
    """Kill this process at a call of a method for which `is_now` returns true."""
    called = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        if is_now():
            os.kill(os.getpid(), signal.SIGKILL)
        return called(*arguments)

    setattr(owner, name, call)


def make_killer(point: str) -> Any:
    """Return a function that returns true at the point, and at each call sets the timer if there is one."""
    kind, _, text = point.partition(":")
    calls = count(1)

    def is_now() -> bool:
        number = next(calls)
        if kind == "timer" and number == 1:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, float(text))
        return kind == "record" and number == int(text)

    return is_now


def make_sink(lake: Lake, broker: str, delivery: str) -> kafka_sink.KafkaSink:
    declared = kafka_sink.KafkaKind(
        name="out",
        brokers=(broker,),
        topic=f"beer-{delivery}",
        delivery=delivery,  # type: ignore[arg-type]
        properties={"queue.buffering.max.messages": 50, "linger.ms": 1},
    )
    return declared.open(lake)


def drive(path: str, broker: str, delivery: str, point: str) -> None:
    kafka_sink.TRANSACTION_BYTES = TRANSACTION_BYTES
    is_now = make_killer(point)
    for producer in (TransactionalProducer, FlushedProducer):
        for name in ("send", "commit"):
            kill_before(producer, name, is_now)
    if point == "position":
        kill_before(PositionFile, "write", lambda: True)
    lake = Lake(path)
    sink = make_sink(lake, broker, delivery)
    print("ready", flush=True)
    for _ in sys.stdin:
        catch_up(sink, lake)
        print("sent", flush=True)


if __name__ == "__main__":
    drive(*sys.argv[1:])
