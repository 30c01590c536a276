"""`penstock cluster` drives processes of nodes from a file."""

import asyncio
import json
import subprocess
import sys

import pytest

import penstock
from penstock.client.cluster.cluster_file import read_cluster_file
from penstock.client.cluster.orchestrator_lock import LockRole, OrchestratorLock
from penstock.errors import UsageError
from tests.node.serve_process import run_processes
from tests.patience import PATIENCE
from tests.waiting import wait_readable

KEYS = [f"key{number}" for number in range(48)]
VBUCKETS = 8


@pytest.fixture
def processes(tmp_path):
    with run_processes(tmp_path, 3) as started:
        yield started


def name(process):
    return f"127.0.0.1:{process.ports[0]}"


def write_file(path, processes, replicas=1, more=""):
    lines = [f'[[bucket]]\nname = "beer"\nvbuckets = {VBUCKETS}\nreplicas = {replicas}\n', more]
    lines += [f'[[node]]\nurl = "couchbase://{name(each)}"\nhttp = "127.0.0.1:{each.ports[1]}"\n' for each in processes]
    path.write_text("\n".join(lines))
    return path


def url(processes):
    return f"couchbase://{','.join(map(name, processes))}/beer?operationTimeout={PATIENCE}&retrySeconds={PATIENCE}"


def write(processes, text):
    async def run():
        async with penstock.connect(url(processes)) as bucket:
            for key in KEYS:
                await bucket.upsert(key, text, durability="majority")

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def read(processes):
    async def run():
        async with penstock.connect(url(processes)) as bucket:
            return {found.value for found in await bucket.get_many(KEYS) if found is not None}

    return asyncio.run(asyncio.wait_for(run(), PATIENCE))


def read_status(run, file):
    result = run("cluster", "status", file, "--json")
    return result.code, [json.loads(line) for line in result.out.splitlines()]


def start_run(file):
    command = [sys.executable, "-m", "penstock", "cluster", "run", str(file), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process


def wait_for_replicas(process, count):
    while True:
        assert wait_readable([process.stdout], PATIENCE), "no line in time"
        if json.loads(process.stdout.readline())["replicas"] == count:
            return


@pytest.mark.process
@pytest.mark.long
def test_node_dies_is_failed_over_and_returns(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes)
    assert run("cluster", "apply", file).code == 0
    again = run("cluster", "apply", file)
    assert (again.code, again.out) == (0, "no difference\n")
    code, rows = read_status(run, file)
    owners = [row["owner"] for row in rows]
    assert (code, sorted(map(owners.count, {*owners})), {len(row["replicas"]) for row in rows}) == (0, [2, 3, 3], {1})
    keeping = start_run(file)
    try:
        wait_for_replicas(keeping, VBUCKETS)
        second = run("cluster", "run", file)
        assert (second.code, f"process {keeping.pid} of" in second.err) == (2, True)
        write(processes, b"three nodes")
        processes[2].kill()
        assert read_status(run, file)[0] == 1
        assert run("cluster", "failover", file, name(processes[2]), "--rebalance").code == 0
        code, rows = read_status(run, write_file(tmp_path / "two.toml", processes[:2]))
        assert (code, {row["state"] for row in rows}) == (0, {"ok"})
        assert read(processes[:2]) == {b"three nodes"}
        write(processes[:2], b"two nodes")
        processes[2].start()
        check = run("cluster", "apply", file, "--check")
        assert (check.code, "vbuckets to move" in check.out) == (1, True)
        assert run("cluster", "apply", file).code == 0
        code, rows = read_status(run, file)
        assert (code, {row["owner"] for row in rows}) == (0, set(map(name, processes)))
        assert read(processes) == {b"two nodes"}
        assert run("cluster", "remove", file, name(processes[1])).code == 0
        code, rows = read_status(run, write_file(tmp_path / "rest.toml", [processes[0], processes[2]]))
        assert (code, {row["owner"] for row in rows}) == (0, {name(processes[0]), name(processes[2])})
        write([processes[0], processes[2]], b"removed")
        assert read([processes[0]]) == {b"removed"}
    finally:
        keeping.kill()
        keeping.communicate(timeout=PATIENCE)


def test_users_are_created_and_changed(run, tmp_path, processes):
    (tmp_path / "secret").write_text("hops and malt")
    user = '[[user]]\nname = "brewer"\npassword_file = "secret"\nroles = ["data_reader[beer]"]\n'
    file = write_file(tmp_path / "lab.toml", processes[:1], 0, user)
    result = run("cluster", "apply", file)
    if result.code == 0:
        users = processes[0].web.get_json("/settings/rbac/users/local")
        assert [(each["id"], each["roles"][0]["role"]) for each in users] == [("brewer", "data_reader")]
    else:  # a node without a file of users has none to change
        assert "refused" in result.err
    assert "hops" not in result.out + result.err


def test_second_orchestrator_is_refused(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes[:2])
    assert run("cluster", "apply", file).code == 0
    content = read_cluster_file(file)
    address = content.make_address("beer")

    async def hold():
        lock, other = OrchestratorLock(address, LockRole.MAP), OrchestratorLock(address, LockRole.MAP)
        streams = OrchestratorLock(address, LockRole.STREAMS)
        endpoints = [node.endpoint for node in content.nodes]
        await lock.take(endpoints)
        await streams.take(endpoints)
        with pytest.raises(UsageError, match="expected one orchestrator at a time"):
            await other.take(endpoints[1:])
        await lock.close()
        await other.take(endpoints)
        await other.close()
        await streams.close()

    asyncio.run(asyncio.wait_for(hold(), PATIENCE))


WRONG = {
    "": "has no [[node]], expected at least one",
    "[[node]]\nurl = 5\n": "url is 5, expected text",
    "[[node]]\nurl = 'couchbase://a,b'\n": "has 2 hosts, expected one node",
    "[[node]]\nurl = 'couchbase://a'\n": "has no [[bucket]], expected at least one",
    "[[node]]\nurl = 'couchbase://a'\n[[bucket]]\nname = 'beer'\n": "has 1 replicas, expected fewer than nodes",
    "[[node]]\nurl = 'couchbase://a'\n[[bucket]]\nname = 'beer'\nvbuckets = 5\n": "vbuckets is 5, expected a power",
    "[[node]]\nurl = 'couchbase://a'\n[[node]]\nurl = 'couchbase://a'\n": "is given twice",
    "[node]\nurl = 'couchbase://a'\n": "node is not a list of tables",
    "[[nodes]]\nurl = 'couchbase://a'\n": "did you mean node?",
    "[login]\npassword = 'b'\n[[node]]\nurl = 'couchbase://a'\n[[bucket]]\nname = 'b'\nreplicas = 0\n": (
        "must not hold a password"
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_files_are_refused(tmp_path, text):
    file = tmp_path / "lab.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as found:
        read_cluster_file(file)
    assert WRONG[text] in str(found.value)


def test_node_that_does_not_answer_is_named(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes[:1], 0)
    file.write_text(file.read_text().replace(name(processes[0]), f"{name(processes[0])}?retrySeconds=0.1"))
    processes[0].kill()
    result = run("cluster", "apply", file)
    assert "does not answer over HTTP" in result.err
    assert result.code == 1
