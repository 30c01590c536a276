"""The Python SDK writes while `penstock cluster` fails a node over, takes it back, and removes a second node."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from threading import Event

import pytest

from tests.compat.installed import require_package
from tests.compat.kept_writer import KeptWriter, wait_for_more
from tests.node.serve_process import VBUCKETS, run_processes
from tests.patience import PATIENCE
from tests.waiting import wait_readable

require_package("couchbase")

from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.options import UpsertOptions

DURABLE = ServerDurability(DurabilityLevel.MAJORITY)
TIMEOUT = timedelta(seconds=10)


def cluster(*words):
    """Run a command, which succeeds."""
    command = [sys.executable, "-m", "penstock", "cluster", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def nodes(tmp_path):
    with run_processes(tmp_path, 3) as started:
        yield started


@pytest.fixture
def file(tmp_path, nodes):
    text = f'[[bucket]]\nname = "default"\nvbuckets = {VBUCKETS}\n'
    for node in nodes:
        text += f'[[node]]\nurl = "couchbase://127.0.0.1:{node.ports[0]}"\nhttp = "127.0.0.1:{node.ports[1]}"\n'
    path = tmp_path / "lab.toml"
    path.write_text(text)
    cluster("apply", path)
    command = [sys.executable, "-m", "penstock", "cluster", "run", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as keeping:
        assert wait_readable([keeping.stdout], PATIENCE)
        yield path
        keeping.kill()


def test_durable_writes_of_the_sdk_survive_all_commands(nodes, file, connect_cluster):
    collection = connect_cluster(f"couchbase://127.0.0.1:{nodes[0].ports[0]}").bucket("default").default_collection()
    options = UpsertOptions(durability=DURABLE, timeout=TIMEOUT)
    plain = KeptWriter("plain", lambda key: collection.upsert(key, key))
    durable = KeptWriter("durable", lambda key: collection.upsert(key, key, options))
    over = Event()
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        stack.callback(over.set)
        running = [pool.submit(writer.run, over) for writer in (plain, durable)]
        wait_for_more([plain, durable])
        nodes[2].kill()
        cluster("failover", file, f"127.0.0.1:{nodes[2].ports[0]}", "--rebalance")
        wait_for_more([plain, durable])
        after_failover = len(plain.written)
        nodes[2].start()
        cluster("apply", file)
        wait_for_more([plain, durable])
        cluster("remove", file, f"127.0.0.1:{nodes[1].ports[0]}")
        wait_for_more([plain, durable])
        over.set()
        for each in running:
            each.result(PATIENCE)
    kept = [*durable.written, *plain.written[after_failover:]]  # ordinary writes before may be lost by the failover
    assert {key: collection.get(key).value for key in kept} == {key: key for key in kept}
