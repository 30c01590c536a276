"""The position of a sink that delivers exactly once, and the compacted topic that holds it.

A position is a record. The sink's producer writes it in the transaction of the events that lead to it. So events and
position become visible together or not at all. Offsets of a consumer group would do the same, but a broker removes
the offsets of a group without members after a week.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import Error
from penstock.spark.dependents.kafka.kafka_connection import KafkaConnection, QuietLogger
from penstock.spark.dependents.kafka.kafka_errors import KafkaPatience, translate_kafka_errors
from penstock.spark.lake.tables.delta_table import RANGE_COUNT

NOTHING = -1
"""The version of a range of which nothing was sent."""
FIRST_RECORDS, GROWTH = 64, 16
"""Records at the topic's end that are read first, and the factor if the position is not among them."""
_CONFIG = {"cleanup.policy": "compact", "segment.ms": str(3600 * 1000)}
"""The configuration of a new topic. A broker compacts only closed segments."""


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """The changelog versions that consumers have, one for each vbucket range.

    Attributes:
        changelog_id: the changelog.
        versions: the version of each range, NOTHING for none. They differ only in the middle of a large delta.
    """

    changelog_id: str
    versions: tuple[int, ...] = (NOTHING,) * RANGE_COUNT

    def find_start(self, vbucket_range: int) -> tuple[str, int] | None:
        """Return id and version of the changelog after which a range's changes are to be sent; None: all."""
        version = self.versions[vbucket_range]
        return None if version == NOTHING else (self.changelog_id, version)

    def advance(self, vbucket_range: int, version: int) -> SinkPosition:
        """Return the position after the changes of a range up to a version."""
        changed = [*self.versions]
        changed[vbucket_range] = version
        return replace(self, versions=tuple(changed))

    def encode(self) -> bytes:
        """Return the position as JSON."""
        return json.dumps({"changelog": self.changelog_id, "versions": self.versions}).encode()

    @classmethod
    def decode(cls, text: bytes, topic: str) -> SinkPosition:
        """Return the position of a record.

        Args:
            text: the record's value.
            topic: the topic, for the error.

        Raises:
            Error: the record is no position.
        """
        try:
            content = json.loads(text)
            found = cls(str(content["changelog"]), tuple(map(int, content["versions"])))
        except (ValueError, KeyError, TypeError):
            found = cls("", ())
        if len(found.versions) != RANGE_COUNT:
            raise Error(f"the topic {topic} has a record that is no position; expected only those of Penstock")
        return found


class PositionTopic:
    """The compacted topic with the positions of sinks, in its first partition.

    Args:
        connection: the brokers.
        name: the topic.
        patience: the limits of waiting.
    """

    def __init__(self, connection: KafkaConnection, name: str, patience: KafkaPatience) -> None:
        self._connection = connection
        self._name = name
        self._patience = patience

    def read(self, sink_id: str) -> SinkPosition | None:
        """Return the position of a sink, None without one. Creates the topic if it does not exist.

        The caller's producer must have ended its earlier transaction. Raises Unreachable if a broker does not answer,
        Error if the topic cannot be used.
        """
        from confluent_kafka.admin import AdminClient

        with translate_kafka_errors(self._patience):
            admin = AdminClient(self._make_config(), logger=QuietLogger())
            if self._create(admin):
                return None
            self._check_policy(admin)
            low, high = self._read_limits(admin)
            count = FIRST_RECORDS
            while True:
                start = max(low, high - count)
                found = self._find_last(sink_id.encode(), start, high)
                if found is not None or start == low:
                    return None if found is None else SinkPosition.decode(found, self._name)
                count *= GROWTH

    def _make_config(self) -> dict[str, Any]:
        return {**self._connection.make_config(), "error_cb": self._patience.record_failure}

    def _create(self, admin: Any) -> bool:
        """Create the topic.

        Returns:
            False if it exists, or if this user may not create it.

        Raises:
            KafkaException: the brokers refuse it for another reason.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in __all__

        topic = NewTopic(self._name, num_partitions=1, replication_factor=-1, config=_CONFIG)
        try:
            admin.create_topics([topic], request_timeout=self._patience.seconds)[self._name].result()
        except KafkaException as error:
            exists = (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.TOPIC_AUTHORIZATION_FAILED)
            if error.args[0].code() not in (*exists, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
                raise
            return False
        return True

    def _check_policy(self, admin: Any) -> None:
        """Check that the broker keeps the newest record of each key forever.

        Raises:
            Error: it removes old records.
            KafkaException: the brokers do not answer, for another reason than a missing right.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]  # public, but not in __all__

        resource = ConfigResource(ConfigResource.Type.TOPIC, self._name)
        try:
            (asked,) = admin.describe_configs([resource], request_timeout=self._patience.seconds).values()
            policy = asked.result()["cleanup.policy"].value
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return
            raise
        if policy != "compact":
            raise Error(
                f"the topic {self._name} has cleanup.policy {policy!r}, expected 'compact': positions must stay"
            )

    def _read_limits(self, admin: Any) -> tuple[int, int]:
        """Return the offsets of the first record and after the last record, records of open transactions included."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # public, but not in __all__

        limits = []
        for which in (OffsetSpec.earliest(), OffsetSpec.latest()):  # type: ignore[no-untyped-call]
            asked = admin.list_offsets(
                {TopicPartition(self._name, 0): which},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=self._patience.seconds,
            )
            (found,) = asked.values()
            limits.append(found.result().offset)
        return limits[0], limits[1]

    def _find_last(self, key: bytes, start: int, end: int) -> bytes | None:
        """Return the value of the last committed record with a key, between two offsets.

        Raises:
            KafkaException: the brokers refuse the read.
        """
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

        own = {"group.id": "penstock", "enable.auto.commit": False, "enable.partition.eof": True}
        own |= {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        consumer = Consumer(self._make_config() | own, logger=QuietLogger())
        found, reached, deadline = None, start, time.monotonic() + self._patience.seconds
        try:
            consumer.assign([TopicPartition(self._name, 0, start)])
            # A read of committed records ends at the first open transaction: another sink's may be before our position.
            while reached < end:
                message = consumer.poll(max(0.0, deadline - time.monotonic()))
                if message is None:
                    raise self._patience.make_unreachable(f"the topic {self._name} could not be read to its end")
                if (error := message.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    reached = message.offset() or 0
                    continue
                reached = (message.offset() or 0) + 1
                if message.key() == key:
                    found = message.value()
        finally:
            consumer.close()
        return found
