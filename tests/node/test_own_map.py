"""The cluster map, its nodes, and notifications of its changes."""

import asyncio
import json
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UsageError
from penstock.node.cluster.live_map import LiveMap
from penstock.node.cluster.own_map import (
    EPOCH,
    AlternateAddress,
    NodePlace,
    build_bucket_map,
    build_node_map,
    dump_json,
    insert_host,
    next_revision,
    read_places,
)
from penstock.node.session.hello_features import SUPPORTED_FEATURES
from penstock.store.bucket_store import BucketStore
from penstock.wire.codec.constants import Feature, VbucketState
from tests.patience import PATIENCE
from tests.waiting import pass_turns

THREE = [NodePlace(host="127.0.0.1", kv=port, mgmt=port + 1) for port in (1000, 2000, 3000)]


def make_store(vbuckets=16):
    return BucketStore("beer", vbuckets=vbuckets, clock=time.time_ns, new_vbuuid=lambda: 7)


def build_map(place, bucket, **options):
    return build_bucket_map(place, bucket.vbuckets, name="beer", uuid="ab" * 16, manifest_uid=0x1F, **options)


def test_single_node_owns_all_vbuckets_at_the_dialled_host():
    document = build_map(NodePlace(kv=11210, mgmt=8091), make_store())
    assert document["nodes"] == [{"hostname": "$HOST:8091", "ports": {"direct": 11210}}]
    assert document["nodesExt"] == [{"services": {"kv": 11210, "mgmt": 8091}, "thisNode": True}]
    assert document["vBucketServerMap"] == {
        "hashAlgorithm": "CRC",
        "numReplicas": 0,
        "serverList": ["$HOST:11210"],
        "vBucketMap": [[0]] * 16,
    }
    assert document["collectionsManifestUid"] == "1f"
    assert document["nodeLocator"] == "vbucket"


def test_map_lists_the_active_vbuckets_alone():
    bucket = make_store(8)
    for vbucket, state in zip((0, 6, 7), (2, 3, 4), strict=True):
        bucket.vbuckets[vbucket].set_state(VbucketState(state))
    bucket.vbuckets[5].remove()
    document = build_map(THREE[1], bucket, replicas=2)
    owners = [-1, 0, 0, 0, 0, -1, -1, -1]
    assert document["vBucketServerMap"]["vBucketMap"] == [[owner, -1, -1] for owner in owners]
    assert document["vBucketServerMap"]["numReplicas"] == 2
    assert document["vBucketServerMap"]["serverList"] == ["127.0.0.1:2000"]


def make_pushed_map(**others):
    entries = [
        {"services": place.list_services(), "hostname": place.host, "thisNode": place is THREE[1]} for place in THREE
    ]
    servers = [place.format_address(place.kv) for place in THREE]
    return {"nodesExt": entries, "vBucketServerMap": {"serverList": servers, "vBucketMap": [[0], [1]]}, **others}


def test_places_of_a_pushed_map_are_read():
    assert read_places(make_pushed_map(), THREE[1]) == (THREE, 1)
    unmarked = make_pushed_map(nodesExt=[])
    assert read_places(unmarked, THREE[2]) == ([NodePlace(host=each.host, kv=each.kv) for each in THREE], 2)


@pytest.mark.parametrize(
    "others",
    [
        {"vBucketServerMap": None},
        {"nodesExt": [{"services": {"kv": 70_000}}] * 3},
        {"nodesExt": [{"services": {"kv": 1}, "hostname": "a"}] * 3},
        {"nodesExt": [3, "x", None]},
    ],
)
def test_unreadable_map_has_the_own_place_alone(others):
    own = NodePlace(host="own", kv=7, external=AlternateAddress(host="outer"))
    assert read_places(make_pushed_map(**others), own) == ([own], 0)


FEATURE_CAPABILITIES = {
    "collections": Feature.COLLECTIONS,
    "durableWrite": Feature.SYNC_REPLICATION,
    "preserveExpiry": Feature.PRESERVE_TTL,
    "subdoc.BinaryXattr": Feature.SUBDOC_BINARY_XATTR,
    "subdoc.DocumentMacroSupport": Feature.SUBDOC_DOCUMENT_MACRO_SUPPORT,
    "subdoc.ReplaceBodyWithXattr": Feature.SUBDOC_REPLACE_BODY_WITH_XATTR,
    "subdoc.ReplicaRead": Feature.SUBDOC_REPLICA_READ,
    "tombstonedUserXAttrs": Feature.SUBDOC_CREATE_AS_DELETED,
    "xattr": Feature.XATTR,
}


def test_map_lists_the_capabilities():
    listed = set(build_map(NodePlace(), make_store())["bucketCapabilities"])
    expected = {name for name, feature in FEATURE_CAPABILITIES.items() if feature in SUPPORTED_FEATURES}
    assert listed & FEATURE_CAPABILITIES.keys() == expected


def test_plain_cache_map_has_no_vbuckets():
    document = build_map(THREE[0], make_store(1), is_plain_cache=True)
    assert document["nodeLocator"] == "ketama"
    assert "vBucketServerMap" not in document
    assert [place["hostname"] for place in document["nodes"]] == ["127.0.0.1:1001"]


@pytest.mark.parametrize(
    ("place", "services"),
    [
        (NodePlace(kv=1), {"kv": 1, "mgmt": 1}),
        (NodePlace(kv_tls=2), {"kvSSL": 2, "mgmt": 2}),
        (NodePlace(kv_tls=2, mgmt_tls=4), {"kvSSL": 2, "mgmtSSL": 4}),
        (
            NodePlace(kv=1, kv_tls=2, mgmt=3, mgmt_tls=4),
            {"kv": 1, "kvSSL": 2, "mgmt": 3, "mgmtSSL": 4},
        ),
    ],
)
def test_services_list_the_ports(place, services):
    assert place.list_services() == services
    (document,) = build_node_map(place)["nodesExt"]
    assert document["services"] == services


@pytest.mark.parametrize(
    ("host", "joined", "bare"), [("db.example", "db.example:1", "db.example"), ("::1", "[::1]:1", "::1")]
)
def test_dialled_host_is_inserted(host, joined, bare):
    text = dump_json(build_map(NodePlace(kv=1), make_store(2)))
    inserted, template = json.loads(insert_host(text, host)), json.loads(text)
    assert inserted["vBucketServerMap"]["serverList"] == [joined]
    assert b"$HOST" not in insert_host(text, host)
    fixed = json.loads(dump_json(build_map(NodePlace(host=host, kv=1), make_store(2))))
    assert fixed["nodesExt"][0].pop("hostname") == bare
    assert fixed == inserted != template


@pytest.mark.parametrize(
    ("options", "found"),
    [({"kv": 65536}, "65536"), ({"mgmt": -1}, "-1"), ({"host": ""}, "without a host")],
)
def test_invalid_places_are_refused_in_one_sentence(options, found):
    with pytest.raises(UsageError, match=found):
        NodePlace(**options)


@given(revision=st.integers(0, 2**40), now=st.integers(0, 2**62))
def test_revision_grows_and_follows_the_clock(revision, now):
    assert next_revision(revision, now) > revision
    assert next_revision(revision, now) >= now // 1_000_000


class ChangingMap:
    """Live map whose content a test changes.

    Attributes:
        value: content of the map.
        built: number of times that the map was built.
        map: the live map.
    """

    def __init__(self):
        self.value = 0
        self.built = 0
        self.map = LiveMap(self.build, time.time_ns)

    def build(self):
        self.built += 1
        return {"value": self.value}

    def set(self, value):
        self.value = value
        self.map.invalidate()


def test_map_is_built_once_a_revision():
    changing = ChangingMap()
    first = changing.map.text
    assert json.loads(first) == {"rev": changing.map.revision, "revEpoch": EPOCH, "value": 0}
    assert first.startswith(b'{"rev":%d,' % changing.map.revision)
    assert changing.map.text is first
    assert changing.built == 1
    changing.set(1)
    changing.set(2)
    second = json.loads(changing.map.text)
    assert second["value"] == 2
    assert second["rev"] > json.loads(first)["rev"]
    assert changing.built == 2


def test_unchanged_map_keeps_its_revision():
    changing = ChangingMap()
    before = changing.map.text
    changing.set(0)
    assert changing.map.text is before
    assert json.loads(before)["rev"] == changing.map.revision


def test_known_revisions_are_recognized():
    changing = ChangingMap()
    old = changing.map.revision
    assert changing.map.is_known(EPOCH, old)
    assert changing.map.is_known(EPOCH, old + 1)
    assert changing.map.is_known(EPOCH + 1, 0)
    assert not changing.map.is_known(EPOCH, old - 1)
    assert not changing.map.is_known(EPOCH - 1, old + 1)
    changing.set(1)
    assert not changing.map.is_known(EPOCH, old)


def test_watchers_are_notified_once_a_turn():
    async def run():
        changing, notified = ChangingMap(), []
        unwatch = changing.map.watch(lambda: notified.append(changing.map.text))
        for value in (1, 2, 3):
            changing.set(value)
        assert notified == []
        await pass_turns()
        assert [json.loads(text)["value"] for text in notified] == [3]
        changing.set(4)
        assert json.loads(changing.map.text)["value"] == 4  # reading the map does not prevent the notification
        await pass_turns()
        assert len(notified) == 2
        changing.set(4)
        await pass_turns()
        assert len(notified) == 2
        unwatch()
        unwatch()
        changing.set(5)
        await pass_turns()
        assert len(notified) == 2

    asyncio.run(run())


def test_many_watchers_are_notified_in_turns_of_the_newest_map():
    async def run():
        changing, notified = ChangingMap(), defaultdict(list)

        def notify(number):
            notified[number].append(changing.value)

        for number in range(300):
            changing.map.watch(partial(notify, number))
        changing.set(1)
        counts = [0]
        while counts[-1] < 150:
            await pass_turns()
            counts.append(len(notified))
        changing.set(2)
        while len(notified) < 300 or any(values[-1] != 2 for values in notified.values()):
            counts.append(len(notified))
            await pass_turns()
        assert max(after - before for before, after in pairwise(counts)) <= 64
        early = next(count for count in counts if count >= 150)
        assert [notified[number] for number in range(300)] == [[1, 2]] * early + [[2]] * (300 - early)
        await pass_turns(20)
        assert sum(len(values) for values in notified.values()) == 300 + early

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_late_watcher_is_notified_of_later_changes():
    async def run():
        changing, first, second = ChangingMap(), [], []
        changing.map.watch(lambda: first.append(changing.value))
        changing.set(1)
        await pass_turns()
        changing.map.watch(lambda: second.append(changing.value))
        changing.set(2)
        await pass_turns()
        assert (first, second) == ([1, 2], [2])

    asyncio.run(run())
