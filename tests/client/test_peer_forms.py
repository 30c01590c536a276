"""The forms of requests for each release: nothing is sent that the server did not grant."""

import json
import re
from typing import Any

import numpy as np
import pytest

from penstock import Node, connect
from penstock.client.connect.address import parse_address
from penstock.client.connect.peer_forms import choose_peer_forms, find_datatypes, limit_datatypes, read_release
from penstock.client.documents.document import compute_vbucket
from penstock.client.replication.map_layout import make_map_document, read_map_layout
from penstock.client.replication.node_control import NodeControl
from penstock.client.replication.replica_consumers import close_consumer
from penstock.errors import KeyExists, RemoteProtocolError, UnsupportedServer, UsageError
from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.cluster import OldestSetClusterConfig, OldSetClusterConfig, SetClusterConfig
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import OldSetVbucket, Set, SetVbucket, SetWithMeta
from tests.client.old_server import COUCHBASE_2_5, COUCHBASE_3_1, OldServer, answer_set_map, reply
from tests.client.peer import documents, in_loop
from tests.client.replicated import read_values, replicate
from tests.node.wire_client import connected

RELEASES = [
    ("2.5.1_1083_rel", (), OldSetVbucket, OldestSetClusterConfig),
    ("3.1.6", (), OldSetVbucket, OldestSetClusterConfig),
    ("6.0.5-3340-enterprise", (), OldSetVbucket, OldestSetClusterConfig),
    ("6.5.0-4960-enterprise", (), SetVbucket, OldSetClusterConfig),
    ("7.0.1-6102-enterprise", (), SetVbucket, OldSetClusterConfig),
    ("7.0.2-6703-enterprise", (), SetVbucket, SetClusterConfig),
    ("7.6.0-penstock-0.1.0", (), SetVbucket, SetClusterConfig),
    ("8.0.2-1", (), SetVbucket, SetClusterConfig),
    ("", (), OldSetVbucket, OldestSetClusterConfig),
    ("unknown", (Feature.SYNC_REPLICATION,), SetVbucket, OldSetClusterConfig),
    ("0.0.0-0000", (Feature.COLLECTIONS,), SetVbucket, SetClusterConfig),
]


@pytest.mark.parametrize(("version", "features", "state", "cluster_map"), RELEASES, ids=[each[0] for each in RELEASES])
def test_forms_follow_the_release_or_the_granted_features(version, features, state, cluster_map):
    forms = choose_peer_forms(version, features)
    assert isinstance(forms.make_state_request(7, VbucketState.REPLICA), state)
    request = forms.make_map_request("beer", {"rev": 5, "revEpoch": 2})
    assert isinstance(request, cluster_map)
    assert json.loads(request.value) == {"rev": 5, "revEpoch": 2}
    assert request.key == (b"" if cluster_map is OldestSetClusterConfig else b"beer")


@pytest.mark.parametrize(("version", "release"), [("7.2.8-7000", (7, 2, 8)), ("4.0", (4, 0)), ("v", ()), ("", ())])
def test_release_is_read_from_the_version(version, release):
    assert read_release(version) == release


def test_old_feature_grants_json_and_snappy():
    assert find_datatypes([Feature.DATATYPE]) == Datatype.JSON | Datatype.SNAPPY
    assert find_datatypes([Feature.JSON, Feature.XATTR, Feature.XERROR]) == Datatype.JSON | Datatype.XATTR
    assert find_datatypes([]) == 0


def test_json_bit_is_cleared_unless_it_was_granted():
    requests = [Set(key=b"a", datatype=1), Set(key=b"b"), Set(key=b"c", datatype=5)]
    frames = [request.encode() for request in requests]
    data, starts = memoryview(b"".join(frames)), np.cumsum([0, *map(len, frames[:-1])])
    assert limit_datatypes(data, starts, Datatype.JSON) is data
    limited = limit_datatypes(data, starts, Datatype(0))
    assert [limited[at + 5] for at in starts] == [0, 0, 4]
    assert bytes(data) == b"".join(frames)  # the caller's requests stay


@pytest.fixture(scope="module")
def node():
    with Node.running(["beer"], vbuckets=4) as node:
        yield node


@pytest.mark.parametrize("release", [COUCHBASE_3_1, COUCHBASE_2_5], ids=["3.1.6", "2.5.1"])
@in_loop
async def test_orchestrator_sets_states_and_maps_of_an_old_server(node, release):
    with OldServer(node, release) as server:
        async with NodeControl(parse_address(server.url())) as control:
            await control.set_states([1, 3], VbucketState.REPLICA)
            assert (await control.read_states())[3] is VbucketState.REPLICA
            await control.set_chains({1: ["a:1"]}, VbucketState.REPLICA)
            document = make_pushed_map(await control.read_map(), control, 7)
            await control.push_map(document)
            assert json.loads(server.stored_map or b"") == document == await control.read_map()
            await control.push_map(document)  # a repeated request
            with pytest.raises(KeyExists, match=re.escape("has the map of version (2, 7), expected (2, 6) at most")):
                await control.push_map(make_pushed_map(document, control, 6))
            await control.set_states([1, 3], VbucketState.ACTIVE)
        assert {len(frame.extras) for frame in server.find_requests(Opcode.SET_VBUCKET)} == {4}


def make_pushed_map(document, control, revision):
    layout = read_map_layout(document, control.endpoint)
    return make_map_document(document, layout, (2, revision), control.endpoint)


@in_loop
async def test_map_that_the_server_spoils_is_found(node):
    """A server that reports another release than its own."""

    def spoil(server, frame):
        answer_set_map(server, frame)
        server.stored_map = b"\0\0" + (server.stored_map or b"")
        return reply(frame)

    with OldServer(node, COUCHBASE_3_1.override({Opcode.SET_CLUSTER_CONFIG: spoil})) as server:
        async with NodeControl(parse_address(server.url())) as control:
            with pytest.raises(RemoteProtocolError, match="cluster map"):
                await control.push_map(make_pushed_map(await control.read_map(), control, 7))


@in_loop
async def test_documents_with_datatypes_are_stored_by_a_server_without(node):
    with OldServer(node, COUCHBASE_3_1) as server:
        async with connect(server.url()) as bucket:
            await bucket.upsert("one", b"{}", datatype=1)
            assert (await bucket.get("one")).value == b"{}"


def test_xdcr_writes_json_to_a_server_without_datatypes(node):
    with Node.running(["beer"], vbuckets=4) as source, OldServer(node, COUCHBASE_3_1) as server:
        fill(source)
        progress = replicate(source.url("beer"), server.url())
        assert (progress.written, progress.refused) == (20, 0)
        assert read_values(source.url("beer")).items() <= read_values(node.url("beer")).items()


@in_loop
async def fill(source):
    async with connect(source.url("beer")) as bucket:
        await bucket.upsert_many(documents(0, 20))


def test_attributes_are_refused_before_a_server_without_them_gets_them(node):
    with Node.running(["beer"], vbuckets=4) as source, OldServer(node, COUCHBASE_3_1) as server:
        fill(source)
        with connected(source, "beer") as client:
            client.hello(Feature.XATTR, Feature.JSON)
            place: dict[str, Any] = {"key": b"tagged", "vbucket": compute_vbucket(b"tagged", 4)}
            place["value"] = pack_xattrs({"_sync": b"1"}, b"{}")
            tagged = SetWithMeta(flags=0, expiry=0, rev_seqno=1, new_cas=1, datatype=Datatype.XATTR, **place)
            assert client.status(tagged) == Status.SUCCESS
        progress = replicate(source.url("beer"), server.url())
        assert (progress.written, progress.refused) == (20, 1)
        assert "the server has no extended attributes" in progress.refusals[0]
        assert not [frame for frame in server.requests if frame.datatype]


@in_loop
async def test_other_servers_get_no_request_to_close_connections(node):
    """kv_engine has SCRUB under the opcode."""
    sent = []

    def record(server, frame):
        sent.append(frame)

    release = COUCHBASE_3_1.override(answers={Opcode.CLOSE_PRODUCER: record})
    with OldServer(node, release) as server:
        async with connect(server.url()) as bucket:
            with pytest.raises(
                UnsupportedServer, match=r" is Couchbase 3\.1\.6, which closes no connection of another"
            ):
                await bucket.close_streams("indexer")
        async with NodeControl(parse_address(server.url())) as control:
            with pytest.raises(UsageError, match=r"^the connection indexer fills the replica .*: end the program that"):
                await close_consumer(control, "indexer")
    assert sent == []
