"""Cache transfers: a stream begins with the documents in the producer's memory, up to its start seqno."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.node import Node
from penstock.wire.codec.constants import MAX_SEQNO, Feature, VbucketState
from penstock.wire.codec.flags import Datatype, SnapshotFlag, StreamFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status as S
from penstock.wire.codec.statuses import StreamEndReason
from penstock.wire.messages.dcp import (
    AddStream,
    CacheTransfer,
    CacheTransferEnd,
    Deletion,
    Mutation,
    SnapshotMarker,
    StreamEnd,
    StreamReq,
)
from penstock.wire.messages.dcp_values import (
    CACHED_HEAD_BYTES,
    CachedDocument,
    pack_cached_documents,
    pack_stream_id,
    unpack_cached_documents,
)
from penstock.wire.messages.kv import DelVbucket, Noop, SetVbucket
from penstock.wire.values.snappy import deflate
from tests.examples import scaled
from tests.node.frame_proxy import replicating
from tests.node.manifests import ALE, ALES, DEFAULT, LAGER, LAGERS, make_beers, make_key, set_scopes
from tests.node.producing_peer import LOG, make_replica, producing
from tests.node.watch import run, until
from tests.node.wire_client import connected

CACHE = StreamFlag.CACHE_TRANSFER
PAST = 1_500_000_000
ALL_KEYS = {"all_keys": True}


def get_vbucket(node, bucket="default"):
    return node.buckets[bucket].store.vbuckets[0]


def request_cache(node, consumer, start=None, end=None, *, budget=None, flags=CACHE, **fields):
    """Request a cache transfer up to a seqno, by default the newest one, without changes behind it."""
    history = get_vbucket(node).history
    start = history.changes.high_seqno if start is None else start
    value = {**fields, **({} if budget is None else {"cts": budget})}
    text = json.dumps(value).encode() if value else b""
    return consumer.stream(0, start, start if end is None else end, vbuuid=history.vbuuid, flags=flags, value=text)


def read_documents(consumer):
    """Return the documents of a stream that sends nothing else, and the number of documents in each message."""
    messages = list(consumer.changes())
    assert all(isinstance(message, CacheTransfer) for message in messages), messages
    batches = [unpack_cached_documents(message.value) for message in messages]
    return [document for batch in batches for document in batch], [len(batch) for batch in batches]


def list_keys(documents):
    return {document.key for document in documents}


@pytest.fixture
def modern_consumer(node):
    """Connect a consumer with collections, whose requests may have a value."""
    with connected(node) as consumer:
        consumer.hello(Feature.COLLECTIONS).open("modern")
        assert consumer.control("enable_noop", "true") == S.SUCCESS
        yield consumer


# The producer


def test_producer_has_cache_transfers(consumer):
    assert consumer.control("cache_transfer", "true") == S.SUCCESS


def test_documents_up_to_the_start_come_before_the_changes(node, client, consumer):
    for key in (b"a", b"b", b"c", b"d"):
        client.set(key, b"old")
    client.delete(b"b")
    stored = decode_frame(client.set(b"e", b"value", flags=7, expiry=2**31))
    client.set(b"c", b"new")  # its document at seqno 3 is no longer in memory
    assert request_cache(node, consumer, 6, MAX_SEQNO).specific == S.SUCCESS
    message = consumer.message()
    assert isinstance(message, CacheTransfer)
    documents = {document.key: document for document in unpack_cached_documents(message.value)}
    assert documents.keys() == {b"\0a", b"\0d", b"\0e"}
    assert documents[b"\0e"] == CachedDocument(b"\0e", b"value", stored.cas, 6, 1, 7, 2**31)
    assert isinstance(consumer.message(), CacheTransferEnd)
    marker, change = consumer.message(), consumer.message()
    assert isinstance(marker, SnapshotMarker)
    assert (marker.end_seqno, change.by_seqno, change.key, change.value) == (7, 7, b"c", b"new")


def test_stream_without_changes_ends_after_the_documents(node, client, consumer):
    client.set(b"a", b"1")
    request_cache(node, consumer)
    assert consumer.message().opcode == Opcode.DCP_CACHE_TRANSFER
    assert consumer.message() == StreamEnd(opaque=1, reason=StreamEndReason.OK)


def test_transfer_without_documents_only_ends(node, client, consumer):
    client.set(b"a", b"1")
    client.delete(b"a")
    request_cache(node, consumer, 2, MAX_SEQNO)
    assert consumer.message() == CacheTransferEnd(opaque=1)
    client.set(b"b")
    assert [type(consumer.message()) for _ in range(2)] == [SnapshotMarker, Mutation]


def test_empty_vbucket_has_no_documents(node, consumer):
    request_cache(node, consumer, 0)
    assert isinstance(consumer.message(), StreamEnd)


def test_message_has_up_to_20_documents_or_1440_bytes(node, client, consumer):
    for number in range(45):
        client.set(b"%02d" % number)
    client.set(b"long", bytes(5000))
    for number in range(3):
        client.set(b"m%d" % number, bytes(1000))
    request_cache(node, consumer)
    documents, counts = read_documents(consumer)
    assert len(documents) == 49
    assert counts == [20, 20, 5, 1, 1, 1, 1]


def test_values_are_sent_as_they_are_stored(node, consumer):
    value = deflate(b'{"a":"' + b"1" * 200 + b'"}')
    with connected(node) as client:
        client.hello(Feature.SNAPPY, Feature.JSON)
        client.set(b"k", value, datatype=int(Datatype.SNAPPY))
    request_cache(node, consumer)
    (document,), _ = read_documents(consumer)
    assert (document.value, document.datatype) == (value, Datatype.SNAPPY | Datatype.JSON)


BUDGETS = [
    ("no limit", {}, [b"1" * 100, b"2" * 100, b"3" * 100]),
    ("no memory", {"free_memory": 0}, []),
    ("memory for two", {"free_memory": 2 * (CACHED_HEAD_BYTES + 102)}, [b"1" * 100, b"2" * 100]),
    ("almost memory for two", {"free_memory": 2 * (CACHED_HEAD_BYTES + 102) - 1}, [b"1" * 100]),
    ("all keys", ALL_KEYS, [b"", b"", b""]),
    ("all keys, no memory", {**ALL_KEYS, "free_memory": 0}, [b"", b"", b""]),
    ("all keys, memory for one", {**ALL_KEYS, "free_memory": 200}, [b"1" * 100, b"", b""]),
    ("all keys, much memory", {**ALL_KEYS, "free_memory": 2**60}, [b"1" * 100, b"2" * 100, b"3" * 100]),
]


@pytest.mark.parametrize(("case", "budget", "values"), BUDGETS, ids=[row[0] for row in BUDGETS])
def test_consumer_limits_the_values(node, client, modern_consumer, case, budget, values):
    for digit in (b"1", b"2", b"3"):
        client.set(digit, digit * 100)
    assert request_cache(node, modern_consumer, budget=budget).specific == S.SUCCESS
    documents, _ = read_documents(modern_consumer)
    assert [document.value for document in documents] == values


@pytest.mark.parametrize(("budget", "keys"), [({}, {b"\0k"}), (ALL_KEYS, {b"\0k", b"\0expired"})])
def test_expired_documents_come_only_with_all_keys(node, client, modern_consumer, budget, keys):
    client.set(b"k")
    vbucket = get_vbucket(node)
    run(node, lambda: vbucket.set(b"\0expired", b"", expiry=PAST))
    request_cache(node, modern_consumer, budget=budget)
    documents, _ = read_documents(modern_consumer)
    assert list_keys(documents) == keys


@pytest.mark.parametrize(
    "budget", [[], 1, {"free_memory": -1}, {"free_memory": "1"}, {"free_memory": 1.5}, {"all_keys": 1}]
)
def test_wrong_budgets_are_refused(node, modern_consumer, budget):
    assert request_cache(node, modern_consumer, budget=budget).specific == S.EINVAL


def test_budget_without_a_cache_transfer_has_no_effect(node, client, modern_consumer):
    client.set(b"k")
    assert request_cache(node, modern_consumer, 0, 1, budget=ALL_KEYS, flags=0).specific == S.SUCCESS
    assert [type(message) for message in modern_consumer.changes()] == [SnapshotMarker, Mutation]


def test_transfer_has_the_collections_of_the_stream_that_still_exist(node, modern_consumer):
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS)
        set_scopes(client, 1, DEFAULT, make_beers(ALE, LAGER))
        for collection in (0, ALES, LAGERS):
            client.set(make_key(collection, b"k"))
        request_cache(node, modern_consumer)
        documents, _ = read_documents(modern_consumer)
        assert list_keys(documents) == {make_key(collection, b"k") for collection in (0, ALES, LAGERS)}
        request_cache(node, modern_consumer, collections=[f"{LAGERS:x}"])
        documents, _ = read_documents(modern_consumer)
        assert list_keys(documents) == {make_key(LAGERS, b"k")}
        set_scopes(client, 2, DEFAULT, make_beers(LAGER))
        request_cache(node, modern_consumer)
        documents, _ = read_documents(modern_consumer)
        assert list_keys(documents) == {make_key(collection, b"k") for collection in (0, LAGERS)}


def test_messages_have_the_stream_id(node, client, modern_consumer):
    client.set(b"k")
    assert modern_consumer.control("enable_stream_id", "true") == S.SUCCESS
    assert request_cache(node, modern_consumer, 1, MAX_SEQNO, sid=5).specific == S.SUCCESS
    frames = [modern_consumer.receive() for _ in range(2)]
    assert [frame.opcode for frame in frames] == [Opcode.DCP_CACHE_TRANSFER, Opcode.DCP_CACHE_TRANSFER_END]
    assert all(frame.framing == pack_stream_id(5) for frame in frames)


FLAGS = [
    (CACHE | StreamFlag.TAKEOVER, S.SUCCESS),
    (CACHE | StreamFlag.ACTIVE_VB_ONLY, S.SUCCESS),
    *(
        (CACHE | flag, S.EINVAL)
        for flag in StreamFlag
        if flag & ~(CACHE | StreamFlag.TAKEOVER | StreamFlag.ACTIVE_VB_ONLY)
    ),
]


@pytest.mark.parametrize(("flags", "status"), FLAGS)
def test_cache_transfer_agrees_with_few_flags(node, consumer, flags, status):
    assert request_cache(node, consumer, flags=flags).specific == status


def test_consumer_without_memory_ends_the_transfer(node, client, consumer):
    for number in range(200):
        client.set(b"%d" % number, bytes(1000))
    assert consumer.control("connection_buffer_size", "1") == S.SUCCESS
    request_cache(node, consumer, 200, MAX_SEQNO)
    frame = consumer.receive()
    assert frame.opcode == Opcode.DCP_CACHE_TRANSFER
    consumer.send(Frame(Magic.RESPONSE, Opcode.DCP_CACHE_TRANSFER, S.ENOMEM, opaque=1))
    assert consumer.status(Noop()) == S.SUCCESS  # the node has served the response
    received = 1
    while frame.opcode == Opcode.DCP_CACHE_TRANSFER:
        consumer.acknowledge(10_000_000)
        frame = consumer.receive()
        received += 1
    assert frame.opcode == Opcode.DCP_CACHE_TRANSFER_END
    assert received < 200  # those that were read before are still sent
    consumer.send(Frame(Magic.RESPONSE, Opcode.DCP_CACHE_TRANSFER, S.ENOMEM, opaque=1))
    assert consumer.status(Noop()) == S.SUCCESS


def test_deleted_vbucket_ends_the_transfer(node, client, consumer):
    for number in range(200):
        client.set(b"%d" % number, bytes(1000))
    assert consumer.control("connection_buffer_size", "1") == S.SUCCESS
    request_cache(node, consumer, 200, MAX_SEQNO)
    assert consumer.receive().opcode == Opcode.DCP_CACHE_TRANSFER
    assert client.status(DelVbucket()) == S.SUCCESS
    consumer.acknowledge(10_000_000)
    assert consumer.message().reason == StreamEndReason.STATE_CHANGED


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
STEPS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=3))), min_size=1, max_size=40)


@settings(max_examples=scaled(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, place=st.floats(0, 1), follows=st.booleans())
def test_consumer_ends_with_the_documents_of_the_producer(node, client, steps, place, follows):
    """The documents in memory up to a seqno and the changes after it are the newest state."""
    client.ask(DelVbucket())
    client.ask(SetVbucket(state=VbucketState.ACTIVE))
    newest = {}  # key -> seqno and value of the newest change
    seqno = 0
    for key, value in steps:
        if value is not None:
            assert client.set(key, value).specific == S.SUCCESS
        elif client.delete(key).specific != S.SUCCESS:
            continue  # it had no document
        seqno += 1
        newest[key] = seqno, value
    start = round(place * seqno)
    resident = {key: value for key, (at, value) in newest.items() if value is not None and at <= start}
    with connected(node) as consumer:
        request_cache(node, consumer.open("consumer"), start, seqno if follows else None)
        found: dict[bytes, bytes | None] = {}
        for message in consumer.changes():
            if isinstance(message, CacheTransfer):
                for document in unpack_cached_documents(message.value):
                    assert newest[document.key[1:]] == (document.by_seqno, document.value)
                    found[document.key[1:]] = document.value
            elif isinstance(message, CacheTransferEnd):
                assert found == resident
            elif isinstance(message, Mutation | Deletion):
                found[message.key] = message.value if isinstance(message, Mutation) else None
    if follows:
        present = {key: value for key, (_, value) in newest.items() if value is not None}
        assert {key: value for key, value in found.items() if value is not None} == present
    else:
        assert found == resident


# The consumer


@pytest.fixture
def caching(node, client):
    """A peer with collections. Its consumer has the documents k1 to k3, and has requested a cache transfer."""
    make_replica(client)
    with producing(node) as peer:
        peer.hello(Feature.COLLECTIONS).open_consumer().add_stream()
        peer.accept()
        peer.marker(0, 3)
        for seqno in range(1, 4):
            peer.mutate(seqno, key=b"\0k%d" % seqno, flags=7, expiry=2**31)
        assert peer.close_stream() == S.SUCCESS
        request = peer.add_stream(flags=CACHE)
        assert (request.flags, request.start_seqno, request.end_seqno) == (CACHE, 3, MAX_SEQNO)
        assert json.loads(request.value) == {"cts": ALL_KEYS}
        peer.accept()
        yield peer


def make_cached(seqno, **fields):
    values = {"cas": 100 + seqno, "by_seqno": seqno, "rev_seqno": 1, "flags": 7, "expiry": 2**31, **fields}
    return CachedDocument(**{"key": b"\0k%d" % seqno, **values})


def send_cached(peer, *documents):
    peer.send(CacheTransfer(opaque=peer.opaque, value=pack_cached_documents(documents)))


def test_consumer_accepts_the_documents_that_it_has(node, caching):
    send_cached(caching, make_cached(2, value=b"v"), make_cached(1))
    send_cached(caching, make_cached(3, datatype=int(Datatype.SNAPPY)))
    caching.send(CacheTransferEnd(opaque=caching.opaque))
    caching.marker(4, 4, SnapshotFlag.MEMORY)
    caching.mutate(4, key=b"\0k4")
    caching.settle()
    assert get_vbucket(node).history.whole_seqno == 4
    assert {key: bytes(get_vbucket(node).get(key).value) for key in (b"\0k1", b"\0k4")} == {
        b"\0k1": b"v",
        b"\0k4": b"v",
    }


REFUSED = [
    ("another cas", make_cached(1, cas=5), S.KEY_EEXISTS),
    ("another revision", make_cached(1, rev_seqno=2), S.KEY_EEXISTS),
    ("other flags", make_cached(1, flags=8), S.KEY_EEXISTS),
    ("another expiry", make_cached(1, expiry=0), S.KEY_EEXISTS),
    ("another seqno", make_cached(1, key=b"\0k2"), S.KEY_EEXISTS),
    ("a missing document", make_cached(1, key=b"\0missing"), S.KEY_ENOENT),
    ("a missing collection", make_cached(1, key=b"\x20k1"), S.UNKNOWN_COLLECTION),
]


@pytest.mark.parametrize(("case", "document", "status"), REFUSED, ids=[row[0] for row in REFUSED])
def test_consumer_refuses_other_documents(caching, case, document, status):
    send_cached(caching, make_cached(2), document)
    frame = caching.receive()
    assert (frame.magic, frame.opcode, frame.specific) == (Magic.RESPONSE, Opcode.DCP_CACHE_TRANSFER, status)
    send_cached(caching, make_cached(2))
    caching.settle()


def test_short_message_is_refused(caching):
    caching.send(CacheTransfer(opaque=caching.opaque, value=bytes(CACHED_HEAD_BYTES + 1)))
    assert caching.receive()[:3] == (Magic.RESPONSE, Opcode.DCP_CACHE_TRANSFER, S.EINVAL)
    caching.settle()


def test_broken_document_ends_the_connection(caching):
    caching.send(CacheTransfer(opaque=caching.opaque, value=pack_cached_documents([make_cached(1)]) + bytes(20)))
    assert caching.ended()


@pytest.mark.parametrize("message", [CacheTransfer(value=pack_cached_documents([make_cached(1)])), CacheTransferEnd()])
def test_messages_of_a_missing_stream_are_refused(caching, message):
    caching.send(replace(message, vbucket=1, opaque=caching.opaque))
    assert caching.receive()[:3] == (Magic.RESPONSE, message.opcode, S.DCP_STREAM_NOT_FOUND)


def test_documents_after_changes_end_the_connection(caching):
    caching.marker(4, 4)
    send_cached(caching, make_cached(1))
    assert caching.ended()


def test_changes_before_the_end_of_the_documents_end_the_connection(caching):
    send_cached(caching, make_cached(1))
    caching.marker(4, 4)
    assert caching.ended()


def test_documents_without_request_end_the_connection(node, client):
    make_replica(client)
    with producing(node) as peer:
        peer.hello(Feature.COLLECTIONS).open_consumer().add_stream()
        peer.accept(LOG)
        send_cached(peer, make_cached(1))
        assert peer.ended()


@pytest.mark.parametrize("features", [(), (Feature.COLLECTIONS,)])
def test_consumer_asks_only_producers_that_have_cache_transfers(node, client, features):
    make_replica(client)
    with producing(node) as peer:
        if features:
            peer.hello(*features)
        peer.open_consumer()
        peer.send(AddStream(flags=CACHE, opaque=0x900))
        _, frame = peer.negotiate(S.EINVAL)
        request = decode_frame(frame)
        assert isinstance(request, StreamReq)
        assert (request.flags, request.value) == (0, b"")


# Two nodes


def test_replica_takes_the_cache_of_another_node():
    with Node.running(["beer"], 1) as source, Node.running(["beer"], 1) as target:
        with connected(target, "beer") as client:
            make_replica(client)
        with connected(source, "beer") as client:
            client.hello(Feature.JSON, Feature.SNAPPY, Feature.COLLECTIONS)
            set_scopes(client, 1, DEFAULT, make_beers(ALE, LAGER))
            for number in range(100):
                client.set(make_key((0, ALES)[number % 2], b"%d" % number), b"%d" % number, flags=number)
            for number in range(0, 100, 7):
                client.delete(make_key((0, ALES)[number % 2], b"%d" % number))
            copy(source, target, 0)
            client.set(make_key(ALES, b"3"), b"new")
            passed = copy(source, target, CACHE)
            counts = passed.count(Opcode.DCP_CACHE_TRANSFER), passed.count(Opcode.DCP_CACHE_TRANSFER_END)
            assert counts == (-(-84 // 20), 1)
            passed = copy(source, target, CACHE | StreamFlag.TAKEOVER)
            assert passed.count(Opcode.DCP_CACHE_TRANSFER) == -(-85 // 20)
        assert get_vbucket(target, "beer").history.state is VbucketState.ACTIVE
        assert get_vbucket(source, "beer").history.state is VbucketState.DEAD


def copy(source, target, flags):
    """Copy the vbucket, check the documents, and return the opcodes of the requests that were passed on."""
    opcodes = []

    def note(frame):
        if frame[0] == Magic.REQUEST:
            opcodes.append(frame[1])
        return False

    with replicating(source, target, "beer", [0], flags=flags, cuts=note):
        high = run(source, lambda: get_vbucket(source, "beer").changes.high_seqno)
        history = get_vbucket(target, "beer").history
        wanted = VbucketState.ACTIVE if flags & StreamFlag.TAKEOVER else VbucketState.REPLICA
        until(target, lambda: history.changes.high_seqno == history.whole_seqno == high and history.state is wanted)
    assert read_all(source) == read_all(target)
    return opcodes


def read_all(node):
    def read():
        vbucket = get_vbucket(node, "beer")
        return {key: vbucket.get(key) for key in list(vbucket.changes.keys.load_all()) if not key.startswith(b"\1")}

    return run(node, read)
