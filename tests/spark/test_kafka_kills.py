"""Kill drivers of a pipeline with a Kafka sink: the topic has each change once, and its documents equal the bucket."""

import json
import random
import sys
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.compat.kafka_broker import KafkaBroker, MergedEvents, read_values
from tests.compat.kafka_driver import SMALL_QUEUE, STATES
from tests.spark.buckets import check_changelog
from tests.spark.driver import STATE_SUFFIX
from tests.spark.test_kills import (
    Pipeline,
    catch_up,
    check,
    check_dependents,
    kill_at,
    list_numbers,
    lose_newest,
    pipeline,
    running_driver,
    store_first_documents,
)

__all__ = ["pipeline"]  # a fixture

KILLS, CHECKED_KILLS = 100, 25
"""Kills of the long test, at least half of them inside transactions; and kills after which the topic is checked."""
LONGEST_DELAY = 0.3
"""Seconds from the first record of a transaction to the latest kill."""

SINK = """
[[sink]]
kind = "kafka"
name = "events"
brokers = ["{broker}"]
topic = "beer"
properties = {{{properties}}}
"""


@pytest.fixture
def broker(pipeline, tmp_path):
    """A broker, to which the pipeline has a Kafka sink."""
    with KafkaBroker.running(tmp_path) as broker:
        properties = ", ".join(f'"{name}" = {value}' for name, value in SMALL_QUEUE.items())
        pipeline.file.write_text(pipeline.file.read_text() + SINK.format(broker=broker.address, properties=properties))
        yield broker


def choose_point(chance: random.Random, number: int) -> str:
    """Return where the driver kills itself, or "never": each kind of place in turn."""
    points = (
        f"commit:{chance.random() / 100}",
        "sent",
        f"record:{chance.randrange(1, 400)}",
        "never",
        "position",
        f"timer:{chance.random() / 20}",
    )
    return points[number % len(points)]


def kill_while_sending(pipeline: Pipeline, phase: int) -> None:
    """Kill a driver a random time after its sink began to send the changes of a batch."""
    chance = random.Random(phase)
    commits = pipeline.lake.checkpoint / "commits"
    target = max(list_numbers(commits), default=-1) + chance.choice([1, 2, 3])
    with running_driver(pipeline, phase) as driver:
        driver.wait_for((commits / str(target)).exists)
        driver.wait_for(lambda: read_state(pipeline) != 0)
        driver.kill_after(LONGEST_DELAY * chance.random(), java=phase % 4 == 1)
        driver.wait_until_killed()
    driver.clean_up()


def read_state(pipeline: Pipeline) -> int:
    """Return the state of the Kafka sink, also that of a killed one."""
    return pipeline.file.with_suffix(STATE_SUFFIX).read_bytes()[0]


def is_batch_open(pipeline: Pipeline) -> bool:
    """Return whether Spark has planned a batch, and has not logged its end."""
    planned, ended = (list_numbers(pipeline.lake.checkpoint / name) for name in ("offsets", "commits"))
    return max(planned) > max(ended)


def kill_drivers(pipeline: Pipeline, numbers: range) -> Counter[tuple[str, str]]:
    """Kill a driver for each number.

    Returns:
        The number of kills by the state of the Kafka sink, and by that of Spark's batch.
    """
    killed: Counter[tuple[str, str]] = Counter()
    for number in numbers:
        point = choose_point(random.Random(number), number)
        if point == "never":
            kill_while_sending(pipeline, number)
        else:
            kill_at(pipeline, number, point)
        found = STATES[read_state(pipeline)], "in a batch" if is_batch_open(pipeline) else "between batches"
        killed[found] += 1
        sys.stdout.write(f"{number + 1} kills, the last at {point}: {', '.join(found)}\n")  # pytest -s shows it
    return killed


def check_topic(spark: SparkSession, pipeline: Pipeline, broker: KafkaBroker) -> None:
    """Assert that tables equal the bucket, and that the topic has each change once and the documents of the bucket."""
    catch_up(spark, pipeline)
    rows = check(pipeline)
    merged = MergedEvents.merge(broker.consume("beer"))
    assert {key: found for (_, key), found in merged.documents.items()} == read_values(pipeline.documents.contents())
    assert {event["source"]["correction"] for event in merged.events} == {None}
    sent = [(vbucket, seqno) for vbucket, _, seqno in merged.changes]
    assert len(sent) == len(set(sent))
    assert set(sent) == list_wanted(rows, merged.events)


def list_wanted(rows: list[tuple[int, int, bytes, int]], events: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Return vbucket and seqno of each change that consumers must get, once.

    They are the newest change of each key in the snapshot with which a sink begins, and all later changes.

    Args:
        rows: vbucket, seqno, key and cas of all changes.
        events: the events in the topic; those of the snapshot are marked.
    """
    ends: dict[int, int] = {}
    for source in (event["source"] for event in events):
        if source["snapshot"] == "true":
            ends[source["vbucket"]] = max(source["seqno"], ends.get(source["vbucket"], 0))
    assert len(ends) == 16
    early = [row for row in sorted(rows) if row[1] <= ends[row[0]]]
    newest = {key: (vbucket, seqno) for vbucket, seqno, key, _ in early}
    return {*newest.values(), *(row[:2] for row in rows if row[1] > ends[row[0]])}


@pytest.mark.spark
def test_topic_has_each_change_once_despite_killed_drivers(spark, pipeline, broker):
    store_first_documents(pipeline)
    kill_drivers(pipeline, range(2))
    check_topic(spark, pipeline, broker)


def check_after_failovers(spark: SparkSession, pipeline: Pipeline, broker: KafkaBroker) -> int:
    """Assert that tables and topic equal the bucket, and that the topic has each change of each branch once at most.

    Returns:
        The number of rollbacks in the topic of rollbacks.
    """
    catch_up(spark, pipeline)
    rows = check_changelog(pipeline.lake).to_pylist()
    check_dependents(pipeline)
    merged = MergedEvents.merge(broker.consume("beer"))
    assert {key: found for (_, key), found in merged.documents.items()} == read_values(pipeline.documents.contents())
    assert len(merged.changes) == len(set(merged.changes))
    live = [event["source"] for event in merged.events if event["source"]["snapshot"] != "true"]
    sent = [json.loads(record.value()) for record in broker.consume("beer.rollbacks")]
    for vbucket in range(16):
        written = sorted(row["history"] for row in rows if (row["vbucket"], row["event"]) == (vbucket, "rollback"))
        histories = [event["history"] for event in sent if event["vbucket"] == vbucket]
        # A rollback before the snapshot of the sink is not sent. Later changes show which ones came before.
        before = written[: len(written) - len(histories)]
        assert [*before, *histories] == written
        began = [source["history"] for source in live if source["vbucket"] == vbucket]
        assert all(history <= min(began, default=history) for history in before)
    return len(sent)


@pytest.mark.spark
def test_topic_equals_a_bucket_that_fails_over_while_drivers_are_killed(spark, pipeline, broker):
    store_first_documents(pipeline)
    pipeline = pipeline._replace(has_failovers=True)
    kill_drivers(pipeline, range(2))
    lose_newest(pipeline.node, 3, 5)
    assert check_after_failovers(spark, pipeline, broker) > 0


@pytest.mark.soak
def test_topic_equals_a_bucket_that_fails_over_while_many_drivers_are_killed(spark, pipeline, broker):
    store_first_documents(pipeline)
    pipeline = pipeline._replace(has_failovers=True)
    killed: Counter[tuple[str, str]] = Counter()
    for first in range(0, KILLS, CHECKED_KILLS):
        killed += kill_drivers(pipeline, range(first, first + CHECKED_KILLS))
        rollbacks = check_after_failovers(spark, pipeline, broker)
    sys.stdout.write(f"{KILLS} kills, {rollbacks} rollbacks: {dict(killed)}\n")
    assert rollbacks >= KILLS


@pytest.mark.soak
def test_topic_has_each_change_once_despite_many_killed_drivers(spark, pipeline, broker):
    store_first_documents(pipeline)
    killed: Counter[tuple[str, str]] = Counter()
    for first in range(0, KILLS, CHECKED_KILLS):
        killed += kill_drivers(pipeline, range(first, first + CHECKED_KILLS))
        check_topic(spark, pipeline, broker)
    states = {", ".join(found): number for found, number in killed.items()}
    sys.stdout.write(f"{KILLS} kills: {states}\n")
    assert sum(number for (state, _), number in killed.items() if state != STATES[0]) >= KILLS / 2
