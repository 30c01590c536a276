"""Commands that read, store and delete a document: their replies and refusals."""

import json
import struct

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import MAX_KEY, MAX_VALUE, Feature
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER, Frame, join_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.frame_info import RequestInfos, pack_request_infos
from penstock.wire.messages.kv import (
    Add,
    Delete,
    Get,
    Hello,
    Noop,
    Quit,
    Set,
    pack_features,
    unpack_failover_log,
)
from tests.node.wire_client import connected

S = Status


def make_request(opcode, **parts) -> Frame:
    return Frame(Magic.REQUEST, opcode, **{"opaque": 77, **parts})


FLAGS_AND_EXPIRY = bytes.fromhex("deadbeef 00000000")
LONG = b"k" * (MAX_KEY + 1)

# Before each request, the document `there` is stored in vbucket 0. No row has its cas.
REFUSED = [
    ("a missing key", make_request(Opcode.GET, key=b"nowhere"), S.KEY_ENOENT),
    ("a key in another vbucket", make_request(Opcode.GET, key=b"there", specific=1), S.KEY_ENOENT),
    ("no key", make_request(Opcode.GET), S.EINVAL),
    ("extras, which GET does not have", make_request(Opcode.GET, key=b"there", extras=b"\0\0\0\0"), S.EINVAL),
    ("a value, which GET does not have", make_request(Opcode.GET, key=b"there", value=b"v"), S.EINVAL),
    ("a cas, which GET does not have", make_request(Opcode.GET, key=b"there", cas=1), S.EINVAL),
    ("a long key", make_request(Opcode.GET, key=LONG), S.EINVAL),
    ("a datatype not agreed on", make_request(Opcode.GET, key=b"there", datatype=Datatype.JSON), S.EINVAL),
    ("a missing vbucket", make_request(Opcode.GET, key=b"there", specific=16), S.NOT_MY_VBUCKET),
    ("the last number of a vbucket", make_request(Opcode.GETQ, key=b"there", specific=0xFFFF), S.NOT_MY_VBUCKET),
    ("no extras", make_request(Opcode.SET, key=b"k"), S.EINVAL),
    ("short extras", make_request(Opcode.SET, key=b"k", extras=b"\0\0\0\0"), S.EINVAL),
    ("no key to store", make_request(Opcode.SET, extras=FLAGS_AND_EXPIRY, value=b"v"), S.EINVAL),
    ("a long key to store", make_request(Opcode.SET, key=LONG, extras=FLAGS_AND_EXPIRY), S.EINVAL),
    (
        "a value above the limit",
        make_request(Opcode.SET, key=b"k", extras=FLAGS_AND_EXPIRY, value=bytes(MAX_VALUE + 1)),
        S.E2BIG,
    ),
    ("JSON not agreed on", make_request(Opcode.SET, key=b"k", extras=FLAGS_AND_EXPIRY, datatype=1), S.EINVAL),
    ("unknown datatype", make_request(Opcode.SET, key=b"k", extras=FLAGS_AND_EXPIRY, datatype=0x80), S.EINVAL),
    ("another vbucket", make_request(Opcode.SETQ, key=b"k", extras=FLAGS_AND_EXPIRY, specific=16), S.NOT_MY_VBUCKET),
    ("another cas", make_request(Opcode.SET, key=b"there", extras=FLAGS_AND_EXPIRY, cas=1), S.KEY_EEXISTS),
    (
        "a cas of a missing document",
        make_request(Opcode.SET, key=b"nowhere", extras=FLAGS_AND_EXPIRY, cas=1),
        S.KEY_ENOENT,
    ),
    ("add of an existing document", make_request(Opcode.ADD, key=b"there", extras=FLAGS_AND_EXPIRY), S.KEY_EEXISTS),
    ("add with a cas", make_request(Opcode.ADD, key=b"k", extras=FLAGS_AND_EXPIRY, cas=1), S.EINVAL),
    (
        "replace of a missing document",
        make_request(Opcode.REPLACE, key=b"nowhere", extras=FLAGS_AND_EXPIRY),
        S.KEY_ENOENT,
    ),
    (
        "replace with another cas",
        make_request(Opcode.REPLACE, key=b"there", extras=FLAGS_AND_EXPIRY, cas=1),
        S.KEY_EEXISTS,
    ),
    ("delete of a missing document", make_request(Opcode.DELETE, key=b"nowhere"), S.KEY_ENOENT),
    ("delete with another cas", make_request(Opcode.DELETE, key=b"there", cas=1), S.KEY_EEXISTS),
    ("delete with a value", make_request(Opcode.DELETE, key=b"there", value=b"v"), S.EINVAL),
    ("quiet set", make_request(Opcode.SETQ, key=b"there", extras=FLAGS_AND_EXPIRY, cas=1), S.KEY_EEXISTS),
    ("quiet add", make_request(Opcode.ADDQ, key=b"there", extras=FLAGS_AND_EXPIRY), S.KEY_EEXISTS),
    ("quiet replace", make_request(Opcode.REPLACEQ, key=b"nowhere", extras=FLAGS_AND_EXPIRY), S.KEY_ENOENT),
    ("quiet delete", make_request(Opcode.DELETEQ, key=b"nowhere"), S.KEY_ENOENT),
    ("an unknown opcode", make_request(0xEE, key=b"k", extras=b"abc"), S.UNKNOWN_COMMAND),
    ("an opcode that is not served", make_request(0x2A, key=b"k", extras=bytes(20)), S.UNKNOWN_COMMAND),
    ("a NOOP with a key", make_request(Opcode.NOOP, key=b"k"), S.EINVAL),
    (
        "durability",
        Frame(Magic.ALT_REQUEST, Opcode.GET, opaque=77, key=b"there", framing=b"\x11\x01"),
        S.EINVAL,
    ),
]


@pytest.mark.parametrize(("case", "frame", "status"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused_requests_keep_the_connection(node, client, case, frame, status):
    client.set(b"there", b"value")
    client.send(frame)
    reply = client.receive()
    assert (reply.magic, reply.opcode, reply.opaque, Status(reply.specific)) == (
        Magic.RESPONSE,
        frame.opcode,
        77,
        status,
    )
    assert (reply.extras, reply.key, reply.cas) == (b"", b"", 0)
    if status == S.NOT_MY_VBUCKET:
        assert json.loads(reply.value)["vBucketServerMap"]["serverList"] == [f"$HOST:{node.kv_port}"]
    else:
        assert reply.value == b""
    assert client.get(b"there").value == b"value"


def test_document_is_returned_as_it_was_stored(client):
    stored = client.set(b"key", b"\x00value\xff", flags=0xDEADBEEF, vbucket=7)
    found = client.get(b"key", vbucket=7, opaque=0xFFFFFFFF)
    assert (stored.specific, stored.extras, stored.key, stored.value) == (S.SUCCESS, b"", b"", b"")
    assert found == Frame(
        Magic.RESPONSE, Opcode.GET, 0, 0, 0xFFFFFFFF, stored.cas, bytes.fromhex("deadbeef"), b"", b"\x00value\xff"
    )


@pytest.mark.parametrize("length", [1, MAX_KEY])
def test_shortest_and_longest_keys_are_accepted(client, length):
    assert client.set(b"k" * length).specific == S.SUCCESS
    assert client.get(b"k" * length).value == b""


def test_longest_value_is_accepted(client):
    value = bytes(range(256)) * (MAX_VALUE // 256)
    assert client.set(b"big", value).specific == S.SUCCESS
    assert client.get(b"big").value == value


def test_empty_framing_extras_are_accepted(client):
    client.set(b"k", b"v")
    assert client.ask(Frame(Magic.ALT_REQUEST, Opcode.GET, key=b"k")).value == b"v"


def test_getk_returns_the_key(client):
    client.set(b"key", b"value")
    found = client.ask(make_request(Opcode.GETK, key=b"key"))
    assert (found.key, found.value, found.extras) == (b"key", b"value", bytes(4))


def test_getk_miss_returns_the_key(client):
    missed = client.ask(make_request(Opcode.GETK, key=b"nowhere"))
    assert (missed.specific, missed.key, missed.value, missed.extras) == (S.KEY_ENOENT, b"nowhere", b"", b"")


@pytest.mark.parametrize("opcode", [Opcode.SET, Opcode.REPLACE])
def test_cas_of_a_deleted_document_is_refused(client, opcode):
    stored = client.set(b"k")
    client.hello(Feature.MUTATION_SEQNO)
    for cas in (stored.cas, client.delete(b"k").cas, 1):
        refused = make_request(opcode, key=b"k", extras=FLAGS_AND_EXPIRY, cas=cas)
        assert client.status(refused) == S.KEY_ENOENT


def test_recreated_document_continues_the_revisions_of_its_tombstone(client):
    for _ in range(3):
        client.set(b"other")
    client.delete(b"other")
    client.set(b"k")
    client.delete(b"k")
    client.set(b"k")
    client.set(b"new")
    assert (client.meta(b"k").rev_seqno, client.meta(b"new").rev_seqno) == (3, 1)


def test_cas_guards_stores_and_deletions(client):
    first = client.set(b"k", b"1")
    second = client.set(b"k", b"2", cas=first.cas)
    assert second.cas > first.cas
    assert client.set(b"k", b"3", cas=first.cas).specific == S.KEY_EEXISTS
    assert client.delete(b"k", cas=first.cas).specific == S.KEY_EEXISTS
    assert client.delete(b"k", cas=second.cas).specific == S.SUCCESS
    assert client.get(b"k").specific == S.KEY_ENOENT


def test_deletion_returns_a_cas_only_after_hello(client):
    client.set(b"k")
    assert client.delete(b"k").cas == 0  # memcached returns 0 too
    client.ask(Hello(value=pack_features([Feature.SELECT_BUCKET])))
    cas = client.set(b"k").cas
    assert client.delete(b"k").cas > cas


@pytest.mark.parametrize("opcode", [Opcode.SET, Opcode.ADD])
def test_document_stored_expired_is_deleted_at_the_next_access(client, opcode):
    message = Set(key=b"k", value=b"v", expiry=1_600_000_000)
    assert client.status(message.encode(opcode)) == S.SUCCESS
    assert client.stats()["curr_items"] == "1"
    assert client.get(b"k").specific == S.KEY_ENOENT
    assert client.stats()["curr_items"] == "0"


def test_add_and_replace_check_whether_the_document_exists(client):
    assert client.ask(make_request(Opcode.ADD, key=b"k", extras=FLAGS_AND_EXPIRY, value=b"1")).specific == S.SUCCESS
    assert client.ask(make_request(Opcode.REPLACE, key=b"k", extras=FLAGS_AND_EXPIRY, value=b"2")).specific == S.SUCCESS
    assert client.get(b"k").value == b"2"
    client.delete(b"k")
    assert client.status(Add(key=b"k", value=b"3")) == S.SUCCESS


def test_quiet_commands_answer_only_errors(client):
    client.send(
        make_request(Opcode.SETQ, key=b"a", extras=FLAGS_AND_EXPIRY, value=b"1", opaque=1),
        make_request(Opcode.ADDQ, key=b"b", extras=FLAGS_AND_EXPIRY, value=b"2", opaque=2),
        make_request(Opcode.REPLACEQ, key=b"a", extras=FLAGS_AND_EXPIRY, value=b"3", opaque=3),
        make_request(Opcode.GETQ, key=b"nowhere", opaque=4),
        make_request(Opcode.GETKQ, key=b"nowhere", opaque=5),
        make_request(Opcode.GETQ, key=b"a", opaque=6),
        make_request(Opcode.GETKQ, key=b"b", opaque=7),
        make_request(Opcode.DELETEQ, key=b"a", opaque=8),
        make_request(Opcode.GETQ, key=b"a", opaque=9),
        make_request(Opcode.NOOP, opaque=10),
    )
    replies = [client.receive() for _ in range(3)]
    assert [(r.opcode, r.opaque, r.key, r.value) for r in replies] == [
        (Opcode.GETQ, 6, b"", b"3"),
        (Opcode.GETKQ, 7, b"b", b"2"),
        (Opcode.NOOP, 10, b"", b""),
    ]


def test_mutation_tokens_are_sent_once_agreed_on(client):
    assert client.set(b"k").extras == b""
    client.ask(Hello(value=pack_features([Feature.MUTATION_SEQNO])))
    log = unpack_failover_log(client.ask(make_request(Opcode.GET_FAILOVER_LOG)).value)
    replies = [client.set(b"k"), client.ask(Add(key=b"new")), client.delete(b"k")]
    assert [struct.unpack(">QQ", r.extras) for r in replies] == [(log[0].vbuuid, seqno) for seqno in (2, 3, 4)]
    client.ask(Hello(value=b""))
    assert client.set(b"k").extras == b""


def test_replies_keep_the_order_of_the_requests(client):
    count = 20_000
    for start in range(0, count, 1000):
        client.send(
            *(Set(key=b"%d" % n, value=b"v%d" % n, opaque=n, vbucket=n % 16) for n in range(start, start + 1000))
        )
    assert [client.receive().opaque for _ in range(count)] == list(range(count))
    client.send(*(Get(key=b"%d" % n, opaque=n, vbucket=n % 16) for n in range(count)))
    assert [client.receive().value for _ in range(count)] == [b"v%d" % n for n in range(count)]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (Get(key=b"k", datatype=1), S.EINVAL),
        (Frame(Magic.REQUEST, Opcode.DELETE, key=b"k", datatype=1), S.EINVAL),
        (Frame(Magic.REQUEST, 0x2A, datatype=0x80), S.UNKNOWN_COMMAND),
        (Frame(Magic.REQUEST, 0x30, key=b"k"), S.NOT_SUPPORTED),
        (Frame(Magic.REQUEST, 0x30, key=b"k", datatype=1), S.EINVAL),
        (Frame(Magic.REQUEST, Opcode.COLLECTIONS_GET_MANIFEST, 1), S.EINVAL),
        (Frame(Magic.REQUEST, Opcode.COLLECTIONS_GET_SCOPE_ID, 1, value=b"_default"), S.EINVAL),
        (Frame(Magic.REQUEST, Opcode.SUBDOC_MULTI_LOOKUP, key=b"k"), S.SUBDOC_INVALID_COMBO),
        (Frame(Magic.REQUEST, Opcode.SUBDOC_MULTI_MUTATION, key=b"k"), S.SUBDOC_INVALID_COMBO),
    ],
    ids=repr,
)
def test_requests_are_checked_as_in_kv_engine(client, request_, status):
    client.hello(Feature.JSON, Feature.XERROR)
    assert client.status(request_) == status
    assert client.status(Noop()) == S.SUCCESS


CLOSED = [
    ("an unknown magic", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("a key beyond the body", HEADER.pack(Magic.REQUEST, Opcode.GET, 10, 0, 0, 0, 4, 5, 0) + b"abcd"),
    ("a frame above the limit", HEADER.pack(Magic.REQUEST, Opcode.SET, 1, 8, 0, 0, 2**31, 5, 0)),
    ("a response to nothing", Frame(Magic.RESPONSE, Opcode.GET)),
    ("an answer to a request of the node", Frame(Magic.SERVER_RESPONSE, 0x01)),
    ("a request that only the node may send", Frame(Magic.SERVER_REQUEST, 0x01)),
    ("a response with wrong lengths", HEADER.pack(Magic.RESPONSE, Opcode.GET, 10, 0, 0, 0, 4, 5, 0) + b"abcd"),
]


@pytest.mark.parametrize(("case", "data"), CLOSED, ids=[row[0] for row in CLOSED])
def test_invalid_headers_close_the_connection(node, client, case, data):
    client.send(Noop(), data)
    assert client.receive().opcode == Opcode.NOOP
    assert client.ended()
    with connected(node) as other:
        assert other.status(Noop()) == S.SUCCESS


def test_quit_is_answered_unless_quiet(node):
    with connected(node) as client:
        client.send(Set(key=b"k"), Quit(), Set(key=b"never"))
        assert [client.receive().opcode for _ in range(2)] == [Opcode.SET, Opcode.QUIT]
        assert client.ended()
    with connected(node) as client:
        client.send(make_request(Opcode.QUITQ))
        assert client.ended()
    with connected(node) as client:
        assert client.get(b"never").specific == S.KEY_ENOENT


def test_commands_without_a_bucket_are_refused():
    with Node.running(["beer"], vbuckets=4) as node, connected(node) as client:
        for message in (Get(key=b"k"), Set(key=b"k"), Delete(key=b"k"), make_request(Opcode.GET_ALL_VB_SEQNOS)):
            assert client.status(message) == S.NO_BUCKET
        assert client.status(Noop()) == S.SUCCESS


def test_half_a_frame_does_not_delay_others(node, client):
    data = join_frame(make_request(Opcode.SET, key=b"k", extras=FLAGS_AND_EXPIRY, value=b"v" * 100_000))
    with connected(node) as other:
        for start, end in ((0, 1), (1, 30), (30, 70_000), (70_000, 100_033)):
            client.send(data[start:end])
            assert other.set(b"other", b"x" * start).specific == S.SUCCESS
        assert other.stats()["curr_items"] == "2"
    assert client.receive().specific == S.SUCCESS
    assert client.get(b"k").value == b"v" * 100_000


def test_preserved_expiry_is_kept(client):
    keep = pack_request_infos(RequestInfos(preserve_ttl=True))
    client.ask(Set(key=b"k", expiry=1000))
    expiry = client.meta(b"k").expiry
    assert expiry > 0
    assert client.status(Set(key=b"k", value=b"2", framing=keep)) == S.SUCCESS
    assert client.status(Set(key=b"k", value=b"3", expiry=50, framing=keep)) == S.SUCCESS
    assert (client.meta(b"k").expiry, client.get(b"k").value) == (expiry, b"3")
    assert client.status(Set(key=b"new", expiry=1000, framing=keep)) == S.SUCCESS
    assert client.meta(b"new").expiry >= expiry
    assert client.status(Set(key=b"k")) == S.SUCCESS
    assert client.meta(b"k").expiry == 0
    assert client.status(Add(key=b"other", framing=keep)) == S.EINVAL
