"""Change history: streams with all versions of the documents of some collections, and copies of such histories."""

import json
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.node import Node
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.constants import DurabilityLevel, Feature, VbucketState
from penstock.wire.codec.flags import SnapshotFlag, StreamFlag
from penstock.wire.codec.statuses import Status as S
from penstock.wire.messages.dcp import (
    Deletion,
    Mutation,
    Prepare,
    SeqnoAdvanced,
    SnapshotMarker,
    StreamEnd,
    SystemEvent,
)
from penstock.wire.messages.kv import Set, SetVbucket
from tests.examples import scaled
from tests.node.frame_proxy import replicating
from tests.node.manifests import ALE, ALES, DEFAULT, LAGERS, make_beers, make_key, set_scopes
from tests.node.replication_chains import set_states
from tests.node.test_durability import make_framing
from tests.node.watch import run, until
from tests.node.wire_client import connected

F = SnapshotFlag
DISK = F.DISK | F.CHECKPOINT
LAGER = {"name": "lagers", "uid": f"{LAGERS:x}", "history": True}


@pytest.fixture
def node():
    with Node.running(["beer"], vbuckets=1) as node:
        yield node


@pytest.fixture
def kept():
    """A node whose bucket keeps all versions; its default collection has history."""
    with Node.running(["beer"], vbuckets=1, settings=BucketSettings(retention_seconds=None)) as node:
        yield node


@contextmanager
def connect_consumer(node, *, history=True, collections=True):
    """Connect a consumer, which asks for history by default."""
    with connected(node, "beer") as consumer:
        if collections:
            consumer.hello(Feature.COLLECTIONS)
        consumer.open("consumer")
        names = ("enable_noop", "flatbuffers_system_events", *(["change_streams"] if history else []))
        assert all(consumer.control(name, "true") == S.SUCCESS for name in names)
        yield consumer


def describe(message):
    """Return a message in a few letters."""
    match message:
        case Mutation():
            return f"{message.by_seqno}+{message.key.decode('latin-1')[-1]}"
        case Deletion():
            return f"{message.by_seqno}-{message.key.decode('latin-1')[-1]}"
        case SnapshotMarker():
            return (message.start_seqno, message.end_seqno, F(message.flags))
        case SystemEvent():
            return f"{message.by_seqno} event {message.event}"
        case SeqnoAdvanced():
            return f"to {message.by_seqno}"
    raise AssertionError(message)


def read_stream(consumer, start=0, **options):
    """Return a stream to the newest change as descriptions."""
    options = {"flags": StreamFlag.TO_LATEST, **options}
    assert consumer.stream(start=start, **options).specific == S.SUCCESS
    found = []
    while not isinstance(message := consumer.message(), StreamEnd):
        found.append(describe(message))
    return found


def compact(node):
    """Drop all versions that the bucket need not keep."""

    def work():
        store = node.buckets["beer"].store
        store.log.room.seal_active()
        while (piece := store.log.compactions.next_piece(everything=True)) is not None:
            piece.run()
            piece.finish()

    run(node, work)


def write(client, *keys, collection=0):
    for key in keys:
        client.set(make_key(collection, key.encode()), b"value")


def test_stream_has_all_versions_for_consumers_that_ask(kept):
    with connected(kept, "beer") as client:
        client.hello(Feature.COLLECTIONS)
        write(client, "a", "b", "a")
        client.delete(make_key(0, b"a"))
    with connect_consumer(kept) as consumer:
        marker, *found = read_stream(consumer)
        assert marker == (0, 5, F.MEMORY | F.CHECKPOINT | F.HISTORY)
        assert found == ["1 event 5", "2+a", "3+b", "4+a", "5-a"]
    with connect_consumer(kept, history=False) as consumer:
        assert read_stream(consumer) == [(0, 5, F.MEMORY | F.CHECKPOINT), "1 event 5", "3+b", "5-a"]


def test_consumer_without_collections_gets_the_versions_of_the_default_collection(kept):
    with connected(kept, "beer") as client:
        client.set(b"a")
        client.set(b"a")
        client.hello(Feature.COLLECTIONS)
        set_scopes(client, 2, {**DEFAULT, "collections": [{"name": "_default", "uid": "0", "history": True}]},
                   make_beers(LAGER))  # fmt: skip
        write(client, "x", "x", collection=LAGERS)
    with connect_consumer(kept, collections=False) as consumer:
        assert read_stream(consumer) == [(0, 3, F.MEMORY | F.CHECKPOINT | F.HISTORY), "2+a", "3+a"]


def test_history_has_all_system_events(node):
    with connected(node, "beer") as client:
        client.hello(Feature.COLLECTIONS)
        run(node, lambda: node.buckets["beer"].store.set_settings(BucketSettings(retention_seconds=1000)))
        set_scopes(client, 1, DEFAULT, make_beers(ALE))
        write(client, "a", collection=ALES)
        for uid, history in enumerate((True, False, True), 2):
            set_scopes(client, uid, DEFAULT, make_beers({**ALE, "history": history}))
        write(client, "b", "b", collection=ALES)
        set_scopes(client, 5, DEFAULT, make_beers())
        compact(node)
    begin, end, modify = "event 0", "event 1", "event 5"
    with connect_consumer(node) as consumer:
        events = read_stream(consumer)[1:]
        assert events == ["1 event 3", f"2 {begin}", f"4 {modify}", f"5 {modify}", f"6 {modify}", f"9 {end}"]
    with connect_consumer(node, history=False) as consumer:
        assert read_stream(consumer)[1:] == ["1 event 3", f"9 {end}"]


def test_history_has_the_decisions_of_prepares_alone(kept):
    with connected(kept, "beer") as client:
        write(client, "x")
        first = run(kept, lambda: get_vbucket(kept).changes.high_seqno)
        for number in range(2):
            set_states(kept, VbucketState.ACTIVE, "a", "b")  # b acknowledges nothing
            client.send(Set(key=b"k", framing=make_framing(DurabilityLevel.MAJORITY, 65_000)))
            prepared = first + 1 + 2 * number
            until(kept, lambda prepared=prepared: get_vbucket(kept).changes.high_seqno == prepared)
            set_states(kept, VbucketState.ACTIVE, "a")
            assert client.receive().specific == S.SUCCESS
    with connect_consumer(kept) as consumer:
        assert consumer.control("enable_sync_writes", "true") == S.SUCCESS
        assert consumer.stream(flags=StreamFlag.TO_LATEST).specific == S.SUCCESS
        messages = list(consumer.changes())
    assert not any(isinstance(message, Prepare) for message in messages)
    changes = [message.by_seqno for message in messages if isinstance(message, Mutation)]
    assert changes == [first, first + 2, first + 4]


def test_collections_without_history_are_deduplicated(node):
    with connected(node, "beer") as client:
        client.hello(Feature.COLLECTIONS)
        run(node, lambda: node.buckets["beer"].store.set_settings(BucketSettings(retention_seconds=1000)))
        set_scopes(client, 1, DEFAULT, make_beers(ALE, LAGER))
        for collection in (0, ALES, LAGERS):
            write(client, "a", "a", collection=collection)
    with connect_consumer(node) as consumer:
        marker, *found = read_stream(consumer)
        assert marker[2] == F.MEMORY | F.CHECKPOINT | F.HISTORY
        assert found == ["1 event 3", "2 event 0", "3 event 0", "5+a", "7+a", "8+a", "9+a"]


def test_snapshot_from_below_the_history_has_two_markers_with_the_same_range(kept):
    run(kept, lambda: kept.buckets["beer"].store.set_settings(BucketSettings()))
    with connected(kept, "beer") as client:
        client.hello(Feature.COLLECTIONS)
        write(client, "a", "a", "b")
        compact(kept)
        assert run(kept, lambda: get_vbucket(kept).index.history_floor) == 3
        run(kept, lambda: kept.buckets["beer"].store.set_settings(BucketSettings(retention_seconds=1000)))
        write(client, "b", "b", "c")
        assert client.stats("vbucket-details 0")["vb_0:history_start_seqno"] == "4"
    history = DISK | F.HISTORY | F.MAY_CONTAIN_DUPLICATES
    with connect_consumer(kept) as consumer:
        assert read_stream(consumer) == [
            *((0, 7, DISK), "1 event 5", "3+a"),
            *((0, 7, history), "4+b", "5+b", "6+b", "7+c"),
        ]
        vbuuid = run(kept, lambda: get_vbucket(kept).history.vbuuid)
        assert read_stream(consumer, 3, vbuuid=vbuuid) == [(3, 7, history), "4+b", "5+b", "6+b", "7+c"]
        assert read_stream(consumer, 5, vbuuid=vbuuid)[1:] == ["6+b", "7+c"]


def test_bucket_without_retention_streams_no_history(node):
    with connected(node, "beer") as client:
        client.hello(Feature.COLLECTIONS)
        set_scopes(client, 1, DEFAULT, make_beers(LAGER))
        write(client, "a", "a", collection=LAGERS)
        assert client.stats("vbucket-details 0")["vb_0:history_start_seqno"] == "0"
    with connect_consumer(node) as consumer:
        assert read_stream(consumer)[0][2] == F.MEMORY | F.CHECKPOINT


def test_history_of_a_filtered_stream(kept):
    with connected(kept, "beer") as client:
        client.hello(Feature.COLLECTIONS)
        with_history = {**DEFAULT, "collections": [{"name": "_default", "uid": "0", "history": True}]}
        set_scopes(client, 2, with_history, make_beers(ALE, LAGER))
        for _ in range(2):
            write(client, "d")
            write(client, "l", collection=LAGERS)
            write(client, "a", collection=ALES)
    with connect_consumer(kept) as consumer:
        wanted = json.dumps({"collections": [f"{LAGERS:x}"]}).encode()
        found = read_stream(consumer, value=wanted)
        assert [one for one in found if "+" in one] == ["6+l", "9+l"]


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["default", "ales", "lagers"]), st.sampled_from("abc")),
        st.tuples(st.just("compact"), st.sampled_from([0, 1000])),
        st.tuples(st.just("reconnect"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=scaled(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps)
def test_copy_has_every_version_above_its_history_floor(steps):
    """A copy stores snapshots with duplicates exactly, also after lost connections and compactions of its source."""
    settings = BucketSettings(retention_seconds=1000)
    with Node.running(["beer"], 1, settings=settings) as active, Node.running(["beer"], 1, settings=settings) as copy:
        with connected(copy, "beer") as client:
            client.status(SetVbucket(vbucket=0, state=VbucketState.REPLICA))
            client.hello(Feature.COLLECTIONS)
        with connected(active, "beer") as client:
            client.hello(Feature.COLLECTIONS)
            default = {**DEFAULT, "collections": [{"name": "_default", "uid": "0", "history": True}]}
            set_scopes(client, 2, default, make_beers(ALE, LAGER))
            collections = {"default": 0, "ales": ALES, "lagers": LAGERS}
            rest = steps
            while True:
                cut = next((place for place, step in enumerate(rest) if step[0] == "reconnect"), len(rest))
                for action, detail in rest[:cut]:
                    if action == "compact":
                        store = active.buckets["beer"].store
                        chosen = BucketSettings(retention_seconds=detail)
                        run(active, lambda store=store, chosen=chosen: store.set_settings(chosen))
                        compact(active)
                        run(active, lambda store=store: store.set_settings(settings))
                    else:
                        write(client, detail, collection=collections[action])
                with replicating(active, copy, "beer", [0]):
                    wait_until_copied(copy, active)
                check_copy(active, copy)
                if cut == len(rest):
                    break
                rest = rest[cut + 1 :]


def wait_until_copied(copy, active):
    """Wait until the copy has the newest change, and its snapshot is complete."""
    high = run(active, lambda: get_vbucket(active).changes.high_seqno)
    history = get_vbucket(copy).history
    until(copy, lambda: history.changes.high_seqno == high and history.whole_seqno == high)


def check_copy(active, copy):
    """Check that both nodes stream the same versions from the seqno on from which both have all of them."""
    nodes = active, copy
    floor = max(run(node, lambda node=node: get_vbucket(node).index.history_floor) for node in nodes)
    found = []
    for node in nodes:
        vbuuid = run(node, lambda node=node: get_vbucket(node).history.vbuuid)
        with connect_consumer(node) as consumer:
            messages = read_stream(consumer, floor, vbuuid=vbuuid)
        found.append([one for one in messages if isinstance(one, str)])
    assert found[0] == found[1]


def get_vbucket(node):
    return node.buckets["beer"].store.vbuckets[0]
