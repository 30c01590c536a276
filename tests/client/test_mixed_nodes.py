"""Buckets of which only some nodes have collections, and servers without a report of the seqnos on disk."""

import json

import pytest

from penstock import Node, connect
from penstock.client.documents.bulk import BulkWriter
from penstock.client.topology.persisted_seqnos import PersistedSeqno, find_unreported
from penstock.errors import UsageError
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from tests.client.old_server import COUCHBASE_3_1, Answer, OldServer, Release, reply
from tests.client.peer import documents, in_loop
from tests.client.replicated import read_values, replicate
from tests.node.wire_client import connected

VBUCKETS = 4


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=VBUCKETS) as node:
        yield node


@pytest.fixture
def servers(node):
    """One node behind two proxies, which take turns in the map. The second one has no collections."""

    def answer_map(server, frame):
        hosts = [f"127.0.0.1:{each.port}" for each in pair]
        places = {"serverList": hosts, "vBucketMap": [[vbucket % 2] for vbucket in range(VBUCKETS)]}
        found = {"rev": 1, "name": "beer", "nodeLocator": "vbucket", "vBucketServerMap": places}
        return reply(frame, value=json.dumps(found).encode())

    answers: dict[int, Answer] = {Opcode.GET_CLUSTER_CONFIG: answer_map}
    pair = [OldServer(node, Release(answers)), OldServer(node, COUCHBASE_3_1.override(answers))]
    with pair[0], pair[1]:
        yield pair


@pytest.mark.parametrize("first", [0, 1], ids=["collections first", "no collections first"])
@in_loop
async def test_bucket_uses_the_default_collection_of_all_nodes(node, servers, first):
    """A key must not get a collection id that a node takes for a part of the key."""
    url = servers[first].url()
    async with connect(url) as bucket:
        await bucket.upsert_many(documents(0, 20))
        await bucket.upsert_many(documents(20, 40))
        assert [(await bucket.get(key)).value for key, _ in documents(0, 40)] == [
            value for _, value in documents(0, 40)
        ]
    async with BulkWriter(url) as writer:
        keys, values = [key for key, _ in documents(40, 80)], [value for _, value in documents(40, 80)]
        assert not (await writer.upsert(keys, values)).faults
    expected = {key.encode(): value for key, value in documents(0, 80)}
    async with connect(url) as bucket:
        assert {change.key: change.value async for change in bucket.changes("beginning", "now")} == expected
        with pytest.raises(UsageError, match="collection"):
            await bucket.upsert("k", b"v", collection="ales")
    async with connect(node.url("beer")) as straight:
        assert {change.key async for change in straight.changes("beginning", "now")} == expected.keys()


UNREPORTED = {"vb_1:high_seqno": "7", "vb_1:uuid": "5", "vb_1:purge_seqno": "0"}


def test_only_vbuckets_without_a_report_are_asked_for():
    reported = {"vb_0:high_seqno": "3", "vb_0:uuid": "4", "vb_0:last_persisted_seqno": "2"}
    assert find_unreported({**reported, **UNREPORTED}, 4) == {1: PersistedSeqno(5, 7, 7)}
    assert find_unreported({"vb_2:high_seqno": "3"}, 4) == {}


def test_xdcr_reads_a_server_that_reports_no_seqnos_on_disk(node):
    """Couchbase 3.1.6 answers SEQNO_PERSISTENCE instead: at first one vbucket is not on disk."""
    delayed: list[int] = []

    def delay_once(server, frame):
        if delayed or frame.specific != 1:
            return None
        delayed.append(frame.specific)
        return reply(frame, Status.ETMPFAIL)

    with Node.running(["beer"], vbuckets=VBUCKETS) as target:
        fill(node)
        with connected(node, "beer") as client:
            stats = client.stats("vbucket-seqno")
        kept = {name: text for name, text in stats.items() if not name.endswith("last_persisted_seqno")}
        release = COUCHBASE_3_1.override({Opcode.SEQNO_PERSISTENCE: delay_once}, {"vbucket-seqno": kept})
        with OldServer(node, release) as server:
            assert replicate(server.url(), target.url("beer")).written == 40
        assert delayed == [1]
        assert read_values(target.url("beer")) == read_values(node.url("beer"))


@in_loop
async def fill(node):
    async with connect(node.url("beer")) as bucket:
        await bucket.upsert_many(documents(0, 40))
