"""Clients use three nodes while one is killed and failed over, and vbuckets move."""

import sys
from pathlib import Path

import pytest

from penstock.client.documents.document import compute_vbucket
from tests.compat.cluster_clients import VBUCKETS, DrivenCluster, WriterRecord
from tests.compat.installed import find_go_program, make_java_command, require_package
from tests.compat.running import Program

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
