"""Clients use three nodes while one is killed and failed over, and vbuckets move."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.client.documents.document import compute_vbucket
from tests.compat.cluster_clients import (
    VBUCKETS,
    ConsumerRecord,
    DrivenCluster,
    ReceivedMutation,
    ReceivedRollback,
    WriterRecord,
)
from tests.compat.installed import find_go_program, make_java_command, require_package
from tests.compat.running import Program
from tests.ports import free_ports

pytestmark = pytest.mark.long


def make_python_command(client):
    require_package(client)
    return [sys.executable, str(Path(__file__).parent / "python_writer.py"), client]


WRITERS = {
    "Penstock": lambda: make_python_command("penstock"),
    "Python SDK": lambda: make_python_command("couchbase"),
    "Java SDK": lambda: make_java_command("Write"),
    "gocb": lambda: [find_go_program("write")],
}


@pytest.fixture(params=WRITERS)
def writer(request):
    """The command of a writer. Tests request it before the cluster, so that a missing program starts nothing."""
    return WRITERS[request.param]()


@pytest.fixture
def cluster(tmp_path):
    with DrivenCluster.running(tmp_path) as running:
        yield running


def test_acknowledged_writes_survive(writer, cluster):
    """Ordinary writes may be lost by the failover alone."""
    failover = -1
    with Program.running([*writer, *cluster.make_arguments()]) as program:
        record = WriterRecord(program)
        record.wait_for_more()
        for change in cluster.change():
            line = record.wait_for_more()
            failover = line if change == "failover" else failover
        lost = record.find_lost(record.stop())
    for key, write in lost.items():
        assert key.startswith("plain"), (key, write)
        assert write.line < failover, (key, write)
        assert compute_vbucket(key.encode(), VBUCKETS) in cluster.owned, (key, write)


def parse_go_line(line):
    change = json.loads(line)
    if change["event"] != "mutation":
        return None
    return ReceivedMutation(change["vbucket"], change["seqno"], change["key"], int(change["value"]))


def parse_java_line(line):
    kind, *rest = line.split()
    if kind == "rollback":
        return ReceivedRollback(*map(int, rest))
    if kind != "mutation":
        return None
    key, _, value, vbucket, seqno = rest
    return ReceivedMutation(int(vbucket), int(seqno), key.removeprefix("_default._default."), int(value))


class StreamConsumer(NamedTuple):
    """A consumer of change streams.

    Attributes:
        find_program: returns the beginning of its command.
        list_arguments: returns the rest of its command.
        parse: returns the change in one of its lines, None for other lines.
    """

    find_program: Callable[[], list[str]]
    list_arguments: Callable[[DrivenCluster], list[str]]
    parse: Callable[[str], ReceivedMutation | ReceivedRollback | None]


def make_java_consumer(changes):
    return StreamConsumer(
        lambda: make_java_command("Dcp"),
        lambda cluster: [*cluster.make_arguments(), "never", changes],
        parse_java_line,
    )


CONSUMERS = {
    "go-dcp": StreamConsumer(
        lambda: [find_go_program("stream")],
        lambda cluster: [cluster.http_url, *cluster.make_arguments()[1:], "group", "couchbase", str(free_ports(1)[0])],
        parse_go_line,
    ),
    "java-dcp-client": make_java_consumer("all"),
    "java-dcp-client of the connectors": make_java_consumer("persisted"),
}


@pytest.fixture(params=CONSUMERS)
def consumer(request):
    found = CONSUMERS[request.param]
    found.find_program()
    return found


def test_consumer_receives_the_last_value_of_each_document(consumer, cluster):
    """A change that the failover loses is rolled back, or is not delivered before all replicas have it."""
    writer = [*make_python_command("penstock"), *cluster.make_arguments()]
    command = [*consumer.find_program(), *consumer.list_arguments(cluster)]
    with Program.running(writer) as writing, Program.running(command) as consuming:
        record, received = WriterRecord(writing), ConsumerRecord(consuming, consumer.parse)
        record.wait_for_more()
        received.wait_for(record.find_last_writes())
        for _ in cluster.change():
            record.wait_for_more()
            received.wait_for(record.find_last_writes())
        kept = record.stop()
        received.wait_for(kept)
    assert received.values == kept
