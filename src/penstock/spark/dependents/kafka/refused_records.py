"""Records that Kafka refuses for a reason of their own, and the dead letters of their changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.client.documents.window_writer import RefusedRows
from penstock.client.documents.write_requests import Fault
from penstock.errors import Error
from penstock.names import escape_bytes
from penstock.spark.dependents.kafka.document_events import DocumentVersion
from penstock.spark.dependents.kafka.envelope import name_collection
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.sink import dead_letters
from penstock.spark.storage.object_path import LakePath
from penstock.wire.columns.schema import unsigned64

_WAY_ON = "; dead_letter_path keeps such records, and sends the others"


class RecordPlace(NamedTuple):
    """The change that a record is about."""

    vbucket: int
    history: int
    seqno: int | None
    key: bytes
    collection: str

    @classmethod
    def of_version(cls, version: DocumentVersion) -> RecordPlace:
        """Return the place of a version."""
        scope, name = name_collection(version)
        seqno = None if version.seqno is None else unsigned64(version.seqno)
        collection = f"{version.collection_id:#x}" if name is None else f"{scope}.{name}"
        return cls(version.vbucket, version.history, seqno, version.key, collection)

    @classmethod
    def of_record(cls, key: bytes, value: bytes | None) -> RecordPlace | None:
        """Return the place of an event; None for a record that is no event about a document."""
        try:
            source = json.loads(value or b"")["source"]
            name = source["collection"]
            collection = f"{source['collection_id']:#x}" if name is None else f"{source['scope']}.{name}"
            return cls(source["vbucket"], source["history"], source["seqno"], key, collection)
        except (ValueError, KeyError):
            return None

    def __str__(self) -> str:
        seqno = "" if self.seqno is None else f", seqno {self.seqno}"
        return f"key {escape_bytes(self.key)} of collection {self.collection} (vbucket {self.vbucket}{seqno}"


class RecordRefusal(NamedTuple):
    """The reason why Kafka refuses a record, while it accepts others.

    Attributes:
        code: the code of Kafka's protocol, or of librdkafka if negative.
        name: the name of the code.
        text: the error for users.
        is_of_topic: True if the topic of the record is refused, so that all of its records are.
    """

    code: int
    name: str
    text: str
    is_of_topic: bool = False


class RefusedRecord(NamedTuple):
    """A record that a broker refused; `place` is None if it is no event about a document."""

    topic: str
    key: bytes
    size: int
    place: RecordPlace | None
    refusal: RecordRefusal

    def __str__(self) -> str:
        place = f"{self.place}, " if self.place else f"key {escape_bytes(self.key)} ("
        return f"the record of {place}{self.size:,} bytes) for the topic {self.topic}: {self.refusal.text}"


class RecordsRefused(Error):
    """A broker refused records. The producer is unusable, and its transaction was not committed.

    A broker refuses a whole batch because of one record, or because many small ones are too large together.
    """

    def __init__(self, address: str, records: Sequence[RefusedRecord]) -> None:
        more = f" and {len(records) - 1} more" if len(records) > 1 else ""
        super().__init__(f"Kafka at {address} refused {records[0]}{more}{_WAY_ON}")
        self.records = records


def find_refusal(error: Any) -> RecordRefusal | None:
    """Return the refusal of one record or topic, None for an error that concerns all records."""
    from confluent_kafka import KafkaError

    topics = (
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    )
    records = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.INVALID_RECORD)
    if error.code() not in (*topics, *records):
        return None
    text = error.str()
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        text += "; expected a larger message.max.bytes in properties and max.message.bytes of the topic"
    return RecordRefusal(error.code(), error.name(), text, error.code() in topics)


@dataclass
class LetterBox:
    """The dead letters of a sink.

    Attributes:
        sink: the sink's name.
        address: the brokers, for errors.
        directory: the directory of the dead letters; None: a refused record is an error.
        has_topics: whether each collection has a topic, so that a refused topic concerns only some documents.
        known: the changes and topics that brokers have refused since the last delta.
        sends_single: whether each record is a batch of its own, because a broker has refused a batch.
    """

    sink: str
    address: str
    directory: LakePath | None
    has_topics: bool
    known: dict[RecordPlace | str, RecordRefusal] = field(default_factory=dict)
    sends_single: bool = False

    def learn(self, refused: RecordsRefused) -> bool:
        """Remember records that brokers refused, so that the next attempt does not send them.

        After a first refusal, the next attempt sends each record in a batch of its own.

        Returns:
            False if another attempt has no chance.
        """
        before = len(self.known), self.sends_single
        for record in refused.records:
            place = record.topic if record.refusal.is_of_topic else record.place if self.sends_single else None
            if record.place is not None and place is not None and self.takes(record.refusal):
                self.known[place] = record.refusal
        self.sends_single = self.sends_single or not all(record.refusal.is_of_topic for record in refused.records)
        return (len(self.known), self.sends_single) != before

    def takes(self, refusal: RecordRefusal) -> bool:
        """Return whether a refused record becomes a dead letter: not if the refusal concerns all documents."""
        return self.directory is not None and (self.has_topics or not refusal.is_of_topic)

    def find(self, topic: str, version: DocumentVersion) -> RecordRefusal | None:
        """Return the known refusal of a change."""
        return self.known.get(topic) or self.known.get(RecordPlace.of_version(version)) if self.known else None

    @contextmanager
    def open_range(
        self, changelog_id: str, vbucket_range: int, start: tuple[str, int] | None
    ) -> Iterator[RangeLetters]:
        """Collect the dead letters of a vbucket range, and publish them at the end of the block.

        A file's name has the version at which the range starts. So an attempt that repeats the range replaces it.

        Args:
            changelog_id: the changelog.
            vbucket_range: the range.
            start: the position of the range before the attempt.

        Yields:
            The dead letters.
        """
        if self.directory is None:
            yield RangeLetters(self, None)
            return
        run = f"{self.sink}-{changelog_id}"
        batch = f"{self.sink}-{changelog_id[:8]}-{vbucket_range:02}-{0 if start is None else start[1] + 1:09}"
        with dead_letters.DeadLetterFile(self.directory, run) as file:
            yield RangeLetters(self, file)
            written = file.close()
            dead_letters.commit_letters(self.directory, run, batch, [] if written is None else [written])


class RangeLetters:
    """The dead letters of one vbucket range.

    Args:
        box: the dead letters of the sink.
        file: the file; None: a refused record is an error.
    """

    def __init__(self, box: LetterBox, file: dead_letters.DeadLetterFile | None) -> None:
        self._box = box
        self._file = file
        self._last: DocumentVersion | None = None

    def add(self, version: DocumentVersion, topic: str, size: int, refusal: RecordRefusal) -> None:
        """Write the change of a refused record. An event and its tombstone are one dead letter.

        Args:
            version: the change.
            topic: the topic of the record.
            size: bytes of the record.
            refusal: the reason.

        Raises:
            RecordsRefused: the sink has no dead letters, or the refusal concerns all documents.
        """
        if self._file is None or not self._box.takes(refusal):
            record = RefusedRecord(topic, version.key, size, RecordPlace.of_version(version), refusal)
            raise RecordsRefused(self._box.address, [record])
        if version is not self._last:
            rows = pa.Table.from_pylist([version._asdict()], MERGE_SCHEMA)
            self._file.write(RefusedRows(rows, [Fault(refusal.code, refusal.text)]), {refusal.code: refusal.name})
        self._last = version
