"""A Kafka sink: every change of a lake's changelog as a record, in Debezium's envelope.

Exactly once: the records of a delta and the position that they lead to are one transaction of Kafka. A run that starts
asks Kafka for the position. The position file in the lake is only a copy, for the status and for the next delta.
At least once: the position file is written after the brokers have all records.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from penstock.argument_types import check_arguments
from penstock.client.connect.address import Address, ConnectionOptions
from penstock.client.login.password_options import PasswordOptions
from penstock.errors import UsageError
from penstock.options import FILE, check_limits, nonempty, number, option, shared_option
from penstock.spark.dependents.bucket_state import BucketAnswers
from penstock.spark.dependents.checks import check_declared_name, validate_name
from penstock.spark.dependents.kafka.document_events import DocumentEvent, EventOperation, list_events
from penstock.spark.dependents.kafka.envelope import EventEncoder, name_collection
from penstock.spark.dependents.kafka.kafka_connection import KafkaConnection, PropertyValue
from penstock.spark.dependents.kafka.record_producer import FlushedProducer, RecordProducer, TransactionalProducer
from penstock.spark.dependents.kafka.refused_records import LetterBox, RangeLetters, RecordsRefused, RefusedRecord
from penstock.spark.dependents.kafka.sink_position import SinkPosition
from penstock.spark.dependents.kafka.topic_names import TopicMissing, TopicNames
from penstock.spark.dependents.position_file import PositionFile, list_position_files
from penstock.spark.dependents.registry import DependentKind, register_kind
from penstock.spark.lake.changelog.changelog_delta import ChangelogDelta, find_delta
from penstock.spark.lake.changelog.ordered_changes import read_ordered_changes
from penstock.spark.lake.tables.delta_table import RANGE_COUNT
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.sink.sink_options import parse_directory
from penstock.spark.storage.object_path import LakePath
from penstock.spark.storage.stored_documents import create_document

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIRECTORY = "kafka"
"""The directory of a lake that holds the positions and ids of its Kafka sinks."""
TRANSACTION_BYTES = 32 << 20
"""Size of the records after which a transaction ends, at the end of a vbucket range."""

CHECK_SECONDS = 5.0
"""Greatest number of seconds that a check waits for brokers."""

Delivery = Literal["exactly-once", "at-least-once"]
"""The guarantee for consumers that read only committed records."""


@check_arguments
class KafkaSink:
    """Sends the changes of a lake's changelog to topics of Kafka. Programs make one by `open`.

    Args:
        lake: the lake of the changelog.
        name: the dependent's name, unique in the lake.
        connection: the brokers.
        topics: the topics.
        bucket: the bucket's name, for the events.
        delivery: the guarantee.
        before: whether events have the version before them.
        tombstones: whether a deletion is followed by a record without a value, so that a compacted topic forgets the
            document.
        timeout: seconds to wait for brokers.
        dead_letter_path: the directory for changes whose record Kafka refuses; None: such a record is an error.

    Raises:
        UsageError: an argument is invalid.
    """

    def __init__(
        self,
        lake: LakeDirectory,
        name: str,
        connection: KafkaConnection,
        topics: TopicNames,
        *,
        bucket: str = "",
        delivery: Delivery = "exactly-once",
        before: bool = False,
        tombstones: bool = True,
        timeout: float = 30.0,
        dead_letter_path: LakePath | None = None,
    ) -> None:
        if delivery not in get_args(Delivery):
            raise UsageError(f"delivery is {delivery!r}, expected {' or '.join(map(repr, get_args(Delivery)))}")
        self.lake = lake
        self.name = validate_name(name)
        self.path = lake.path / DIRECTORY / f"{name}.json"
        self._position_file = PositionFile(self.path, "the position in Kafka counts, or all documents are sent again")
        self._connection = connection
        self._topics = topics
        self._delivery = delivery
        self._before = before
        self._tombstones = tombstones
        self._timeout = timeout
        self._encoder = EventEncoder(self.name, bucket)
        self._letters = LetterBox(self.name, connection.address, dead_letter_path, "{collection}" in topics.template)
        self._producer: RecordProducer | None = None
        self._position: SinkPosition | None = None

    @classmethod
    def open(cls, lake: LakeDirectory, name: str, *, brokers: Sequence[str], topic: str, **keys: Any) -> Self:
        """Return a sink without a pipeline. It connects to the brokers when there are changes to send.

        Raises UsageError if a value is invalid, and for a topic that documents with equal keys might share.

        Args:
            lake: the lake of the changelog.
            name: the dependent's name, unique in the lake.
            brokers: addresses of brokers, host:port.
            topic: the topic of documents.
            keys: other keys of a pipeline's Kafka sink, under the same names.
        """
        declared = KafkaKind(name=name, brokers=tuple(brokers), topic=topic, **keys)
        declared.make_topics().check_source(ConnectionOptions())  # the changelog may have any collections
        return cls.of_declaration(lake, declared)

    @classmethod
    def of_declaration(cls, lake: LakeDirectory, declared: KafkaKind) -> Self:
        """Return the sink of a declaration for a lake."""
        return cls(
            lake,
            declared.name,
            declared.make_connection(),
            declared.make_topics(),
            bucket=declared.bucket or "",
            delivery=declared.delivery,
            before=declared.before,
            tombstones=declared.tombstones,
            timeout=declared.timeout,
            dead_letter_path=declared.find_letter_directory(),
        )

    def position(self) -> tuple[str, int] | None:
        """Return id and version of the changelog that was sent, None if nothing was sent. It does not ask Kafka."""
        return self._position_file.read()

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Send the records of a delta, or of a newer one if Kafka has a newer position.

        A broker's refusal ends the transaction. The next attempt finds out which record is refused, and the next one
        leaves it out: it becomes a dead letter.

        Raises Unreachable if the brokers do not answer, Error if they refuse a record.
        """
        while not self._try_to_send(delta):
            continue
        if self._letters.sends_single:
            self.close()  # the next producer sends larger batches again
        self._letters.known.clear()
        self._letters.sends_single = False

    def _try_to_send(self, delta: ChangelogDelta) -> bool:
        """Send a delta.

        Returns:
            False if a broker refused records that the next attempt leaves out.
        """
        try:
            self._send_delta(self._producer or self._open(), delta)
        except BaseException as error:
            self.close()  # an open transaction is aborted, and the next attempt asks Kafka for the position
            if isinstance(error, RecordsRefused) and self._letters.learn(error):
                return False
            raise
        return True

    def count_rows(self) -> int:
        """Return 0: a sink merges nothing."""
        return 0

    def close(self) -> None:
        """Close the connections. Records that were not committed are dropped."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _open(self) -> RecordProducer:
        """Return a new producer, after it has found the position."""
        stored = self.position()
        known = None if stored is None else SinkPosition(stored[0], (stored[1],) * RANGE_COUNT)
        connection = self._connection
        if self._letters.sends_single:
            connection = replace(connection, properties={**connection.properties, "batch.num.messages": 1})
        if self._delivery == "exactly-once":
            sink_id = f"penstock.{self.name}.{_read_sink_id(_locate_id(self.lake, self.name))}"
            self._producer = TransactionalProducer(connection, self._timeout, sink_id, self._topics.positions)
        else:
            self._producer = FlushedProducer(connection, self._timeout)
        self._position = self._producer.open(known)
        return self._producer

    def _send_delta(self, producer: RecordProducer, delta: ChangelogDelta) -> None:
        """Send each range's changes after its own position: the last transaction may have ended between two ranges."""
        position = self._position
        if position is None or position.changelog_id != delta.changelog_id:
            position = SinkPosition(delta.changelog_id)
        deltas: dict[tuple[str, int] | None, ChangelogDelta | None] = {self.position(): delta}
        sent_bytes = 0
        for part in range(RANGE_COUNT):
            start = position.find_start(part)
            if start not in deltas:
                deltas[start] = find_delta(self.lake, start)
            found = deltas[start]
            assert found is not None, "a lake that had a changelog has one"
            if part in found.ranges:
                sent_bytes += self._send_range(producer, found, part, start)
            position = position.advance(part, found.version)
            if sent_bytes > TRANSACTION_BYTES:
                self._position, sent_bytes = producer.commit(position), 0
        self._position = producer.commit(position)
        self._position_file.write(position.changelog_id, min(position.versions))

    def _send_range(
        self, producer: RecordProducer, delta: ChangelogDelta, part: int, start: tuple[str, int] | None
    ) -> int:
        """Send the records of a vbucket range. Its dead letters are stored before the position is committed.

        Returns:
            The size of the records.

        Raises:
            RecordsRefused: a record about a rollback is refused, or one of a document without dead letters.
        """
        changes = read_ordered_changes(delta, part, with_known=self._before)
        now, sent_bytes = time.time_ns() // 10**6, 0
        for row in changes.rollbacks.to_pylist():
            topic, key = self._topics.rollbacks, b"%d" % row["vbucket"]
            text = self._encoder.encode_rollback(row, now)
            if (refusal := producer.send(topic, key, text)) is not None:
                record = RefusedRecord(topic, key, len(text), None, refusal)
                raise RecordsRefused(self._connection.address, [record])
        with self._letters.open_range(delta.changelog_id, part, start) as letters:
            for event in list_events(changes, with_before=self._before):
                sent_bytes += self._send_event(producer, event, now, letters)
        return sent_bytes

    def _send_event(self, producer: RecordProducer, event: DocumentEvent, now: int, letters: RangeLetters) -> int:
        """Send an event, and its tombstone.

        Returns:
            The size of the records.
        """
        version, topic = event.version, ""
        text = self._encoder.encode(event, now)
        size = len(text) + len(version.key)
        try:
            topic = self._topics.find_topic(*name_collection(version), version.collection_id)
        except TopicMissing as error:
            letters.add(version, topic, size, error.refusal)
            return 0
        refusal = self._letters.find(topic, version) or producer.send(topic, version.key, text)
        if refusal is not None:
            letters.add(version, topic, size, refusal)
            size = 0
        if self._tombstones and event.operation is EventOperation.DELETE and not (refusal and refusal.is_of_topic):
            refusal = producer.send(topic, version.key, None)
            if refusal is not None:
                letters.add(version, topic, len(version.key), refusal)
        return size


def _locate_id(lake: LakeDirectory, name: str) -> LakePath:
    return lake.path / DIRECTORY / f"{name}.id"


def _read_sink_id(path: LakePath) -> str:
    """Return the id of a sink in a lake, which a new sink gets before its first transaction.

    A sink whose files were removed, by a reset or with its lake, gets another id and sends all documents again.
    """
    try:
        return path.read_text()
    except FileNotFoundError:
        create_document(path, uuid.uuid4().hex)
    return path.read_text()


@register_kind
@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaKind(DependentKind):
    """Changes in Debezium's envelope, sent to topics of Kafka. Most fields are those of KafkaConnection and KafkaSink.

    Attributes:
        topic: the topic of documents; {scope} and {collection} are replaced by the names of the document's collection.
        rollback_topic: the topic of rollback events; default: as `topic` before a placeholder, with `.rollbacks`.
        position_topic: the compacted topic of positions; default: likewise, with `.positions`.
        bucket: the bucket's name in the events; default: the source's bucket.
        unique_keys: whether keys are unique in the bucket, so that a topic may have several collections.
    """

    title = "sink"
    kind = "kafka"
    directory = DIRECTORY
    order = 50
    is_local = False

    brokers: tuple[str, ...]
    topic: str
    rollback_topic: str | None = None
    position_topic: str | None = None
    delivery: Delivery = "exactly-once"
    before: bool = False
    tombstones: bool = True
    tls: bool = False
    ca_file: str | None = option(FILE, "certificates of authorities, PEM", default=None)
    certificate_file: str | None = option(FILE, "certificate of the client, PEM", default=None)
    key_file: str | None = option(FILE, "key of the client, PEM", default=None)
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: str | None = None
    password_file: str | None = shared_option(PasswordOptions)
    password_command: tuple[str, ...] | None = shared_option(PasswordOptions, secret=True)
    password_from: str | None = shared_option(PasswordOptions)
    password_env: str | None = None
    properties: Mapping[str, PropertyValue] = field(default_factory=dict, hash=False)
    timeout: float = option(number(0.1, 3600), "seconds to wait for brokers", default=30.0)
    dead_letter_path: str | None = option(
        nonempty("a directory", metavar="DIRECTORY", is_path=True),
        "directory for Parquet files of the changes whose record Kafka refuses, or a URL of an object store",
        default=None,
    )
    bucket: str | None = None
    unique_keys: bool = False

    def __post_init__(self) -> None:
        check_declared_name("sink", self.name)
        check_limits(self)
        self.make_topics()
        self.make_connection()
        self.find_letter_directory()

    def open(self, lake: LakeDirectory, session: SparkSession | None = None) -> KafkaSink:
        """Return the sink of this declaration for a lake."""
        return KafkaSink.of_declaration(lake, self)

    @property
    def dead_letters(self) -> str | None:
        """The directory of refused changes, None without one."""
        return self.dead_letter_path

    def find_letter_directory(self) -> LakePath | None:
        """Return the directory of dead letters, None without one."""
        return None if self.dead_letter_path is None else parse_directory("dead_letter_path", self.dead_letter_path)

    def describe(self) -> str:
        """Return topic and guarantee, for plans."""
        return f"topic {self.topic}, {self.delivery}"

    def locate(self, lake: LakeDirectory) -> str:
        """Return the brokers."""
        return self.make_connection().address

    def find_dataset(self) -> tuple[str, str]:
        """Return the first broker and the topic, as OpenLineage names topics."""
        return f"kafka://{self.brokers[0]}", self.topic

    @property
    def login_runs_program(self) -> bool:
        """Whether the login at the brokers runs a program."""
        return self.make_connection().login_runs_program

    def check_target(self, source: Address, buckets: BucketAnswers) -> str:
        """Connect to the brokers and log in. Raises Unreachable if none answers, Error if they refuse the connection.

        Returns:
            A line about the brokers.
        """
        connection = self.make_connection()
        producer = FlushedProducer(connection, min(self.timeout, CHECK_SECONDS))
        try:
            brokers = producer.count_brokers()
        finally:
            producer.close()
        return f"Kafka at {connection.address}: {brokers} broker{'s' * (brokers != 1)}"

    def check_source(self, source: Address) -> None:
        """Check that no two documents of the source can have the same topic and key. Raises UsageError if they can."""
        self.make_topics().check_source(source.options)

    def check_beside(self, other: DependentKind) -> None:
        """Check that no two sinks of a pipeline send documents to the same topic, or to a topic of another purpose.

        Raises:
            UsageError: they do, and not both promise unique keys.
        """
        if not isinstance(other, KafkaKind) or not set(self.brokers) & set(other.brokers):
            return
        own, others = self.make_topics(), other.make_topics()
        is_shared = own.template == others.template and not (self.unique_keys and other.unique_keys)
        mixed = {own.template} & {others.rollbacks, others.positions} | {others.template} & {
            own.rollbacks,
            own.positions,
        }
        if is_shared or mixed:
            topic = own.template if is_shared else min(mixed)
            raise UsageError(
                f"topic is {topic!r}, and so is one of the sink {other.name!r}, whose keys may be equal; expected"
                " another topic, or unique_keys = true in both"
            )

    def bind_source(self, source: Address) -> Self:
        """Return the declaration with the source's bucket."""
        is_unique = self.unique_keys or len(source.options.collections) == 1
        return replace(self, bucket=self.bucket or source.bucket, unique_keys=is_unique)

    def make_topics(self) -> TopicNames:
        """Return the names of the topics. Raises UsageError if one is invalid."""
        return TopicNames.make(
            self.name, self.topic, self.rollback_topic, self.position_topic, unique_keys=self.unique_keys
        )

    def make_connection(self) -> KafkaConnection:
        """Return the brokers and the login. Raises UsageError if a key is invalid."""
        return KafkaConnection(**{each.name: getattr(self, each.name) for each in fields(KafkaConnection)})

    @classmethod
    def list_files(cls, lake: LakeDirectory, name: str) -> list[LakePath]:
        """Return the position file and the file with the sink's id, if they exist."""
        identity = _locate_id(lake, name)
        return list_position_files(lake.path / cls.directory, name) + ([identity] if identity.exists() else [])
