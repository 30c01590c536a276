"""A Kafka broker of one node on loopback, and a consumer that merges Debezium's events."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.node.auth.certificates import make_certificates
from tests.compat.installed import make_kafka_command
from tests.patience import PATIENCE
from tests.ports import free_ports
from tests.spark.buckets import Contents

USER, PASSWORD = "ada", "Hopfen-und-Malz"
LISTENERS = ("PLAINTEXT", "LOGIN", "CERTIFICATE")
LOGIN_MODULE = "org.apache.kafka.common.security.{0}.{1}LoginModule"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL,CERTIFICATE:SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.login.plain.sasl.jaas.config={plain} required user_{user}="{password}";
listener.name.login.scram-sha-256.sasl.jaas.config={scram} required;
listener.name.login.scram-sha-512.sasl.jaas.config={scram} required;
listener.name.certificate.ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={directory}/keystore.pem
ssl.truststore.type=PEM
ssl.truststore.location={directory}/ca.pem
log.dirs={directory}/data
num.partitions=3
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
"""


class KafkaBroker:
    """A running broker.

    Attributes:
        address: host and port of a listener without TLS and login.
        login_address: those of a listener with TLS, on which USER logs in with PASSWORD.
        certificate_address: those of a listener with TLS that requires a client certificate.
        directory: the directory with the certificates: ca.pem, client.pem and client.key.
    """

    def __init__(self, ports: list[int], directory: Path) -> None:
        self.address, self.login_address, self.certificate_address = (f"127.0.0.1:{port}" for port in ports)
        self.directory = directory

    @classmethod
    @contextmanager
    def running(cls, directory: Path) -> Iterator[KafkaBroker]:
        """Start a new broker, and kill it at the end."""
        controller, *ports = free_ports(4)
        file, log = directory / "server.properties", directory / "kafka.log"
        write_certificates(directory)
        listeners = [f"{name}://127.0.0.1:{port}" for name, port in zip(LISTENERS, ports, strict=True)]
        properties = PROPERTIES.format(
            listeners=",".join(listeners),
            controller=controller,
            directory=directory,
            plain=LOGIN_MODULE.format("plain", "Plain"),
            scram=LOGIN_MODULE.format("scram", "Scram"),
            user=USER,
            password=PASSWORD,
        )
        file.write_text(properties)
        formatting = ["format", "--cluster-id", CLUSTER_ID, "--standalone", "--config", str(file)]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            formatting += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        with log.open("wb") as output:
            command = [*make_kafka_command("kafka.tools.StorageTool"), *formatting]
            subprocess.run(command, stdout=output, stderr=output, check=True, timeout=PATIENCE)
            command = [*make_kafka_command("kafka.Kafka"), str(file)]
            with subprocess.Popen(command, stdout=output, stderr=output) as process:
                try:
                    broker = cls(ports, directory)
                    broker.list_topics()
                    yield broker
                finally:
                    process.kill()

    def list_topics(self) -> dict[str, int]:
        """Return the number of partitions of each topic; waits until the broker answers."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0, "reconnect.backoff.max.ms": 100})
        return {name: len(found.partitions) for name, found in admin.list_topics(timeout=PATIENCE).topics.items()}

    def consume(self, *topics: str) -> list[Any]:
        """Return the committed records of topics, in the order of each partition."""
        counts = self.list_topics()
        places = [TopicPartition(topic, n, OFFSET_BEGINNING) for topic in topics for n in range(counts.get(topic, 0))]
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "tests",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        records, ended = [], 0
        try:
            consumer.assign(places)
            while ended < len(places):
                message = consumer.poll(PATIENCE)
                assert message is not None, "the broker does not answer"
                if (error := message.error()) is None:
                    records.append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended += 1
        finally:
            consumer.close()
        return records


def write_certificates(directory: Path) -> None:
    """Write the certificates of a new authority: ca.pem, client.pem, client.key, and keystore.pem of a broker."""
    made = make_certificates([], USER, 1, datetime.now(UTC))
    (directory / "ca.pem").write_bytes(made["ca"].certificate)
    (directory / "client.pem").write_bytes(made["client"].certificate)
    (directory / "client.key").write_bytes(made["client"].key)
    (directory / "keystore.pem").write_bytes(made["server"].certificate + made["server"].key)


@dataclass
class MergedEvents:
    """The state that a consumer of Debezium's events has, and its counts.

    Attributes:
        documents: cas and value by topic and key.
        changes: (vbucket, vbuuid, seqno) of each event that is a new change.
        events: all events.
        tombstones: number of records without a value.
    """

    documents: dict[tuple[str, bytes], tuple[int, Any]] = field(default_factory=dict)
    changes: list[tuple[int, str, int]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    tombstones: int = 0

    def apply(self, record: Any) -> None:
        """Apply one record."""
        place = record.topic(), record.key()
        if record.value() is None:
            assert place not in self.documents, "a tombstone follows its deletion"
            self.tombstones += 1
            return
        event = json.loads(record.value())
        source = event["source"]
        self.events.append(event)
        if source["correction"] is None:
            self.changes.append((source["vbucket"], source["vbuuid"], source["seqno"]))
        if event["op"] == "d":
            assert event["after"] is None
            self.documents.pop(place, None)
        else:
            self.documents[place] = int(source["cas"]), read_value(event["after"])

    @classmethod
    def merge(cls, records: list[Any]) -> MergedEvents:
        """Return the state after all records."""
        merged = cls()
        for record in records:
            merged.apply(record)
        return merged


def read_value(state: dict[str, Any]) -> Any:
    """Return the value of a document in `before` or `after`: JSON, or bytes."""
    return base64.b64decode(state["value_base64"]) if "value_base64" in state else state["value"]


def read_values(contents: Contents) -> dict[bytes, tuple[int, Any]]:
    """Return documents with the values as events have them: JSON, or bytes."""

    def read(value: bytes) -> Any:
        try:
            return json.loads(value)
        except ValueError:
            return value

    return {key: (cas, read(value)) for key, (cas, value) in contents.items()}
