"""Large values: threads process them, requests keep their order, and concurrent changes are respected."""

import asyncio
import json
import struct
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from penstock.node import Node
from penstock.node.server.connection_limits import TURN_BYTES
from penstock.node.session.large_values import LARGE_VALUE_BYTES
from penstock.node.session.parked_requests import MAX_PARKED_BYTES
from penstock.node.session.value_workers import _MAX_PENDING
from penstock.wire.codec.constants import MAX_FRAME, DurabilityLevel, Feature, FrameInfoId
from penstock.wire.codec.constants import VbucketState as State
from penstock.wire.codec.flags import Datatype, DocFlag, OpenFlag, PathFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Open
from penstock.wire.messages.dcp_values import pack_framing, pack_xattrs
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.messages.kv import (
    Append,
    Delete,
    Get,
    GetRandomKey,
    Hello,
    Noop,
    Quit,
    SelectBucket,
    Set,
    SetVbucket,
    SetWithMeta,
    pack_features,
)
from penstock.wire.messages.sasl import SaslAuth
from penstock.wire.messages.subdoc import (
    MultiLookup,
    MultiMutation,
    SubdocLookup,
    SubdocMutation,
    pack_lookup_specs,
    pack_mutation_specs,
    unpack_lookup_results,
)
from penstock.wire.values.snappy import deflate, inflate
from tests.node.watch import has_unsent_bytes
from tests.node.wire_client import connected
from tests.patience import PATIENCE
from tests.waiting import pass_turns

S = Status
GET, COUNT = Opcode.SUBDOC_GET, Opcode.SUBDOC_GET_COUNT
COUNTER, UPSERT = Opcode.SUBDOC_COUNTER, Opcode.SUBDOC_DICT_UPSERT
PUSH, UNIQUE = Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_ADD_UNIQUE
FILLING = "x" * (256 << 10)  # large with and without the extension module
BIG = json.dumps({"n": 5, "a": [1, 2], "filling": FILLING}).encode()


def request_features(client, *features):
    client.ask(Hello(value=pack_features([Feature.JSON, Feature.XATTR, Feature.XERROR, Feature.SNAPPY, *features])))


@pytest.fixture
def modern(node):
    with connected(node) as client:
        request_features(client)
        yield client


@pytest.fixture
def unordered(node):
    with connected(node) as client:
        request_features(client, Feature.UNORDERED_EXECUTION)
        yield client


def make_counter(by=b"1", **fields):
    return SubdocMutation.for_path(b"n", by, key=b"k", **fields).encode(COUNTER)


def make_lookup(path=b"n", opcode=GET, **fields):
    return SubdocLookup.for_path(path, key=b"k", **fields).encode(opcode)


@contextmanager
def occupy_all_threads(node):
    """Keep both threads of a node busy until the end of the block."""
    release = threading.Event()

    async def occupy():
        for _ in range(2):
            node.workers.start(release.wait)

    asyncio.run_coroutine_threadsafe(occupy(), node.loop).result(PATIENCE)
    try:
        yield
    finally:
        release.set()


def wait_for_work(node, client, count=1):
    """Send requests over a client until `count` large values wait behind the two that keep the threads busy."""
    while node.workers.pending_values < 2 + count:
        assert client.status(Noop()) == S.SUCCESS


# Replies for large documents


REQUESTS = [
    make_lookup(b"a[-1]"),
    make_lookup(b"a", COUNT),
    make_lookup(b"none"),
    make_lookup(b"n.x"),
    make_lookup(b"a["),
    make_counter(b"-7"),
    make_counter(b"no number"),
    SubdocMutation.for_path(b"a", b"3", key=b"k").encode(PUSH),
    SubdocMutation.for_path(b"a", b"2", key=b"k").encode(UNIQUE),
    SubdocMutation.for_path(b"new.deep", b'{"b":1}', key=b"k", flags=PathFlag.MKDIR_P).encode(UPSERT),
    SubdocMutation.for_path(b"_x", b"1", key=b"k", flags=PathFlag.XATTR).encode(UPSERT),
    MultiLookup(key=b"k", value=pack_lookup_specs([(GET, 0, b"n"), (GET, 0, b"no"), (GET, PathFlag.XATTR, b"_x")])),
    MultiMutation(key=b"k", value=pack_mutation_specs([(COUNTER, 0, b"n", b"1"), (UPSERT, 0, b"a", b"[]")])),
    MultiMutation(key=b"k", value=pack_mutation_specs([(COUNTER, 0, b"n", b"1"), (UPSERT, 0, b"n.x", b"[]")])),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=map(str, range(len(REQUESTS))))
@pytest.mark.parametrize("compressed", [False, True])
def test_large_document_is_answered_like_a_small_one(modern, request_, compressed):
    answers, documents = [], []
    for filling in ("", FILLING):
        value = json.dumps({"n": 5, "a": [1, 2], "filling": filling}).encode()
        stored = modern.ask(
            Set(key=b"k", value=deflate(value), datatype=Datatype.SNAPPY) if compressed else Set(key=b"k", value=value)
        )
        assert stored.specific == S.SUCCESS
        answer = modern.ask(request_)
        answers.append((answer.specific, answer.value, answer.datatype))
        read = modern.get(b"k")
        document = json.loads(inflate(read.value) if read.datatype & Datatype.SNAPPY else read.value)
        assert document.pop("filling") == filling
        documents.append(document)
    assert answers[0] == answers[1]
    assert documents[0] == documents[1]


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        (BIG, Datatype.JSON),
        (BIG[:-1], 0),
        (json.dumps("ü" * LARGE_VALUE_BYTES, ensure_ascii=False).encode(), Datatype.JSON),
        (b'"' + b"\xff" * LARGE_VALUE_BYTES + b'"', 0),
        (b'["\\ud800' + b"x" * LARGE_VALUE_BYTES + b'"]', Datatype.JSON),
        (b"[" * LARGE_VALUE_BYTES + b"]" * LARGE_VALUE_BYTES, 0),
    ],
)
def test_large_json_is_detected(modern, value, datatype):
    modern.set(b"k", value)
    read = modern.get(b"k")
    assert (read.value, read.datatype) == (value, datatype)
    assert modern.ask(Set(key=b"k", value=deflate(value), datatype=Datatype.SNAPPY)).specific == S.SUCCESS
    assert modern.meta(b"k").value_datatype == datatype | Datatype.SNAPPY


@pytest.mark.parametrize(("opcode", "expected"), [(Opcode.APPEND, BIG + b" "), (Opcode.PREPEND, b" " + BIG)])
def test_large_document_can_be_extended(node, modern, other, opcode, expected):
    modern.set(b"k", BIG)
    assert modern.ask(Append(key=b"k", value=b" ").encode(opcode)).specific == S.SUCCESS
    read = modern.get(b"k")
    assert (read.value, read.datatype) == (expected, Datatype.JSON)
    with occupy_all_threads(node):
        modern.send(Append(key=b"k", value=b"7").encode(opcode))
        wait_for_work(node, other)
        other.set(b"k", b"1")
    assert modern.receive().specific == S.SUCCESS
    assert sorted(other.get(b"k").value) == sorted(b"17")
    longer = Append(key=b"k", value=b"x" * LARGE_VALUE_BYTES, cas=1).encode(opcode)
    assert modern.ask(longer).specific == S.KEY_EEXISTS


# Order of replies


def test_replies_keep_the_order_of_the_requests(modern):
    modern.send(Set(key=b"k", value=BIG, opaque=1), Get(key=b"k", opaque=2))
    modern.send(make_counter(opaque=3), make_lookup(opaque=4))
    modern.send(Set(key=b"k", value=b"[]", opaque=5), Get(key=b"k", opaque=6), Noop(opaque=7))
    answers = [modern.receive() for _ in range(7)]
    assert [answer.opaque for answer in answers] == [1, 2, 3, 4, 5, 6, 7]
    assert {answer.specific for answer in answers} == {S.SUCCESS}
    assert [answers[at].value for at in (1, 2, 3, 5)] == [BIG, b"6", b"6", b"[]"]


def test_other_clients_are_served_meanwhile(node, modern, other):
    modern.set(b"k", BIG)
    with occupy_all_threads(node):
        modern.send(make_lookup(opaque=1), Noop(opaque=2))
        wait_for_work(node, other)
        assert other.get(b"k").value == BIG
    assert [modern.receive().opaque for _ in range(2)] == [1, 2]


def test_unordered_client_gets_small_replies_first(node, unordered, other):
    unordered.set(b"k", BIG)
    with occupy_all_threads(node):
        unordered.send(make_lookup(opaque=1), Noop(opaque=2))
        assert unordered.receive().opaque == 2
    assert (answer := unordered.receive()).opaque == 1
    assert answer.value == b"5"


HUGE = json.dumps({"n": 5, "filling": "y" * (18 << 20)}).encode()
"""More than the buffers of two sockets and a transport."""


def test_large_replies_keep_their_order(modern):
    modern.set(b"k", HUGE)
    modern.send(Noop(opaque=1), Get(key=b"k", opaque=2), Noop(opaque=3), Get(key=b"k", opaque=4), Noop(opaque=5))
    answers = [modern.receive() for _ in range(5)]
    assert [answer.opaque for answer in answers] == [1, 2, 3, 4, 5]
    assert [answer.value for answer in answers] == [b"", HUGE, b"", HUGE, b""]


def test_large_reply_holds_the_document_of_the_request_time(node, modern, other):
    modern.set(b"k", HUGE)
    modern.send(Get(key=b"k"))
    while not has_unsent_bytes(node):
        assert other.status(Noop()) == S.SUCCESS
    for filling in (b"1" * len(HUGE), b"2" * len(HUGE), b"3"):
        other.set(b"k", filling)
    assert modern.receive().value == HUGE
    assert modern.get(b"k").value == b"3"


def test_closed_client_frees_its_unsent_replies(node, modern, other):
    modern.set(b"k", HUGE)
    with connected(node) as client:
        client.send(Get(key=b"k"))
        while not has_unsent_bytes(node):
            assert other.status(Noop()) == S.SUCCESS
    while has_unsent_bytes(node):
        assert other.status(Noop()) == S.SUCCESS


def test_large_replies_are_sent_before_the_connection_ends(modern):
    modern.set(b"k", HUGE)
    modern.send(Get(key=b"k"), Quit())
    assert modern.receive().value == HUGE
    assert modern.receive().opcode == Opcode.QUIT


@pytest.mark.parametrize("count", [1, 2])
def test_reply_is_limited_to_a_frame(modern, count):
    modern.set(b"k", HUGE)
    answer = modern.ask(MultiLookup(key=b"k", value=pack_lookup_specs([(Opcode.GET, 0, b"")] * count)))
    assert answer.specific == (S.SUCCESS if count == 1 else S.E2BIG)
    if count == 1:
        assert unpack_lookup_results(answer.value) == [(S.SUCCESS, HUGE)]


@pytest.mark.long
def test_large_documents_are_read_from_disk(tmp_path):
    attributes = pack_xattrs({"_x": b"1"})
    with Node.running(vbuckets=16, data_dir=tmp_path) as node, connected(node) as client:
        client.set(b"plain", HUGE)
        request_features(client)
        client.ask(Set(key=b"packed", value=deflate(HUGE), datatype=Datatype.SNAPPY))
        client.set(b"attributes", HUGE)
        path = SubdocMutation.for_path(b"_x", b"1", key=b"attributes", flags=PathFlag.XATTR).encode(UPSERT)
        assert client.ask(path).specific == S.SUCCESS
    with Node.running(vbuckets=16, data_dir=tmp_path) as node, connected(node) as client:
        for key in (b"plain", b"packed", b"attributes"):
            assert client.get(key).value == HUGE
        request_features(client)
        whole = client.ask(GetRandomKey(collection_id=0, include_xattrs=1))
        value = inflate(whole.value) if whole.datatype & Datatype.SNAPPY else whole.value
        assert value.removeprefix(attributes) == HUGE


def make_set_with_meta(value, **fields):
    return SetWithMeta(key=b"k", value=value, rev_seqno=9, new_cas=77, flags=5, expiry=0, **fields)


STORES = [
    Set(key=b"k", value=HUGE),
    Set(key=b"k", value=HUGE).encode(Opcode.ADD),
    Set(key=b"k", value=HUGE + b"x"),
    make_set_with_meta(HUGE),
    make_set_with_meta(HUGE + b"x"),
    make_set_with_meta(HUGE).encode(Opcode.ADD_WITH_META),
    make_set_with_meta(pack_xattrs({"_x": b"1"}) + HUGE, datatype=Datatype.XATTR),
    make_set_with_meta(deflate(HUGE), datatype=Datatype.SNAPPY),
]


@pytest.mark.parametrize("store", STORES, ids=map(str, range(len(STORES))))
@pytest.mark.parametrize("on_disk", [False, True])
def test_large_values_are_inspected_in_threads(tmp_path, store, on_disk):
    data_dir = tmp_path if on_disk else None
    with Node.running(vbuckets=16, data_dir=data_dir) as node, connected(node) as client, connected(node) as other:
        request_features(client)
        with occupy_all_threads(node):
            client.send(store)
            wait_for_work(node, other)
            assert other.status(Get(key=b"k")) == S.KEY_ENOENT
        assert client.receive().specific == S.SUCCESS
        assert other.get(b"k").value in (HUGE, HUGE + b"x")
        is_json = not other.get(b"k").value.endswith(b"x")
        assert bool(client.meta(b"k").value_datatype & Datatype.JSON) == is_json


def test_replaced_large_document_keeps_system_attributes(modern):
    modern.set(b"k", HUGE)
    path = SubdocMutation.for_path(b"_x", b"1", key=b"k", flags=PathFlag.XATTR).encode(UPSERT)
    assert modern.ask(path).specific == S.SUCCESS
    modern.set(b"k", HUGE[:-1] + b" }")
    assert modern.get(b"k").value == HUGE[:-1] + b" }"
    assert modern.ask(make_lookup(b"_x", flags=PathFlag.XATTR)).value == b"1"
    assert modern.status(Delete(key=b"k")) == S.SUCCESS
    deleted = MultiLookup(
        key=b"k", value=pack_lookup_specs([(GET, PathFlag.XATTR, b"_x")]), doc_flags=DocFlag.ACCESS_DELETED
    )
    assert unpack_lookup_results(modern.ask(deleted).value) == [(S.SUCCESS, b"1")]


# Concurrent changes


def test_concurrent_large_changes_are_all_kept(node):
    clients, each = 4, 5
    with connected(node) as first:
        first.set(b"k", BIG)

    def change(answers):
        with connected(node) as client:
            answers += [client.status(make_counter()) for _ in range(each)]

    answers: list[int] = []
    threads = [threading.Thread(target=change, args=(answers,)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [S.SUCCESS] * clients * each
    with connected(node) as client:
        assert json.loads(client.get(b"k").value)["n"] == 5 + clients * each


MEANWHILE = [
    (Set(key=b"k", value=b'{"n":8}'), False, S.SUCCESS, b'{"n":9}'),
    (Set(key=b"k", value=b"no"), False, S.SUBDOC_DOC_NOTJSON, b"no"),
    (Set(key=b"k", value=b'{"n":8}'), True, S.KEY_EEXISTS, b'{"n":8}'),
    (Delete(key=b"k"), False, S.KEY_ENOENT, None),
    (SetVbucket(state=State.REPLICA), False, S.NOT_MY_VBUCKET, None),
]


@pytest.mark.parametrize(("meanwhile", "with_cas", "status", "expected"), MEANWHILE)
def test_change_is_repeated_if_its_document_changed(node, modern, other, meanwhile, with_cas, status, expected):
    stored = modern.set(b"k", BIG)
    with occupy_all_threads(node):
        modern.send(make_counter(cas=stored.cas if with_cas else 0))
        wait_for_work(node, other)
        assert other.status(meanwhile) == S.SUCCESS
    assert modern.receive().specific == status
    if expected is not None:
        assert other.get(b"k").value == expected


@pytest.mark.parametrize(
    ("meanwhile", "status"),
    [
        (SelectBucket(key=b"beer"), S.SUCCESS),
        (Hello(value=pack_features([Feature.COLLECTIONS])), S.SUCCESS),
        (SaslAuth(key=b"PLAIN", value=b"\0nobody\0nothing"), S.AUTH_ERROR),
        (Open(key=b"name", flags=OpenFlag.PRODUCER), S.NOT_SUPPORTED),
    ],
)
def test_connection_state_changes_after_parked_requests(node, unordered, other, meanwhile, status):
    """Requests after the change of the connection's state wait for it too, even with unordered execution."""
    with occupy_all_threads(node):
        unordered.send(Set(key=b"k", value=BIG, opaque=1), meanwhile, Noop(opaque=3))
        wait_for_work(node, other)
    first, second, third = (unordered.receive() for _ in range(3))
    assert (first.opaque, first.specific, second.specific, third.opaque) == (1, S.SUCCESS, status, 3)
    assert other.get(b"k").value == BIG


# Framing extras of repeated requests


def test_large_change_can_be_durable(tmp_path):
    durable = pack_request_infos(RequestInfos(durability=Durability(DurabilityLevel.PERSIST_TO_MAJORITY, 5000)))
    with Node.running(vbuckets=4, data_dir=tmp_path) as node, connected(node) as client:
        assert client.status(Set(key=b"k", value=BIG, framing=durable)) == S.SUCCESS
        extras = struct.pack(">HB", 1, 0)
        request = Frame(Magic.ALT_REQUEST, COUNTER, extras=extras, key=b"k", value=b"n1", framing=durable)
        assert client.ask(request).specific == S.SUCCESS
        stats = client.stats("vbucket-seqno 0")
        assert (stats["vb_0:high_seqno"], stats["vb_0:high_completed_seqno"]) == ("4", "3")
        assert int(stats["vb_0:last_persisted_seqno"]) >= 3


def test_large_change_keeps_the_expiry(modern):
    soon = int(time.time()) + 500
    framing = pack_framing([(FrameInfoId.PRESERVE_TTL, b"")])
    modern.set(b"k", BIG, expiry=soon)
    request = Frame(Magic.ALT_REQUEST, UPSERT, extras=struct.pack(">HB", 1, 0), key=b"k", value=b"n1", framing=framing)
    assert modern.ask(request).specific == S.SUCCESS
    assert modern.meta(b"k").expiry == soon


# Limits


def test_closed_client_is_forgotten(node, modern, other):
    modern.set(b"k", BIG)
    with occupy_all_threads(node):
        modern.send(make_counter())
        wait_for_work(node, other)
        modern.disconnect()
        while node.workers.pending_values > 2:
            other.status(Noop())
    assert json.loads(other.get(b"k").value)["n"] == 5


@pytest.mark.long
def test_number_of_waiting_large_values_has_a_limit(node, other):
    other.set(b"k", BIG)
    with ExitStack() as stack:
        each = MAX_PARKED_BYTES // (len(BIG) + 2) + 1
        clients = [stack.enter_context(connected(node)) for _ in range(_MAX_PENDING // each + 1)]
        with occupy_all_threads(node):
            for client in clients:
                request_features(client, Feature.UNORDERED_EXECUTION)
                client.send(*[make_lookup()] * 256)
            refused = clients[-1].receive()
            assert (refused.specific, node.workers.pending_values) == (S.ETMPFAIL, _MAX_PENDING)
        assert clients[0].receive().specific == S.SUCCESS


def test_bytes_of_an_unordered_client_have_a_limit(node, unordered, other):
    limit = MAX_PARKED_BYTES // len(BIG) + 1
    unordered.set(b"k", BIG)
    with occupy_all_threads(node):
        unordered.send(*[make_lookup(opaque=1)] * 2 * limit, Noop(opaque=2))
        wait_for_work(node, other, limit)
        assert int(other.stats()["ep_requests_waiting"]) == limit + 1
        assert node.workers.pending_values == 2 + limit
    answers = [unordered.receive() for _ in range(2 * limit + 1)]
    assert answers[0].opaque == 1
    assert {answer.specific for answer in answers} == {S.SUCCESS}


def test_compressed_documents_count_inflated(node, modern, other):
    packed = deflate(HUGE)
    modern.ask(Set(key=b"k", value=packed, datatype=Datatype.SNAPPY))
    limit = MAX_PARKED_BYTES // len(HUGE) + 1
    assert len(packed) * 2 * limit < MAX_PARKED_BYTES
    with connected(node) as client:
        client.hello(Feature.UNORDERED_EXECUTION)
        with occupy_all_threads(node):
            client.send(*[Get(key=b"k")] * 2 * limit)
            wait_for_work(node, other, limit)
            assert int(other.stats()["ep_requests_waiting"]) == limit
            assert node.workers.pending_values == 2 + limit
        assert {client.receive().value == HUGE for _ in range(2 * limit)} == {True}


def test_finished_work_gives_a_client_no_extra_turns(node, unordered):
    """Each other connection has a turn between two turns of a connection, even if much work ends meanwhile."""
    requests, lookups = 20_000, 60
    requests_per_turn = TURN_BYTES // 256
    unordered.set(b"k", BIG)
    counters = node.buckets["default"].counters
    served = counters.cmd_get + requests

    async def measure_most_requests():
        highest, before = 0, counters.cmd_get
        while before < served:
            await pass_turns()
            highest, before = max(highest, counters.cmd_get - before), counters.cmd_get
        return highest

    with occupy_all_threads(node):
        unordered.send(*[make_lookup()] * lookups)
        while node.workers.pending_values < 2 + lookups:
            unordered.status(Noop())
        measured = asyncio.run_coroutine_threadsafe(measure_most_requests(), node.loop)
        unordered.send(*[Get(key=b"none").encode(Opcode.GETQ)] * requests)
    assert {unordered.receive().specific for _ in range(lookups)} == {S.SUCCESS}
    assert measured.result(PATIENCE) <= 2 * requests_per_turn


def test_node_stops_with_waiting_large_values():
    with Node.running(vbuckets=1) as node, connected(node) as client, connected(node) as other:
        client.set(b"k", BIG)
        with occupy_all_threads(node):
            client.send(*[make_lookup()] * 3)
            wait_for_work(node, other)
    assert node.workers.pending_values == 0


def test_large_lookup_results_are_returned(modern):
    big = json.dumps({"a": list(range(LARGE_VALUE_BYTES // 4))}).encode()
    modern.set(b"k", big)
    specs = [(GET, 0, b"a[-1]"), (COUNT, 0, b"a"), *[(GET, 0, b"a[%d]" % at) for at in range(14)]]
    answer = modern.ask(MultiLookup(key=b"k", value=pack_lookup_specs(specs)))
    results = [value for _, value in unpack_lookup_results(answer.value)]
    assert results == [
        b"%d" % (LARGE_VALUE_BYTES // 4 - 1),
        b"%d" % (LARGE_VALUE_BYTES // 4),
        *(b"%d" % at for at in range(14)),
    ]


def test_request_that_is_too_long_ends_the_connection(modern):
    """As Couchbase 7.x: the header alone is read, and the value is not waited for."""
    header = bytearray(Set(key=b"k", value=b"", opaque=7).encode()[:24])
    header[8:12] = (MAX_FRAME + 1).to_bytes(4, "big")
    modern.send(bytes(header))
    assert modern.ended()
