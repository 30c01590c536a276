"""The producers of a Kafka sink: records in transactions with the position, or records that are flushed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

from penstock.errors import Error
from penstock.spark.dependents.kafka.kafka_connection import KafkaConnection, QuietLogger
from penstock.spark.dependents.kafka.kafka_errors import (
    KafkaPatience,
    ignore_lost_exception,
    translate_kafka_errors,
)
from penstock.spark.dependents.kafka.sink_position import PositionTopic, SinkPosition

__all__ = ["FlushedProducer", "RecordProducer", "TransactionalProducer"]

QUEUE_KIBIBYTES = 64 << 10
"""Size of the records that wait for a broker, if the properties do not say otherwise."""
POLL_SECONDS = 0.02
"""Seconds between two looks at a full queue. librdkafka reports only failures, so nothing announces free space."""
POLLED_RECORDS = 1000
"""Records after which failures are looked for."""
SLICE_SECONDS = 0.25
"""Seconds of one wait for brokers. Between two of them it is found out whether the brokers refuse the connection."""
ABORT_SECONDS = 5.0


class RecordProducer(ABC):
    """Sends records, holds a limited number of them, and raises the first failure.

    Any exception leaves the producer unusable: close it, and open another.

    Args:
        connection: the brokers.
        timeout: seconds to wait for brokers.
        own: properties that the kind of delivery needs.
    """

    def __init__(self, connection: KafkaConnection, timeout: float, own: dict[str, Any]) -> None:
        from confluent_kafka import Producer

        self._patience = KafkaPatience(connection, timeout)
        self._failure: tuple[Any, str] | None = None
        self._count = 0
        # Java's clients choose a key's partition by murmur2, so streams of both can be joined.
        defaults = {"queue.buffering.max.kbytes": QUEUE_KIBIBYTES, "partitioner": "murmur2_random"}
        config = {**defaults, **connection.make_config(), **own, "acks": "all", "enable.idempotence": True}
        config |= {"delivery.report.only.error": True, "on_delivery": self._record_delivery}
        config["error_cb"] = self._patience.record_failure
        self._producer = Producer(config, logger=QuietLogger())
        self._patience.serve_callbacks = self._serve_callbacks

    @abstractmethod
    def open(self, stored: SinkPosition | None) -> SinkPosition | None:
        """Return the position that the records so far lead to: Kafka's, or the stored one where Kafka has none."""

    @abstractmethod
    def commit(self, position: SinkPosition) -> SinkPosition:
        """Wait until the brokers have all records that lead to a position, and return the position."""

    def send(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Send a record; wait while too many records wait for a broker.

        Raises Unreachable if no broker takes records within the timeout, Error if a broker refused a record.
        """
        with translate_kafka_errors(self._patience):
            self._produce(topic, key, value)
            self._count += 1
            if self._count % POLLED_RECORDS == 0:
                self._serve_callbacks()
                self._raise_failure()

    def count_brokers(self) -> int:
        """Return the number of brokers, once one has answered.

        Raises:
            KafkaException: none answered in time, or they refuse the connection; as Error.
        """
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self._patience.seconds
        with translate_kafka_errors(self._patience):
            while True:
                try:
                    return len(self._producer.list_topics(timeout=min(SLICE_SECONDS, self._patience.seconds)).brokers)
                except KafkaException:
                    self._serve_callbacks()
                    self._patience.raise_refusal()
                    if time.monotonic() > deadline:
                        raise

    def close(self) -> None:
        """Drop all records that were not committed, and close the connections."""
        from confluent_kafka import KafkaException

        with suppress(KafkaException):
            self._producer.purge()
        # Producer.close would wait for the end of a transaction, also without brokers. The client ends with its object.
        self._patience.serve_callbacks = int
        del self._producer

    def _produce(self, topic: str, key: bytes, value: bytes | None, **more: Any) -> None:
        waiting, deadline = len(self._producer), time.monotonic() + self._patience.seconds
        while True:
            try:
                self._producer.produce(topic, value, key, **more)
                return
            except BufferError:
                self._serve_callbacks(POLL_SECONDS)
            self._raise_failure()
            self._patience.raise_refusal()
            if len(self._producer) < waiting:
                waiting, deadline = len(self._producer), time.monotonic() + self._patience.seconds
            if time.monotonic() > deadline:
                raise self._patience.make_unreachable("records are not accepted")

    def _flush(self) -> None:
        """Wait until the brokers have all records. Raises Unreachable if no record is taken within the timeout."""
        waiting, deadline = len(self._producer), time.monotonic() + self._patience.seconds
        while self._wait_for_brokers(min(SLICE_SECONDS, self._patience.seconds)):
            self._raise_failure()
            self._patience.raise_refusal()
            if len(self._producer) < waiting:
                waiting, deadline = len(self._producer), time.monotonic() + self._patience.seconds
            if time.monotonic() > deadline:
                raise self._patience.make_unreachable("records are not accepted")
        self._raise_failure()
        self._patience.forget_failures()

    def _wait_for_brokers(self, seconds: float) -> int:
        """Wait until the brokers have all records, at most some seconds.

        Returns:
            The number of records that they lack.
        """
        with ignore_lost_exception():
            self._producer.flush(seconds)
        return len(self._producer)

    def _serve_callbacks(self, seconds: float = 0) -> None:
        """Let the client report failures: those that it knows, or the first one within some seconds."""
        with ignore_lost_exception():
            self._producer.poll(seconds)

    def _record_delivery(self, error: Any, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = error, f"{message.topic()}, key {message.key()!r}"

    def _raise_failure(self) -> None:
        """Raise the first failure of a delivery.

        Raises:
            Error: there is one.
        """
        from confluent_kafka import KafkaError

        if self._failure is None:
            return
        error, place = self._failure
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            raise Error(f"Kafka refused a record of {place}: {error.str()}; raise max.message.bytes of the topic")
        raise self._patience.make_error(error)


class TransactionalProducer(RecordProducer):
    """Sends records in transactions; each transaction has the position to which it leads.

    Args:
        connection: the brokers.
        timeout: seconds to wait for brokers.
        sink_id: the transactional id. A producer with the same id ends the transactions of earlier ones, and excludes
            these producers.
        position_topic: the topic of positions.
    """

    def __init__(self, connection: KafkaConnection, timeout: float, sink_id: str, position_topic: str) -> None:
        given = {} if "transaction.timeout.ms" in connection.properties else {"transaction.timeout.ms": 300_000}
        super().__init__(connection, timeout, {"transactional.id": sink_id, **given})
        self._positions = PositionTopic(connection, position_topic, self._patience)
        self._position_topic = position_topic
        self._sink_id = sink_id
        self._is_open = False

    def open(self, stored: SinkPosition | None) -> SinkPosition | None:
        """Exclude earlier producers, wait for the end of their last transaction, and read the position.

        Returns:
            The position in Kafka; None if it has none.
        """
        with translate_kafka_errors(self._patience):
            self._initialize()
        return self._positions.read(self._sink_id)

    def send(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Send a record in the open transaction, or in a new one."""
        self._begin()
        super().send(topic, key, value)

    def commit(self, position: SinkPosition) -> SinkPosition:
        """End the transaction. After an exception it is unknown whether it was committed; `open` finds out.

        Returns:
            The same position.
        """
        self._begin()
        with translate_kafka_errors(self._patience):
            self._produce(self._position_topic, self._sink_id.encode(), position.encode(), partition=0)
            self._flush()
            self._producer.commit_transaction(self._patience.seconds)
        self._is_open = False
        return position

    def close(self) -> None:
        """Abort the open transaction. If no broker answers, the next producer's `open` aborts it."""
        from confluent_kafka import KafkaException

        if self._is_open:
            with suppress(KafkaException):
                self._producer.purge()
                self._producer.abort_transaction(ABORT_SECONDS)
        super().close()

    def _initialize(self) -> None:
        """Wait until the brokers know this producer.

        Raises:
            KafkaException: they do not answer within the timeout.
        """
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + self._patience.seconds
        while True:
            try:
                self._producer.init_transactions(min(SLICE_SECONDS, self._patience.seconds))
            except KafkaException as error:
                self._patience.raise_refusal()
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _begin(self) -> None:
        if not self._is_open:
            with translate_kafka_errors(self._patience):
                self._producer.begin_transaction()
            self._is_open = True


class FlushedProducer(RecordProducer):
    """Sends records without transactions. The position is not stored in Kafka."""

    def __init__(self, connection: KafkaConnection, timeout: float) -> None:
        super().__init__(connection, timeout, {})

    def open(self, stored: SinkPosition | None) -> SinkPosition | None:
        """Return the stored position: Kafka has none."""
        return stored

    def commit(self, position: SinkPosition) -> SinkPosition:
        """Wait until the brokers have all records.

        Returns:
            The same position.
        """
        with translate_kafka_errors(self._patience):
            self._flush()
        return position
