"""Requests that belong to no document: HELLO, buckets, the cluster map, seqnos and statistics."""

import json

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.cluster import GetErrorMap, ListBuckets, Verbosity
from penstock.wire.messages.dcp import Open
from penstock.wire.messages.kv import (
    DelVbucket,
    GetAllVbSeqnos,
    GetClusterConfig,
    GetCollectionSeqnos,
    GetFailoverLog,
    Hello,
    Observed,
    ObserveSeqno,
    SelectBucket,
    SeqnoPersistence,
    SetVbucket,
    Version,
    pack_features,
    unpack_failover_log,
    unpack_features,
    unpack_observed,
    unpack_vb_seqnos,
)
from tests.node.manifests import ALE, ALES, BEERS, DEFAULT, LAGER, LAGERS, make_beers, make_key, set_scopes
from tests.node.wire_client import connected, find_session

S, V = Status, VbucketState

HELLOS = [
    ([], []),
    ([4], [4]),
    ([8, 4], [8, 4]),
    ([4, 4, 8, 4], [4, 8]),
    (list(range(0x10)), [3, 4, 6, 7, 8, 0x0A, 0x0B, 0x0C, 0x0D, 0x0E]),
    ([0x12, 0x10, 2, 5, 0x0F, 0x16, 0x25, 0x99], [0x12, 0x10]),
    ([0xFFFF], []),
]


@pytest.mark.parametrize(("wanted", "granted"), HELLOS)
def test_hello_grants_requested_features_of_the_node(client, wanted, granted):
    reply = client.ask(Hello(key=b'{"a":"agent","i":"1/2"}', value=pack_features(wanted)))
    assert (reply.specific, unpack_features(reply.value)) == (S.SUCCESS, granted)


def test_hello_replaces_the_features_of_the_last_one(node, client):
    client.ask(Hello(value=pack_features([Feature.MUTATION_SEQNO, Feature.SNAPPY, Feature.XERROR])))
    client.ask(Hello(value=pack_features([Feature.JSON])))
    connection = find_session(node, client)
    assert (connection.features, connection.datatypes) == ({Feature.JSON}, Datatype.JSON)
    assert (connection.sends_tokens, connection.xerror) == (False, False)


REFUSED = [
    ("an error map of version 0", GetErrorMap(version=0), S.KEY_ENOENT),
    ("a feature without the feature that it needs", Hello(value=pack_features([0x0D])), S.EINVAL),
    ("a feature without one of three that it needs", Hello(value=pack_features([0x06, 0x0B, 0x24])), S.EINVAL),
    ("an odd number of bytes", Hello(value=b"\0\4\0"), S.EINVAL),
    ("a missing bucket", SelectBucket(key=b"wine"), S.KEY_ENOENT),
    ("a bucket's name that is not UTF-8", SelectBucket(key=b"\xff\xfe"), S.KEY_ENOENT),
    ("no name of a bucket", Frame(Magic.REQUEST, Opcode.SELECT_BUCKET), S.EINVAL),
    ("a config with a cas", Frame(Magic.REQUEST, Opcode.GET_CLUSTER_CONFIG, cas=1), S.EINVAL),
    ("a config with half a revision", Frame(Magic.REQUEST, Opcode.GET_CLUSTER_CONFIG, extras=bytes(8)), S.EINVAL),
    ("an unknown state", GetAllVbSeqnos(state=5), S.EINVAL),
    ("persistence", SeqnoPersistence(seqno=1), S.ETMPFAIL),
    ("persistence of another vbucket", SeqnoPersistence(seqno=1, vbucket=16), S.NOT_MY_VBUCKET),
    ("an unknown branch", ObserveSeqno(value=bytes(8)), S.KEY_ENOENT),
    ("half a vbuuid", ObserveSeqno(value=bytes(4)), S.EINVAL),
    ("a branch of another vbucket", ObserveSeqno(value=bytes(8), vbucket=16), S.NOT_MY_VBUCKET),
    ("a failover log of another vbucket", GetFailoverLog(vbucket=16), S.NOT_MY_VBUCKET),
    ("unknown statistics", Frame(Magic.REQUEST, Opcode.STAT, key=b"weather"), S.KEY_ENOENT),
    ("statistics of an invalid vbucket", Frame(Magic.REQUEST, Opcode.STAT, key=b"failovers x"), S.EINVAL),
    ("statistics of two vbuckets", Frame(Magic.REQUEST, Opcode.STAT, key=b"failovers 1 2"), S.EINVAL),
    (
        "statistics of a long number",
        Frame(Magic.REQUEST, Opcode.STAT, key=b"failovers " + b"9" * 5000),
        S.EINVAL,
    ),
    ("statistics of another vbucket", Frame(Magic.REQUEST, Opcode.STAT, key=b"vbucket-seqno 16"), S.NOT_MY_VBUCKET),
    ("statistics with a value", Frame(Magic.REQUEST, Opcode.STAT, key=b"failovers", value=b"{}"), S.EINVAL),
    ("statistics with a name that is not UTF-8", Frame(Magic.REQUEST, Opcode.STAT, key=b"\xff"), S.KEY_ENOENT),
]


@pytest.mark.parametrize(("case", "message", "status"), REFUSED, ids=[row[0] for row in REFUSED])
def test_invalid_session_requests_are_refused(client, case, message, status):
    assert client.status(message) == status
    assert client.status(Version()) == S.SUCCESS


def test_version_starts_with_a_release(client):
    assert client.ask(Version()).value.startswith(b"7.6.0-penstock-")


def test_buckets_have_their_own_documents(node):
    with connected(node) as client:
        client.set(b"k", b"of default")
        assert client.status(SelectBucket(key=b"beer")) == S.SUCCESS
        assert client.get(b"k").specific == S.KEY_ENOENT
        client.set(b"k", b"of beer")
        assert client.status(SelectBucket(key=b"wine")) == S.KEY_ENOENT
        assert client.get(b"k").value == b"of beer"
        assert client.status(SelectBucket(key=b"default")) == S.SUCCESS
        assert client.get(b"k").value == b"of default"


def test_stream_connection_keeps_its_bucket(node):
    with connected(node, "beer") as client:
        client.open()
        assert client.status(SelectBucket(key=b"default")) == S.NOT_SUPPORTED


def test_cluster_map_has_the_fields_that_clients_need(node):
    with connected(node, "beer") as client:
        config = json.loads(client.ask(GetClusterConfig()).value)
    assert config["name"] == "beer"
    assert config["nodeLocator"] == "vbucket"
    assert isinstance(config["rev"], int)
    assert isinstance(config["revEpoch"], int)
    assert int(config["collectionsManifestUid"], 16) == 0
    assert {"cccp", "dcp", "nodesExt"} <= set(config["bucketCapabilities"])
    assert len(config["uuid"]) == 32
    (plain,), (extended,) = config["nodes"], config["nodesExt"]
    assert plain["ports"]["direct"] == extended["services"]["kv"] == node.kv_port
    assert extended["services"]["mgmt"] > 0
    assert extended["thisNode"] is True
    assert "hostname" not in extended
    vbuckets = config["vBucketServerMap"]
    assert vbuckets["hashAlgorithm"] == "CRC"
    assert vbuckets["numReplicas"] == 0
    assert vbuckets["serverList"] == [f"$HOST:{node.kv_port}"]
    assert vbuckets["vBucketMap"] == [[0]] * 16


def test_requests_without_a_bucket_get_their_status():
    with Node.running(["beer"], vbuckets=1) as node, connected(node) as client:
        assert client.status(ListBuckets()) == S.SUCCESS
        assert client.status(Frame(Magic.REQUEST, Opcode.STAT)) == S.NO_BUCKET
        assert client.status(Open(key=b"name", flags=1)) == S.NO_BUCKET


def test_buckets_are_listed():
    with Node.running(["wine", "beer"], vbuckets=1) as node, connected(node) as client:
        assert client.ask(ListBuckets()).value == b"beer wine"


def test_verbosity_is_accepted(client):
    assert client.status(Verbosity(level=2)) == S.SUCCESS


@pytest.mark.parametrize(("state", "listed"), [(None, True), (0, True), (1, True), (2, False), (3, False), (4, False)])
def test_all_seqnos_are_returned(client, state, listed):
    for vbucket in (1, 3, 3):
        client.set(b"k", vbucket=vbucket)
    seqnos = unpack_vb_seqnos(client.ask(GetAllVbSeqnos(state=state)).value)
    assert seqnos == ({vbucket: {1: 1, 3: 2}.get(vbucket, 0) for vbucket in range(16)} if listed else {})
    assert list(seqnos) == sorted(seqnos)


@pytest.mark.parametrize("state", range(5))
def test_all_seqnos_can_be_limited_to_a_state_and_a_collection(client, state):
    for vbucket, other in ((3, V.REPLICA), (4, V.PENDING), (5, V.DEAD)):
        client.set(b"k", vbucket=vbucket)
        assert client.status(SetVbucket(vbucket=vbucket, state=other)) == S.SUCCESS
    assert client.status(DelVbucket(vbucket=6)) == S.SUCCESS
    seqnos_by_state = {
        0: {vbucket: int(vbucket in (3, 4)) for vbucket in range(16) if vbucket not in (5, 6)},
        1: {vbucket: 0 for vbucket in range(16) if vbucket not in (3, 4, 5, 6)},
        2: {3: 1},
        3: {4: 1},
        4: {5: 1},
    }
    assert unpack_vb_seqnos(client.ask(GetAllVbSeqnos(state=state)).value) == seqnos_by_state[state]
    assert unpack_vb_seqnos(client.ask(GetCollectionSeqnos(state=state)).value) == seqnos_by_state[state]


def test_all_seqnos_of_an_unknown_collection_are_refused(client):
    for collection in (1, 8, 0xFFFFFFFF):
        assert client.status(GetCollectionSeqnos(collection_id=collection)) == S.UNKNOWN_COLLECTION
    for request in (GetAllVbSeqnos(state=5), GetCollectionSeqnos(state=5, collection_id=8)):
        assert client.status(request) == S.EINVAL
    assert client.status(Frame(Magic.REQUEST, Opcode.GET_ALL_VB_SEQNOS, extras=bytes(5))) == S.EINVAL


def test_observe_seqno_knows_current_and_earlier_branches(node, client):
    vbucket = node.buckets["default"].store.vbuckets[5]
    for _ in range(3):
        client.set(b"k", vbucket=5)
    old = vbucket.history.failover_log[0]
    assert observe(client, old.vbuuid) == Observed(5, old.vbuuid, 3, 3)
    vbucket.history.failover_log = (type(old)(vbuuid=1234, seqno=2), *vbucket.history.failover_log)
    assert observe(client, 1234) == Observed(5, 1234, 3, 3)
    assert observe(client, old.vbuuid) == Observed(5, 1234, 3, 3, old.vbuuid, 2)


def observe(client, vbuuid):
    return unpack_observed(client.ask(ObserveSeqno(vbucket=5, value=vbuuid.to_bytes(8, "big"))).value)


def test_every_vbucket_has_a_branch_of_its_own(client):
    logs = [unpack_failover_log(client.ask(GetFailoverLog(vbucket=vbucket)).value) for vbucket in range(16)]
    assert all(len(log) == 1 and log[0].seqno == 0 and 0 < log[0].vbuuid < 2**48 for log in logs)
    assert len({log[0].vbuuid for log in logs}) == 16


def test_default_statistics_count_commands(client):
    client.set(b"a", b"12345")
    client.set(b"b")
    client.get(b"a")
    client.get(b"nowhere")
    client.delete(b"b")
    stats = client.stats()
    counted = ("curr_items", "cmd_set", "cmd_get", "get_hits", "get_misses", "cmd_delete", "curr_connections")
    assert [stats[name] for name in counted] == ["1", "2", "2", "1", "1", "1", "1"]
    for name in ("pid", "uptime", "time", "bytes", "mem_used", "total_connections"):
        assert int(stats[name]) >= 0
    assert stats["version"].startswith("7.6.0")


def test_seqno_statistics_list_each_vbucket(client):
    client.set(b"a", vbucket=3)
    log = unpack_failover_log(client.ask(GetFailoverLog(vbucket=3)).value)
    stats = client.stats("vbucket-seqno 3")
    expected = {
        "high_seqno": "1",
        "abs_high_seqno": "1",
        "last_persisted_seqno": "1",
        "uuid": str(log[0].vbuuid),
        "purge_seqno": "0",
        "last_persisted_snap_start": "1",
        "last_persisted_snap_end": "1",
        "high_prepared_seqno": "0",
        "high_completed_seqno": "0",
        "max_visible_seqno": "1",
    }
    assert stats == {f"vb_3:{name}": value for name, value in expected.items()}
    everything = client.stats("vbucket-seqno")
    assert len(everything) == 16 * len(expected)
    assert stats.items() <= everything.items()


def test_collection_statistics_are_returned(node, client):
    client.set(b"a")
    client.hello(Feature.COLLECTIONS)
    set_scopes(client, 1, DEFAULT, make_beers(ALE, LAGER))
    client.set(make_key(ALES, b"a"), vbucket=1)
    client.set(make_key(ALES, b"b"), vbucket=2)
    client.delete(make_key(ALES, b"b"), vbucket=2)
    assert client.stats("collections") == {
        "0x0:0x0:name": "_default",
        "0x0:0x0:scope_name": "_default",
        "0x0:0x0:items": "1",
        "0x0:0x0:maxTTL": "0",
        "0x0:0x0:history": "false",
        f"0x{BEERS:x}:0x{ALES:x}:name": "ales",
        f"0x{BEERS:x}:0x{ALES:x}:scope_name": "beers",
        f"0x{BEERS:x}:0x{ALES:x}:items": "1",
        f"0x{BEERS:x}:0x{ALES:x}:maxTTL": "0",
        f"0x{BEERS:x}:0x{ALES:x}:history": "false",
        f"0x{BEERS:x}:0x{LAGERS:x}:name": "lagers",
        f"0x{BEERS:x}:0x{LAGERS:x}:scope_name": "beers",
        f"0x{BEERS:x}:0x{LAGERS:x}:items": "0",
        f"0x{BEERS:x}:0x{LAGERS:x}:maxTTL": "100",
        f"0x{BEERS:x}:0x{LAGERS:x}:history": "false",
        "manifest_uid": "1",
    }
    scopes = client.stats("scopes")
    assert [scopes[f"0x{BEERS:x}:{name}"] for name in ("name", "collections", "items")] == ["beers", "2", "1"]


def test_bucket_statistics_are_returned(node, client):
    assert client.stats("uuid") == {"uuid": client.stats()["ep_uuid"]}
    config = client.stats("config")
    assert (config["ep_bucket_type"], config["ep_max_vbuckets"]) == ("persistent", "16")
    assert config["ep_conflict_resolution_type"] == "seqno"


def test_failover_statistics_list_the_branches(client):
    log = unpack_failover_log(client.ask(GetFailoverLog(vbucket=3)).value)
    assert client.stats("failovers 3") == {
        "vb_3:num_entries": "1",
        "vb_3:num_erroneous_entries_erased": "0",
        "vb_3:0:id": str(log[0].vbuuid),
        "vb_3:0:seq": "0",
    }
    assert len(client.stats("failovers")) == 16 * 4
