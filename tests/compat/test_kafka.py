"""A Kafka sink and a real broker: consumers have the bucket's documents, and get each change once."""

import json
import logging
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from penstock.errors import Error, UntrustedNode, UsageError
from penstock.node import Node
from penstock.spark import Lake, append_changes, catch_up
from penstock.spark.dependents.kafka import sink_position
from penstock.spark.dependents.kafka.record_producer import FlushedProducer, TransactionalProducer
from penstock.spark.dependents.kinds.kafka_sink import KafkaKind
from tests.compat.kafka_broker import PASSWORD, USER, KafkaBroker, MergedEvents, read_values, write_certificates
from tests.compat.kafka_driver import STATES, make_sink
from tests.patience import PATIENCE
from tests.spark.buckets import Documents, MicroBatches
from tests.spark.lakes import ROOT, append, rollback, row
from tests.spark.test_protocols import change_at_random

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with KafkaBroker.running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """The directory of certificates of another authority."""
    directory = tmp_path_factory.mktemp("strange")
    write_certificates(directory)
    return directory


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake")


@pytest.fixture
def declare(broker):
    """Return a function that declares a sink of this broker."""

    def declare(**keys):
        return KafkaKind(**{"name": "out", "brokers": (broker.address,), **keys})

    return declare


class ChangingBucket:
    """A bucket of a node, and a lake that is written without Spark."""

    def __init__(self, node: Node, documents: Documents, lake: Lake, seed: int) -> None:
        self.documents = documents
        self.lake = lake
        self._node = node
        self._chance = random.Random(seed)
        self._query = MicroBatches(documents.url)
        self._batch = 0

    def change(self, times: int = 4) -> None:
        """Change the bucket, with deletions, failovers and flushes, and write one batch of the changelog."""
        for _ in range(times):
            change_at_random(self._node, self.documents, self._chance)
        self.write_batch()

    def write_batch(self) -> None:
        batches = [batch for rows in self._query.all() for batch in rows.to_batches()]
        append_changes(self.lake, "test", self._batch, batches, vbuckets=16)
        self._batch += 1

    def settle(self) -> dict[bytes, tuple[int, bytes]]:
        """Return the documents, and write all changes to the lake; documents that a failover restored expire again."""
        self.documents.store({"json": b'{"a": [1.10, null]}', "binary": b"\xff", "text": b"no JSON"})
        found = self.documents.contents()
        self.write_batch()
        return found


def run_until_killed(bucket, broker, delivery, point, chance):
    """Run the sink in a process while the bucket changes, until the process is killed.

    Returns:
        The state of the sink at that moment.
    """
    file = Path(f"{bucket.lake.path}.state")
    arguments = [bucket.lake.path, broker.address, delivery, point, file]
    command = [sys.executable, "-m", "tests.compat.kafka_driver", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while process.stdout.readline():  # the process is ready, or has sent all changes
            bucket.change(chance.randrange(1, 4))
            with suppress(BrokenPipeError):
                process.stdin.write(b"\n")
        assert process.wait(PATIENCE) == -signal.SIGKILL
    return STATES[file.read_bytes()[0]]


def choose_point(chance, number):
    """Return where the process kills itself: each kind of place in turn."""
    kinds = (f"record:{chance.randrange(1, 400)}", f"timer:{chance.random() / 5}", f"commit:{chance.random() / 50}")
    return (*kinds, "position")[number % 4]


def check_killed(broker, tmp_path, delivery, rounds):
    chance = random.Random(rounds)
    lake = Lake(tmp_path / "lake")
    with Node.running(["default"], vbuckets=16) as node, Documents.of(node.url("default")) as documents:
        bucket = ChangingBucket(node, documents, lake, rounds)
        bucket.change(10)
        states = [
            run_until_killed(bucket, broker, delivery, choose_point(chance, number), chance) for number in range(rounds)
        ]
        wanted = bucket.settle()
        sink = make_sink(lake, broker.address, delivery)
        catch_up(sink, lake)
        sink.close()
    merged = MergedEvents.merge(broker.consume(f"beer-{delivery}"))
    assert {key: found for (_, key), found in merged.documents.items()} == read_values(wanted)
    return merged, Counter(states)


def test_exactly_once_despite_kills(broker, tmp_path):
    merged, _ = check_killed(broker, tmp_path, "exactly-once", 4)
    assert len(merged.changes) == len(set(merged.changes))
    assert {"r", "u", "d"} <= {event["op"] for event in merged.events}


def test_at_least_once_despite_kills(broker, tmp_path):
    check_killed(broker, tmp_path, "at-least-once", 2)


@pytest.mark.soak
def test_exactly_once_despite_many_kills(broker, tmp_path):
    merged, states = check_killed(broker, tmp_path, "exactly-once", 100)
    assert len(merged.changes) == len(set(merged.changes))
    counts = ", ".join(f"{number} times {state}" for state, number in states.items())
    sys.stdout.write(f"{len(merged.events)} events; killed {counts}\n")  # pytest -s shows it
    assert states["in a transaction"] >= 20
    assert states["in a commit"] >= 10


def test_position_is_found_among_those_of_other_sinks(broker, declare, tmp_path, monkeypatch):
    """The position file is lost, and the broker has newer positions of another sink."""
    monkeypatch.setattr(sink_position, "FIRST_RECORDS", 2)
    monkeypatch.setattr(sink_position, "GROWTH", 3)
    lakes = [Lake(tmp_path / name) for name in ("first", "other")]
    for lake in lakes:
        append(lake, 0, [row(1, 1, b"a", b"1")])
    first, other = (declare(topic="shared").open(lake) for lake in lakes)
    catch_up(first, lakes[0])
    for batch in range(1, 12):
        append(lakes[1], batch, [row(1, 1 + batch, b"a", b"1")])
        catch_up(other, lakes[1])
    first.close()
    first.path.unlink()
    append(lakes[0], 1, [row(1, 2, b"b", b"2")])
    catch_up(first, lakes[0])
    for sink in (first, other):
        sink.close()
    merged = MergedEvents.merge(broker.consume("shared"))
    assert [event["op"] for event in merged.events if event["after"]["key"] == "b"] == ["c"]
    assert len(merged.changes) == 2 + 11


def test_newer_producer_excludes_the_older_one(lake, declare):
    append(lake, 0, [row(1, 1, b"a", b"1")])
    older, newer = (declare(topic="fenced").open(lake) for _ in range(2))
    catch_up(older, lake)
    append(lake, 1, [row(1, 2, b"a", b"2")])
    catch_up(newer, lake)
    newer.path.unlink()
    append(lake, 2, [row(1, 3, b"a", b"3")])
    with pytest.raises(Error, match="another process has taken this sink over"):
        catch_up(older, lake)
    for sink in (older, newer):
        sink.close()


def test_topic_of_positions_must_be_compacted(broker, lake, declare):
    append(lake, 0, [row(1, 1, b"a", b"1")])
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("loose.positions", 1, 1)])["loose.positions"].result()
    with pytest.raises(Error, match=r"has cleanup\.policy 'delete', expected 'compact'"):
        catch_up(declare(topic="loose").open(lake), lake)
    sink = declare(topic="loose", position_topic="tight.positions", tombstones=False, before=True).open(lake)
    catch_up(sink, lake)
    append(lake, 1, [row(1, 2, b"a", b"2"), row(1, 3, b"a", event="deletion")])
    catch_up(sink, lake)
    sink.close()
    merged = MergedEvents.merge(broker.consume("loose"))
    states = [(event["op"], event["before"], event["after"]) for event in merged.events]
    assert [(op, before and before["value"], after and after["value"]) for op, before, after in states] == [
        ("r", None, 1),
        ("u", 1, 2),
        ("d", 2, None),
    ]
    assert merged.tombstones == 0


def test_rollback_is_followed_by_corrections(broker, lake, declare):
    append(lake, 0, [row(1, 1, b"a", b"1"), row(1, 2, b"a", b"2"), row(1, 3, b"b", b"3")])
    sink = declare(topic="back").open(lake)
    catch_up(sink, lake)
    append(lake, 1, [rollback(1, 1, 1), row(1, 2, b"c", b"4", history=1)])
    catch_up(sink, lake)
    sink.close()
    merged = MergedEvents.merge(broker.consume("back"))
    assert {key: value for (_, key), (_, value) in merged.documents.items()} == {b"a": 1, b"c": 4}
    corrected = [(event["op"], event["source"]["correction"]) for event in merged.events if event["op"] in "ud"]
    assert sorted(corrected) == [("d", "lost"), ("u", "restored")]
    (event,) = [json.loads(record.value()) for record in broker.consume("back.rollbacks")]
    assert (event["vbucket"], event["seqno"], event["vbuuid"], event["history"]) == (1, 1, "1001", 1)


def test_record_that_is_too_large_is_named(lake, declare):
    append(lake, 0, [row(1, 1, b"large", bytes(2_000_000))])
    sink = declare(topic="small", properties={"message.max.bytes": 100_000}).open(lake)
    with pytest.raises(Error, match=r"refused the record of key large of collection .*vbucket 1, seqno 1, .*too large"):
        catch_up(sink, lake)


@pytest.fixture
def limited(broker):
    """Return the name of a topic that takes only small records, though the client sends larger ones."""
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    name = f"limited{len(broker.list_topics())}"
    admin.create_topics([NewTopic(name, 2, 1, config={"max.message.bytes": "20000"})])[name].result(PATIENCE)
    return name


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_records_that_a_broker_refuses_become_dead_letters(
    broker, lake, declare, limited, delivery, tmp_path, monkeypatch
):
    """The others follow. After a crash between dead letters and position, each of both is there once."""
    big = {b"big1": (1, 2), b"big2": (1, 3), b"big3": (60, 1)}
    rows = [row(*place, key, bytes(50_000)) for key, place in big.items()]
    rows += [row(3, number, b"small%03d" % number, bytes(200)) for number in range(1, 300)]  # too large for one batch
    rows += [row(1, 1, b"before", b"1"), row(1, 4, b"after", b"4"), row(60, 2, b"last", b"5")]
    append(lake, 0, rows)
    declared = declare(topic=limited, delivery=delivery, dead_letter_path=str(tmp_path / "letters"))
    with monkeypatch.context() as here:
        for producer in (TransactionalProducer, FlushedProducer):
            here.setattr(producer, "commit", crash)
        with pytest.raises(KeyboardInterrupt):
            catch_up(declared.open(lake), lake)
    sink = declared.open(lake)
    catch_up(sink, lake)
    append(lake, 1, [row(1, 5, b"big4", bytes(50_000)), row(1, 6, b"small", b"6")])
    catch_up(sink, lake)
    sink.close()
    letters = pq.read_table(tmp_path / "letters").sort_by("key")
    assert letters["key"].to_pylist() == [*big, b"big4"]
    assert set(letters["error"].to_pylist()) == {"MSG_SIZE_TOO_LARGE"}
    keys = sorted(record.key() for record in broker.consume(limited))
    wanted = sorted([*(b"small%03d" % number for number in range(1, 300)), b"after", b"before", b"last", b"small"])
    assert keys == wanted if delivery == "exactly-once" else sorted(set(keys)) == wanted


def crash(producer, position):
    """End as if killed when the brokers have all records, and no position."""
    producer._flush()
    raise KeyboardInterrupt


def declare_login(broker, mechanism="SCRAM-SHA-512", **keys):
    login = {"tls": True, "ca_file": broker.directory / "ca.pem", "username": USER, "password_env": "KAFKA_PASSWORD"}
    return {"brokers": (broker.login_address,), "sasl_mechanism": mechanism, **login, **keys}


def declare_certificate(broker, owner):
    files = {"certificate_file": owner / "client.pem", "key_file": owner / "client.key"} if owner else {}
    return {"brokers": (broker.certificate_address,), "tls": True, "ca_file": broker.directory / "ca.pem", **files}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", None], ids=str)
def test_login_over_tls(broker, lake, declare, monkeypatch, mechanism):
    """With a password, or with the certificate of a client."""
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    append(lake, 0, [row(1, 1, b"a", b"1")])
    keys = declare_login(broker, mechanism) if mechanism else declare_certificate(broker, broker.directory)
    sink = declare(topic=f"tls-{mechanism}", **keys).open(lake)
    catch_up(sink, lake)
    sink.close()
    assert len(MergedEvents.merge(broker.consume(f"tls-{mechanism}")).changes) == 1


REFUSED = [
    ("wrong password", "refused the login of 'ada' with SCRAM-SHA-512: Authentication failed .*invalid credentials"),
    ("unknown user", "refused the login of 'bob' with PLAIN: Authentication failed: Invalid username or password"),
    (
        "unknown authority",
        r"is not trusted: it is of another host, or not signed by an authority of ca_file '.*ca\.pem'",
    ),
    ("no authority", "is not trusted: it is of another host, or not signed by an authority of the system"),
    ("no certificate", r"expects certificate_file and key_file \(bad certificate\)"),
    ("strange certificate", r"refused the certificate in certificate_file '.*' \(certificate unknown\)"),
]


@pytest.mark.parametrize(
    ("case", "reason", "delivery"),
    [(*case, "exactly-once") for case in REFUSED] + [(*case, "at-least-once") for case in REFUSED[::5]],
    ids=lambda each: each[:20],
)
def test_refused_connection_ends_at_once(broker, lake, declare, strange, monkeypatch, caplog, case, reason, delivery):
    """The sentence names the cause, and comes long before the end of the timeout. Nothing shows the password."""
    caplog.set_level(logging.DEBUG)
    wrong = "Wasser-und-Salz"
    monkeypatch.setenv("KAFKA_PASSWORD", wrong if case == "wrong password" else PASSWORD)
    keys = {
        "wrong password": declare_login(broker),
        "unknown user": declare_login(broker, "PLAIN", username="bob"),
        "unknown authority": declare_login(broker, ca_file=strange / "ca.pem"),
        "no authority": declare_login(broker, ca_file=None),
        "no certificate": declare_certificate(broker, None),
        "strange certificate": declare_certificate(broker, strange),
    }[case]
    append(lake, 0, [row(1, 1, b"a", b"1")])
    sink = declare(topic="refused", delivery=delivery, timeout=3600, **keys).open(lake)
    with pytest.raises(Error, match=f"Kafka at {keys['brokers'][0]} {reason}") as caught:
        catch_up(sink, lake)
    assert isinstance(caught.value, UntrustedNode) == ("authority" in case)
    assert sink.position() is None
    assert not [secret for secret in (PASSWORD, wrong) if secret in str(caught.value) + caplog.text + repr(vars(sink))]


def test_files_of_tls_are_checked_before_a_connection(broker, declare, strange):
    with pytest.raises(UsageError, match=r"certificate_file: no certificate .*: key values mismatch"):
        declare(topic="t", **{**declare_certificate(broker, strange), "key_file": broker.directory / "client.key"})
    with pytest.raises(UsageError, match=r"ca_file: no certificates in .*: no certificate or crl found"):
        declare(topic="t", tls=True, ca_file=strange / "client.key")
