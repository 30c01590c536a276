"""A new node gets its part of the vbuckets and replicas by `penstock cluster rebalance`, and gives it back."""

import asyncio
import sys
from contextlib import ExitStack, suppress

import pytest

import penstock
from penstock.errors import SyncWriteAmbiguous
from penstock.wire.codec.constants import DurabilityLevel
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.messages.kv import Set
from tests.compat.running import Program
from tests.node.balanced_nodes import BUCKETS, VBUCKETS, open_node
from tests.node.serve_process import run_processes
from tests.node.wire_client import connected
from tests.patience import PATIENCE

KEYS = [f"key{number}" for number in range(64)]


def owned(web, nodes=2):
    """Return the vbuckets of each node by the map that a node serves."""
    places = web.get_json("/pools/default/b/beer")["vBucketServerMap"]["vBucketMap"]
    return [[vbucket for vbucket, place in enumerate(places) if place[0] == number] for number in range(nodes)]


def write_file(directory, urls, replicas=0, bucket="beer"):
    """Write the file of a cluster. Its nodes need no HTTP."""
    nodes = "".join(f'[[node]]\nurl = "{url.rpartition("/")[0]}"\n' for url in urls)
    path = directory / "lab.toml"
    path.write_text(f'{nodes}[[bucket]]\nname = "{bucket}"\nreplicas = {replicas}\n')
    return path


async def write_durably(url):
    """Write each key, again while the result is unknown because replicas are late.

    A vbucket without a majority of its copies refuses the write, which is an error.
    """
    async with penstock.connect(url) as bucket:
        for key in KEYS:
            written = False
            while not written:
                with suppress(SyncWriteAmbiguous):
                    await bucket.upsert(key, b"durable", durability="majority")
                    written = True


def load_keys(run, url):
    lines = "".join(f'{{"id": "{key}"}}\n' for key in KEYS).encode()
    assert run("load", "-", "--key", "id", "--url", url, stdin=lines).code == 0


def test_new_node_is_balanced_and_the_first_node_is_emptied(run, tmp_path):
    with ExitStack() as stack:
        nodes = [stack.enter_context(open_node()) for _ in range(2)]
        urls = [web.node.url("beer") for web in nodes]
        load_keys(run, urls[0])
        file = write_file(tmp_path, urls)
        moved = run("cluster", "rebalance", file, "--json")
        assert (moved.code, sum("vbucket" in line for line in moved.json_lines)) == (0, VBUCKETS // 2)
        assert [len(vbuckets) for vbuckets in owned(nodes[1])] == [VBUCKETS // 2] * 2
        assert run("cluster", "rebalance", file).out == ""
        rest = [option for vbucket in owned(nodes[0])[0] for option in ("--vbucket", vbucket)]
        assert run("move", *rest, "--from", urls[0], "--to", urls[1]).code == 0
        assert [len(vbuckets) for vbuckets in owned(nodes[1])] == [0, VBUCKETS]
        assert nodes[1].get_json(f"{BUCKETS}/beer")["basicStats"]["itemCount"] == len(KEYS)


def test_nodes_are_added_between_balances(run, tmp_path):
    with ExitStack() as stack:
        nodes = [stack.enter_context(open_node()) for _ in range(2)]
        urls = [web.node.url("beer") for web in nodes]
        load_keys(run, urls[0])
        assert run("cluster", "rebalance", write_file(tmp_path, urls)).code == 0
        nodes.append(stack.enter_context(open_node()))
        file = write_file(tmp_path, [*urls, nodes[2].node.url("beer")])
        assert run("cluster", "rebalance", file).code == 0
        for web in nodes:
            assert sorted(map(len, owned(web, 3))) == [5, 5, 6]
        counts = [web.get_json(f"{BUCKETS}/beer")["basicStats"]["itemCount"] for web in nodes]
        assert (sum(counts), min(counts) > 0) == (len(KEYS), True)


def test_replicas_are_placed_with_a_balance(run, tmp_path):
    with ExitStack() as stack:
        nodes = [stack.enter_context(open_node()) for _ in range(2)]
        urls = [web.node.url("beer") for web in nodes]
        load_keys(run, urls[0])
        assert run("cluster", "rebalance", write_file(tmp_path, urls, 1)).code == 0
        rows = nodes[1].get_json("/pools/default/b/beer")["vBucketServerMap"]["vBucketMap"]
        assert sorted(map(sorted, rows)) == [[0, 1]] * VBUCKETS
        refused = run("cluster", "rebalance", write_file(tmp_path, urls, 2))
        assert (refused.code, "2 replicas on 2 nodes" in refused.err) == (2, True)
        assert run("failover", "--node", urls[1], "--to", urls[0]).code == 0
        assert nodes[0].get_json(f"{BUCKETS}/beer")["basicStats"]["itemCount"] == len(KEYS)


def test_vbucket_that_moves_to_its_replica_needs_one_copy_less(run, tmp_path):
    with ExitStack() as stack:
        nodes = [stack.enter_context(open_node()) for _ in range(2)]
        urls = [web.node.url("beer") for web in nodes]
        assert run("cluster", "rebalance", write_file(tmp_path, urls, 1)).code == 0
        (vbucket, *_), _ = owned(nodes[0])
        assert run("move", "--vbucket", vbucket, "--from", urls[0], "--to", urls[1]).code == 0
        assert nodes[0].get_json("/pools/default/b/beer")["vBucketServerMap"]["vBucketMap"][vbucket] == [1, -1]
        framing = pack_request_infos(RequestInfos(durability=Durability(DurabilityLevel.MAJORITY, None)))
        with connected(nodes[1].node, "beer") as client:
            assert client.status(Set(key=b"k", value=b"v", vbucket=vbucket, framing=framing)) == Status.SUCCESS


@pytest.mark.process
@pytest.mark.long
def test_replicas_are_placed_again_after_a_failover(run, tmp_path):
    with run_processes(tmp_path, 3) as processes:
        first, second, third = processes
        url, *others = (f"couchbase://127.0.0.1:{process.ports[0]}/default" for process in processes)
        file = write_file(tmp_path, [url, *others], 1, "default")
        assert run("cluster", "rebalance", file).code == 0
        with Program.running([sys.executable, "-m", "penstock", "cluster", "run", str(file)]):
            asyncio.run(asyncio.wait_for(write_durably(url), PATIENCE))
            second.kill()
            assert run("failover", "--node", others[0], "--to", url).code == 0
            rest = write_file(tmp_path, [url, others[1]], 1, "default")
            assert run("cluster", "rebalance", rest).code == 0
            for process in (first, third):
                found = process.web.get_json("/pools/default/b/default")["vBucketServerMap"]
                assert [address.rpartition(":")[2] for address in found["serverList"]] == [
                    str(each.ports[0]) for each in (first, third)
                ]
                assert sorted(map(sorted, found["vBucketMap"])) == [[0, 1]] * 4
            asyncio.run(asyncio.wait_for(write_durably(url), PATIENCE))
