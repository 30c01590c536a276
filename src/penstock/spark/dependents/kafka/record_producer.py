"""The producers of a Kafka sink: records in transactions with the position, or records that are flushed."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

from penstock.spark.dependents.kafka.kafka_connection import KafkaConnection, QuietLogger
from penstock.spark.dependents.kafka.kafka_errors import (
    KafkaPatience,
    ignore_lost_exception,
    translate_kafka_errors,
)
from penstock.spark.dependents.kafka.refused_records import (
    RecordPlace,
    RecordRefusal,
    RecordsRefused,
    RefusedRecord,
    find_refusal,
)
from penstock.spark.dependents.kafka.sink_position import PositionTopic, SinkPosition

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
        self._failure: Any = None
        self._refused: list[RefusedRecord] = []
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

    def send(self, topic: str, key: bytes, value: bytes | None) -> RecordRefusal | None:
        """Send a record; wait while too many records wait for a broker.

        Raises Unreachable if no broker takes records within the timeout, RecordsRefused if a broker refused records,
        Error for other failures.

        Returns:
            The reason if the client refuses the record itself, and can send others; None if it was taken.
        """
        with translate_kafka_errors(self._patience):
            refusal = self._try_to_produce(topic, key, value)
            self._count += refusal is None
            if self._count % POLLED_RECORDS == 0:
                self._serve_callbacks()
                self._raise_failure()
        return refusal

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

    def _try_to_produce(self, topic: str, key: bytes, value: bytes | None) -> RecordRefusal | None:
        """Give a record to the client.

        Returns:
            The client's refusal.

        Raises:
            KafkaException: the client failed.
        """
        from confluent_kafka import KafkaException

        try:
            self._produce(topic, key, value)
        except KafkaException as error:
            # After a broker's refusal, a transaction takes no further record: the refusal is the reason.
            if (refusal := find_refusal(error.args[0])) is not None:
                return refusal
            self._wait_for_brokers(SLICE_SECONDS)  # the broker's refusal may not be reported yet
            self._raise_refused()
            raise
        return None

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
        if error is None:
            return
        if (refusal := find_refusal(error)) is None:
            self._failure = error if self._failure is None else self._failure
            return
        key, value = message.key(), message.value()
        place = RecordPlace.of_record(key, value)
        self._refused.append(RefusedRecord(message.topic(), key, len(key) + len(value or b""), place, refusal))

    def _raise_failure(self) -> None:
        """Raise the first failure of a delivery. Refused records come first: the others may fail because of them."""
        self._raise_refused()
        if self._failure is not None:
            raise self._patience.make_error(self._failure)

    def _raise_refused(self) -> None:
        """Raise the refusals of brokers.

        Raises:
            RecordsRefused: a broker refused records.
        """
        if self._refused:
            raise RecordsRefused(self._patience.address, self._refused)


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

    def send(self, topic: str, key: bytes, value: bytes | None) -> RecordRefusal | None:
        """Send a record in the open transaction, or in a new one.

        Returns:
            The reason if the client refuses the record itself.
        """
        self._begin()
        return super().send(topic, key, value)

    def _raise_failure(self) -> None:
        """Raise the first failure. Where records are purged, the transaction has failed, and its end has the reason."""
        from confluent_kafka import KafkaError

        self._raise_refused()
        if self._failure is not None and self._failure.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._wait_for_brokers(SLICE_SECONDS)
            self._raise_refused()
            with translate_kafka_errors(self._patience):
                self._producer.commit_transaction(self._patience.seconds)
        super()._raise_failure()

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
