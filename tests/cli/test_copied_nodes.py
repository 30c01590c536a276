"""Nodes whose data directories are copies, and nodes that are listed twice: commands refuse them and name both."""

import json
import shutil

import pytest

from tests.cli.test_cluster_commands import name, start_run, wait_for_replicas, write_file
from tests.node.serve_process import ServeProcess, run_processes
from tests.node.wire_client import connected
from tests.patience import PATIENCE
from tests.ports import free_ports


@pytest.fixture
def processes(tmp_path):
    with run_processes(tmp_path, 2) as started:
        yield started


def read_identity(process):
    with connected(process.node) as client:
        stats = client.stats("")
    return stats["node_uuid"], stats["start_id"]


def copy_node(tmp_path, process, ports):
    """Start a copy of a node's directory, which was made while the node was stopped."""
    shutil.copytree(process.options[process.options.index("--data-dir") + 1], tmp_path / "copy")
    process.start()
    return ServeProcess(tmp_path / "copy", ports)


@pytest.mark.process
def test_directory_keeps_the_uuid_and_each_start_has_an_id(processes):
    first, second = processes
    before, other = read_identity(first), read_identity(second)
    assert len({*before, *other}) == 4
    page = json.loads(first.web.get("/pools/default").body)
    (node,) = page["nodes"]
    assert (node["nodeUUID"], node["startId"]) == before
    first.kill()
    first.start()
    after = read_identity(first)
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)


@pytest.mark.process
def test_copy_beside_its_original_is_refused(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes)
    assert run("cluster", "apply", file).code == 0
    keeping = start_run(file)
    try:
        wait_for_replicas(keeping, 8)
        original, replaced = processes
        original.kill()
        replaced.kill()
        copy = copy_node(tmp_path, original, replaced.ports)
        try:
            uuid, _ = read_identity(copy)
            reported = f"{name(original)} and {name(copy)} are two nodes with the uuid {uuid}"
            _, err = keeping.communicate(timeout=PATIENCE)
            assert (keeping.returncode, reported in err) == (2, True)
            for command in ("apply", "status", "rebalance", "run"):
                refused = run("cluster", command, file)
                assert (refused.code, reported in refused.err) == (2, True), (command, refused.err)
            removed = run("cluster", "remove", write_file(tmp_path / "other.toml", processes, 0), name(original))
            assert (removed.code, reported in removed.err) == (2, True)
            found = run("doctor", "--quiet", "--url", f"couchbase://{name(original)},{name(copy)}/beer")
            assert (found.code, reported in " ".join(found.out.split())) == (1, True)
        finally:
            copy.kill()
    finally:
        keeping.kill()
        keeping.communicate(timeout=PATIENCE)


@pytest.mark.process
def test_copy_at_a_new_address_is_refused_before_it_changes(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes)
    assert run("cluster", "apply", file).code == 0
    processes[0].kill()
    copy = copy_node(tmp_path, processes[0], free_ports(2))
    try:
        more = '[[bucket]]\nname = "wine"\nvbuckets = 8\nreplicas = 0\n'
        refused = run("cluster", "apply", write_file(tmp_path / "more.toml", [*processes, copy], 1, more))
        reported = f"{name(processes[0])} and {name(copy)} are two nodes with the uuid"
        assert (refused.code, reported in refused.err) == (2, True)
        pages = [json.loads(each.web.get("/pools/default/buckets").body) for each in (*processes, copy)]
        assert [sorted(bucket["name"] for bucket in page) for page in pages] == [["beer", "default"]] * 3
    finally:
        copy.kill()


@pytest.mark.process
def test_node_that_is_listed_twice_is_refused(run, tmp_path, processes):
    one = processes[:1]
    assert run("cluster", "apply", write_file(tmp_path / "one.toml", one, 0)).code == 0
    file = write_file(tmp_path / "twice.toml", [*one, *one], 0)
    before, between, after = file.read_text().rpartition(f"couchbase://{name(one[0])}")
    file.write_text(before + between.replace("127.0.0.1", "localhost") + after)
    reported = f"{name(one[0])} and localhost:{one[0].ports[0]} are the same node, expected different nodes"
    for command in ("apply", "status", "run"):
        refused = run("cluster", command, file)
        assert (refused.code, reported in refused.err) == (2, True), (command, refused.err)
    twice = f"couchbase://{name(one[0])},localhost:{one[0].ports[0]}/beer"
    found = run("doctor", "--quiet", "--url", twice)
    assert (found.code, reported in " ".join(found.out.split())) == (1, True)
