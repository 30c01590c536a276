"""`penstock cluster` drives processes of nodes from a file."""

import asyncio
import json
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import penstock
from penstock.client.cluster.cluster_file import read_cluster_file
from penstock.client.cluster.node_pages import NodePages
from penstock.client.cluster.orchestrator_lock import LockRole, OrchestratorLock
from penstock.client.connect.address import parse_address
from penstock.client.login.credentials import Credentials
from penstock.client.replication.node_control import NodeControl
from penstock.client.replication.replica_consumers import list_connections
from penstock.errors import RemoteProtocolError, UsageError
from penstock.wire.codec.constants import VbucketState
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


def write(processes, text, durability="majority"):
    async def run():
        async with penstock.connect(url(processes)) as bucket:
            for key in KEYS:
                await bucket.upsert(key, text, durability=durability)

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


async def wait_for_the_map(process):
    """Wait until a node that was failed over has no vbucket active: `cluster run` gives it the newest map."""
    async with NodeControl(parse_address(url([process]))) as control:
        while VbucketState.ACTIVE in (await control.read_states()).values():
            pass


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("lost", [0, 2], ids=["first of the file", "last of the file"])
def test_node_dies_is_failed_over_and_returns(run, tmp_path, processes, lost):
    file = write_file(tmp_path / "lab.toml", processes)
    rest = [process for process in processes if process is not processes[lost]]
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
        processes[lost].kill()
        assert read_status(run, file)[0] == 1
        assert run("cluster", "failover", file, name(processes[lost]), "--rebalance").code == 0
        code, rows = read_status(run, write_file(tmp_path / "two.toml", rest))
        assert (code, {row["state"] for row in rows}) == (0, {"ok"})
        assert read(rest) == {b"three nodes"}
        write(rest, b"two nodes")
        processes[lost].start()
        asyncio.run(asyncio.wait_for(wait_for_the_map(processes[lost]), PATIENCE))
        refused = run("cluster", "remove", file, name(processes[1]))  # the node is not in the map before the next apply
        assert (refused.code, "1 replicas on 1 nodes" in refused.err, "takeover" in refused.out) == (2, True, False)
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
        assert run("cluster", "rebalance", file).code == 0
        code, rows = read_status(run, file)
        assert (code, {row["owner"] for row in rows}) == (0, set(map(name, processes)))
        assert list_http_ports(processes[0]) == {process.ports[1] for process in processes}
    finally:
        keeping.kill()
        keeping.communicate(timeout=PATIENCE)


def list_http_ports(process):
    """Return the ports for HTTP in the map of a node."""
    return {entry["services"]["mgmt"] for entry in process.web.get_json("/pools/default/b/beer")["nodesExt"]}


def test_new_bucket_is_spread_without_moves(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes)
    file.write_text(file.read_text().replace(f"vbuckets = {VBUCKETS}", "vbuckets = 1024"))
    result = run("cluster", "apply", file, "--json")
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert (result.code, [line for line in lines if "vbucket" in line], len(lines)) == (0, [], 4)
    code, rows = read_status(run, file)
    assert (code, {row["state"] for row in rows}, len(rows)) == (0, {"ok"}, 1024)
    assert all(list(row["age"]) == row["replicas"] and min(row["age"].values()) >= 0 for row in rows)
    text = run("cluster", "status", file)
    assert "1,024 of 1,024 vbuckets ok" in text.out


def test_bucket_with_documents_is_spread_by_moves(run, tmp_path, processes):
    first = write_file(tmp_path / "one.toml", processes[:1], 0)
    assert run("cluster", "apply", first).code == 0
    assert run("cluster", "failover", first, name(processes[0])).code == 2
    write(processes[:1], b"before")
    file = write_file(tmp_path / "lab.toml", processes)
    result = run("cluster", "apply", file)
    assert (result.code, "takeover" in result.out) == (0, True)
    assert read(processes) == {b"before"}
    other = write_file(tmp_path / "other.toml", processes[:2])
    refused = run("cluster", "apply", other)
    assert (refused.code, f"the map of beer has node {name(processes[2])}" in refused.err) == (2, True)


def test_new_node_may_be_the_first_of_the_file(run, tmp_path, processes):
    assert run("cluster", "apply", write_file(tmp_path / "two.toml", processes[1:], 0)).code == 0
    write(processes[1:], b"two nodes")
    assert run("cluster", "apply", write_file(tmp_path / "three.toml", processes, 0)).code == 0
    code, rows = read_status(run, tmp_path / "three.toml")
    assert (code, {row["owner"] for row in rows}) == (0, set(map(name, processes)))
    assert read(processes[:1]) == {b"two nodes"}


def test_removed_node_gets_vbuckets_by_move(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes)
    assert run("cluster", "apply", file).code == 0
    assert run("cluster", "remove", file, name(processes[2])).code == 0
    vbucket = next(row["vbucket"] for row in read_status(run, file)[1] if row["owner"] == name(processes[0]))
    first, last = (f"couchbase://{name(processes[at])}/beer" for at in (0, 2))
    assert run("move", "--vbucket", vbucket, "--from", first, "--to", last).code == 0
    assert read_status(run, file)[1][vbucket]["owner"] == name(processes[2])


def test_bucket_with_another_number_of_vbuckets_is_refused(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes[:1], 0)
    assert run("cluster", "apply", file).code == 0
    file.write_text(file.read_text().replace(f"vbuckets = {VBUCKETS}", "vbuckets = 16"))
    refused = run("cluster", "apply", file)
    assert (refused.code, f"{VBUCKETS} vbuckets, expected 16" in refused.err) == (2, True)


@pytest.mark.process
def test_failover_reports_each_bucket(run, tmp_path, processes):
    more = f'[[bucket]]\nname = "wine"\nvbuckets = {VBUCKETS}\nreplicas = 0\n'
    file = write_file(tmp_path / "lab.toml", processes[:2], 1, more)
    assert run("cluster", "apply", file).code == 0
    processes[1].kill()
    refused = run("cluster", "failover", file, name(processes[1]), "--json")
    assert [json.loads(line)["bucket"] for line in refused.out.splitlines()] == ["beer"]
    assert (refused.code, "bucket wine: vbuckets" in refused.err) == (2, True)
    lost = run("cluster", "failover", file, name(processes[1]), "--lose")
    assert (lost.code, "wine: changes may be lost" in lost.err, "no node serves them" in lost.err) == (1, True, True)
    one = write_file(tmp_path / "one.toml", processes[:1], 0, more)
    check = run("cluster", "apply", one, "--check")
    assert (check.code, "bucket wine: vbuckets 4-7 not active" in check.out) == (1, True)
    assert run("cluster", "apply", one).code == 0
    assert {row["owner"] for row in read_status(run, one)[1]} == {name(processes[0])}
    # The node that returns has nothing of its own in them: it gets replicas.
    processes[1].start()
    assert run("cluster", "apply", file).code == 0
    assert {row["state"] for row in read_status(run, file)[1]} == {"ok"}


@pytest.mark.process
def test_lost_vbuckets_return_with_their_node(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes[:2], 0)
    assert run("cluster", "apply", file).code == 0
    write(processes[:2], b"kept", None)
    processes[1].kill()
    assert run("cluster", "failover", file, name(processes[1]), "--lose").code == 1
    processes[1].start()
    assert run("cluster", "apply", file).code == 0
    assert read(processes[:2]) == {b"kept"}
    assert {row["state"] for row in read_status(run, file)[1]} == {"ok"}


@pytest.mark.process
def test_copies_of_a_restarted_node_are_promoted_once_a_stream_has_reached_them(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes[:2])
    assert run("cluster", "apply", file).code == 0
    copies, owner = processes[:2]
    copies.kill()
    copies.start()
    reason = f"no stream has reached the {{}} at {name(copies)} since that node's start"
    code, rows = read_status(run, file)
    found = {(row["owner"], row["state"], len(row["age"])) for row in rows}
    assert (code, found) == (
        1,
        {(name(owner), reason.format("replica"), 0), (name(copies), "ok", 1)},
    )
    assert " ? " in run("cluster", "status", file).out
    refused = run("cluster", "failover", file, name(owner))
    assert (refused.code, reason.format("copy") in refused.err) == (2, True)
    keeping = start_run(file)
    try:
        wait_for_replicas(keeping, VBUCKETS)
        code, rows = read_status(run, file)
        assert (code, [*map(len, [row["age"] for row in rows])]) == (0, [1] * VBUCKETS)
    finally:
        keeping.kill()
        keeping.communicate(timeout=PATIENCE)
    assert run("cluster", "failover", file, name(owner)).code == 0


@pytest.mark.process
def test_users_are_created_and_changed(run, tmp_path, monkeypatch):
    (tmp_path / "admin").write_text("hops and malt")
    (tmp_path / "secret").write_text("barley")
    users = str(tmp_path / "users.json")
    monkeypatch.setenv("PENSTOCK_USERS", users)
    assert run("user", "add", "root", "--role", "admin", stdin=b"hops and malt").code == 0
    login = '[login]\nusername = "root"\npassword_file = "admin"\n'
    user = '[[user]]\nname = "brewer"\npassword_file = "secret"\nroles = ["data_reader[beer]", "data_writer[beer]"]\n'
    with run_processes(tmp_path, 2, "--users", users) as started:
        file = write_file(tmp_path / "lab.toml", started, 1, login + user)
        result = run("cluster", "apply", file)
        assert (result.code, f"user brewer at {name(started[0])}: missing" in result.out) == (0, True)
        assert run("cluster", "apply", file).out == "no difference\n"
        assert run("cluster", "status", file).code == 0
        check_login(started, "barley")
        (tmp_path / "secret").write_text("hops")
        check = run("cluster", "apply", file, "--check")
        assert (check.code, check.out.count("another password, expected that of its file")) == (1, 2)
        assert run("cluster", "apply", file).code == 0
        check_login(started, "hops")
        assert run("cluster", "apply", file).out == "no difference\n"
        file.write_text(file.read_text().replace(', "data_writer[beer]"', ""))
        changed = run("cluster", "apply", file)
        found = "roles data_reader[beer], data_writer[beer], expected roles data_reader[beer]"
        assert (changed.code, found in changed.out) == (0, True)
        (tmp_path / "admin").write_text("wrong")
        refused = run("cluster", "apply", file)
        assert (refused.code, "refused the login over HTTP" in refused.err) == (1, True)
        printed = "".join(each.out + each.err for each in (result, changed, refused))
        assert not [secret for secret in ("hops and malt", "barley") if secret in printed]


def check_login(processes, password):
    async def run():
        async with penstock.connect(url(processes), username="brewer", password=password) as bucket:
            await bucket.upsert("ale", b"{}")

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_second_orchestrator_is_refused(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes[:2])
    assert run("cluster", "apply", file).code == 0
    content = read_cluster_file(file)
    address, endpoints = content.make_address("beer"), [node.endpoint for node in content.nodes]

    async def hold():
        async with (
            OrchestratorLock(address, LockRole.MAP) as lock,
            OrchestratorLock(address, LockRole.STREAMS) as other,
        ):
            await lock.take(endpoints)
            await other.take(endpoints)
            async with OrchestratorLock(address, LockRole.MAP) as second:
                with pytest.raises(UsageError, match="expected one orchestrator at a time"):
                    await second.take(endpoints[1:])
        async with OrchestratorLock(address, LockRole.MAP) as second:
            await second.take(endpoints)

    asyncio.run(asyncio.wait_for(hold(), PATIENCE))


async def wait_for(control):
    """Wait for a lock at a node."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while asyncio.get_running_loop().time() < deadline:
        if list_connections(await control.read_stats("dcp")):
            return


@pytest.mark.process
def test_lock_is_held_again_after_a_node_has_restarted(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes[:1], 0)
    assert run("cluster", "apply", file).code == 0
    address = read_cluster_file(file).make_address("beer")

    async def hold():
        async with OrchestratorLock(address, LockRole.STREAMS) as lock:
            await lock.take(address.hosts)
            holding = asyncio.create_task(lock.hold(address.hosts))
            await asyncio.to_thread(processes[0].kill)
            await asyncio.to_thread(processes[0].start)
            async with NodeControl(address) as control:
                await wait_for(control)
                while not any("orchestrator" in name for name in list_connections(await control.read_stats("dcp"))):
                    continue
            async with OrchestratorLock(address, LockRole.STREAMS) as second:
                with pytest.raises(UsageError, match="expected one orchestrator at a time"):
                    await second.take(address.hosts)
            assert not holding.done()
            holding.cancel()

    asyncio.run(asyncio.wait_for(hold(), PATIENCE))


WRONG = {
    "": "has no [[node]], expected at least one",
    "[[node]]\nurl = 5\n": "url is 5, expected text",
    "[[node]]\nurl = 'couchbase://a,b'\n": "has 2 hosts, expected one node",
    "[[node]]\nurl = 'couchbase://me:hops@a'\n": "contains a login",
    "[[node]]\nurl = 'couchbase://a'\nhttp = 'a:b'\n": "port 'b'",
    "[[node]]\nurl = 'couchbase://a'\n": "has no [[bucket]], expected at least one",
    "[[node]]\nurl = 'couchbase://a'\n[[bucket]]\nname = 'beer'\n": "beer: 1 replicas on 1 nodes, expected at most 0",
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
    assert "hops" not in str(found.value)


def test_password_is_not_sent_where_others_can_read_it():
    address = parse_address("couchbase://node.example:11210", Credentials("root", "hops"))

    async def ask():
        pages = NodePages(address, ("node.example", 8091))
        with pytest.raises(UsageError, match="HTTP needs the password unencrypted at node"):
            await pages.read_buckets()
        pages = NodePages(replace(address, credentials=None), ("node.example", 8091))
        with pytest.raises(UsageError, match="HTTP needs the password unencrypted at node"):
            await pages.put_user(Credentials("brewer", "barley"), ())

    asyncio.run(ask())


@pytest.mark.parametrize(
    "body", [b"{}", b"[{}]", b'[{"name": 5}]', b"[" * 4000, b"\xff", b'[{"name":"b","vBucketServerMap":5}]']
)
def test_garbage_of_a_node_is_a_protocol_error(body):
    class Garbage(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Garbage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pages = NodePages(parse_address("couchbase://127.0.0.1"), ("127.0.0.1", server.server_port))
        with pytest.raises(RemoteProtocolError, match="list of buckets"):
            asyncio.run(asyncio.wait_for(pages.read_buckets(), PATIENCE))
        server.shutdown()


def test_node_that_does_not_answer_is_named(run, tmp_path, processes):
    file = write_file(tmp_path / "lab.toml", processes[:1], 0)
    file.write_text(file.read_text().replace(name(processes[0]), f"{name(processes[0])}?retrySeconds=0.1"))
    processes[0].kill()
    result = run("cluster", "apply", file)
    assert "does not answer over HTTP" in result.err
    assert result.code == 1
