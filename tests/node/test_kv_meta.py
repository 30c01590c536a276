"""Document metadata: GET_META, and changes that bring their metadata from another cluster."""

import struct
import time
from typing import Any

import pytest

from penstock.wire.codec.constants import MAX_KEY, MAX_VALUE, Feature
from penstock.wire.codec.flags import Datatype, OpenFlag, WithMetaFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.kv import (
    DelWithMeta,
    DelWithNmeta,
    Get,
    GetMeta,
    Hello,
    Noop,
    OldDelWithNmeta,
    OldSetWithNmeta,
    SetWithMeta,
    SetWithNmeta,
    pack_features,
)
from penstock.wire.values.snappy import deflate
from tests.node.wire_client import connected, find_session

S, F = Status, WithMetaFlag
SKIP = F.SKIP_CONFLICT_RESOLUTION
LONG = b"k" * (MAX_KEY + 1)
CAS = 1_500_000_000 * 10**9
META: dict[str, Any] = {"key": b"k", "flags": 7, "rev_seqno": 5, "new_cas": CAS}
SETTING = (Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META)
DELETING = (Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META)


def make_set(opcode=Opcode.SET_WITH_META, form=SetWithMeta, **fields):
    return form(**{**META, "expiry": 0, **fields}).encode(opcode)


def make_delete(opcode=Opcode.DEL_WITH_META, form=DelWithMeta, **fields):
    return form(**{**META, "delete_time": 0, **fields}).encode(opcode)


def use_last_write_wins(node):
    for vbucket in node.buckets["default"].store.vbuckets:
        vbucket.incoming.conflict_resolution = "lww"


# GET_META


@pytest.mark.parametrize(("version", "nbytes"), [(None, 20), (0, 20), (1, 20), (2, 21)])
def test_document_metadata_is_returned(client, version, nbytes):
    expiry = int(time.time()) + 1000
    client.set(b"k")
    stored = client.set(b"k", b"v", flags=0xDEADBEEF, expiry=expiry)
    found = client.ask(GetMeta(key=b"k", version=version))
    assert (found.specific, found.cas, found.key, found.value) == (S.SUCCESS, stored.cas, b"", b"")
    assert found.extras == struct.pack(">IIIQ", 0, 0xDEADBEEF, expiry, 2) + bytes(nbytes - 20)


@pytest.mark.parametrize("opcode", [Opcode.GET_META, Opcode.GETQ_META])
def test_tombstone_metadata_is_returned(client, opcode):
    client.ask(Hello(value=pack_features([Feature.JSON])))  # without HELLO, a deletion returns no cas
    client.set(b"k", b"v", flags=7)
    before = int(time.time())
    deleted = client.delete(b"k")
    found = client.ask(GetMeta(key=b"k").encode(opcode))
    was_deleted, flags, when, rev_seqno = struct.unpack(">IIIQ", found.extras)
    assert (found.specific, found.cas) == (S.SUCCESS, deleted.cas)
    assert (was_deleted, flags, rev_seqno) == (1, 0, 2)
    assert before <= when <= int(time.time())


def test_metadata_of_an_expired_document_is_returned(client):
    client.set(b"k", b"v", expiry=1_600_000_000)
    assert (client.meta(b"k").deleted, client.meta(b"k").rev_seqno) == (1, 2)
    assert client.status(Get(key=b"k")) == S.KEY_ENOENT


def test_miss_is_answered_unless_quiet(client):
    client.send(GetMeta(key=b"k"), GetMeta(key=b"k").encode(Opcode.GETQ_META), Noop())
    replies = [client.receive(), client.receive()]
    assert [(reply.opcode, reply.specific, reply.extras) for reply in replies] == [
        (Opcode.GET_META, S.KEY_ENOENT, b""),
        (Opcode.NOOP, S.SUCCESS, b""),
    ]


# Changes with metadata


FORMS = [
    (SetWithMeta, {}),
    (SetWithMeta, {"options": 0}),
    (OldSetWithNmeta, {"nmeta": 0}),
    (OldSetWithNmeta, {"nmeta": 3}),
    (SetWithNmeta, {"options": SKIP, "nmeta": 3}),
]


@pytest.mark.parametrize("opcode", SETTING)
@pytest.mark.parametrize(("form", "fields"), FORMS)
def test_every_store_command_stores_the_document(client, consumer, opcode, form, fields):
    expiry = int(time.time()) + 1000
    value = b"value" + bytes(fields.get("nmeta", 0))
    client.send(make_set(opcode, form, value=value, expiry=expiry, **fields), Noop())
    if opcode in (Opcode.SET_WITH_META, Opcode.ADD_WITH_META):
        stored = client.receive()
        assert (stored.opcode, stored.specific, stored.cas, stored.value) == (opcode, S.SUCCESS, CAS, b"")
    assert client.receive().opcode == Opcode.NOOP
    assert client.get(b"k") == Frame(Magic.RESPONSE, Opcode.GET, cas=CAS, extras=b"\0\0\0\7", value=b"value")
    consumer.stream(end=1)
    _, mutation = consumer.changes()
    assert (mutation.cas, mutation.rev_seqno, mutation.expiry, mutation.flags) == (CAS, 5, expiry, 7)
    assert (mutation.value, mutation.nmeta, mutation.by_seqno) == (b"value", 0, 1)


DEL_FORMS = [
    (DelWithMeta, {}),
    (DelWithMeta, {"options": SKIP}),
    (OldDelWithNmeta, {"nmeta": 2, "value": b"\1\2"}),
    (DelWithNmeta, {"options": 0, "nmeta": 2, "value": b"\1\2"}),
]


@pytest.mark.parametrize("opcode", DELETING)
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize(("form", "fields"), DEL_FORMS)
def test_every_delete_command_deletes_the_document(client, opcode, form, exists, fields):
    if exists:
        client.set(b"k", b"v")
    client.send(make_delete(opcode, form, delete_time=1_600_000_000, **fields), Noop())
    if opcode is Opcode.DEL_WITH_META:
        assert client.receive().cas == CAS
    assert client.receive().opcode == Opcode.NOOP
    assert client.status(Get(key=b"k")) == S.KEY_ENOENT
    found = client.meta(b"k")
    assert (found.deleted, found.expiry, found.rev_seqno, found.cas) == (1, 1_600_000_000, 5, CAS)


@pytest.mark.parametrize(("options", "event"), [(0, Opcode.DCP_DELETION), (F.IS_EXPIRATION, Opcode.DCP_EXPIRATION)])
def test_reason_of_a_deletion_is_kept(node, client, options, event):
    client.ask(make_delete(options=options, delete_time=1_600_000_000))
    with connected(node) as consumer:
        consumer.open(flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES)
        assert consumer.control("enable_expiry_opcode", "true") == S.SUCCESS
        consumer.stream(end=1)
        _, removal = consumer.changes()
    assert (removal.opcode, removal.key, removal.cas, removal.rev_seqno) == (event, b"k", CAS, 5)
    assert removal.delete_time == 1_600_000_000


def test_tokens_have_the_local_seqno(client):
    client.ask(Hello(value=pack_features([Feature.MUTATION_SEQNO])))
    client.set(b"other")
    replies = [client.ask(make_set()), client.ask(make_delete(rev_seqno=6))]
    assert [struct.unpack(">QQ", reply.extras)[1] for reply in replies] == [2, 3]


def test_later_changes_have_a_higher_cas(client):
    ahead = (int(time.time()) + 3600) * 10**9
    client.ask(make_set(new_cas=ahead))
    assert client.set(b"k").cas > ahead
    assert client.meta(b"k").rev_seqno == 6


CONFLICTS = [
    # The stored document has 5 and CAS. Columns: rev_seqno, cas, accepted by seqno, accepted by last write.
    (6, CAS - 1, True, False),
    (4, CAS + 1, False, True),
    (5, CAS + 1, True, True),
    (5, CAS, False, False),
]


@pytest.mark.parametrize("make_change", [make_set, make_delete])
@pytest.mark.parametrize(("rev_seqno", "cas", "by_seqno", "by_last_write"), CONFLICTS)
@pytest.mark.parametrize("lww", [False, True])
def test_conflicts_are_resolved(node, client, make_change, rev_seqno, cas, by_seqno, by_last_write, lww):
    options = F.FORCE_ACCEPT if lww else 0
    if lww:
        use_last_write_wins(node)
    assert client.status(make_set(options=options)) == S.SUCCESS
    accepted = by_last_write if lww else by_seqno
    status = client.status(make_change(rev_seqno=rev_seqno, new_cas=cas, options=options))
    assert status == (S.SUCCESS if accepted else S.KEY_EEXISTS)
    assert client.meta(b"k").cas == (cas if accepted else CAS)


@pytest.mark.parametrize("options", [SKIP, F.FORCE_WITH_META])
def test_conflict_resolution_can_be_skipped(client, options):
    client.ask(make_set())
    assert client.status(make_set(rev_seqno=1, new_cas=9, options=options)) == S.SUCCESS
    assert (client.meta(b"k").cas, client.meta(b"k").rev_seqno) == (9, 1)


@pytest.mark.parametrize("make_change", [make_set, make_delete])
def test_reply_has_the_stored_cas(client, make_change):
    reply = client.ask(make_change())
    assert (reply.specific, reply.cas, client.meta(b"k").cas) == (S.SUCCESS, CAS, CAS)


def test_cas_can_be_regenerated(client):
    stored = client.ask(make_set(new_cas=0, options=SKIP | F.REGENERATE_CAS))
    assert stored.specific == S.SUCCESS
    assert stored.cas == client.get(b"k").cas > CAS


def test_add_stores_only_missing_documents(client):
    assert client.status(make_set(Opcode.ADD_WITH_META)) == S.SUCCESS
    for options in (0, SKIP):
        assert client.status(make_set(Opcode.ADD_WITH_META, rev_seqno=9, options=options)) == S.KEY_EEXISTS
    client.delete(b"k")
    assert client.status(make_set(Opcode.ADD_WITH_META, rev_seqno=9)) == S.SUCCESS


def test_header_cas_guards_the_local_document(client):
    assert client.status(make_set(cas=1)) == S.KEY_ENOENT
    assert client.status(make_delete(cas=1)) == S.KEY_ENOENT
    cas = client.set(b"k").cas
    for make_change in (make_set, make_delete):
        assert client.status(make_change(cas=cas + 1)) == S.KEY_EEXISTS
        assert client.status(make_change(cas=cas, options=SKIP)) == S.SUCCESS
        cas = client.set(b"k").cas


XATTRS = pack_xattrs({"_sync": b"1"})


def test_extended_attributes_are_stored(node, client):
    find_session(node, client).datatypes = 7
    fields = {"datatype": Datatype.XATTR, "new_cas": CAS}
    assert client.status(make_set(value=XATTRS + b"body", **fields)) == S.SUCCESS
    assert client.get(b"k").value == b"body"
    assert client.status(make_delete(value=XATTRS + b"body", rev_seqno=6, **fields)) == S.EINVAL
    assert client.status(make_delete(value=XATTRS, rev_seqno=6, **fields)) == S.SUCCESS
    assert (client.meta(b"k").deleted, client.meta(b"k").value_datatype) == (1, Datatype.XATTR)
    assert client.status(make_set(value=b"\0\0\0\xff", rev_seqno=7, **fields)) == S.XATTR_EINVAL
    assert client.status(make_delete(value=b"\0\0\0\xff", rev_seqno=7, **fields)) == S.XATTR_EINVAL
    assert client.status(make_delete(value=b"v", rev_seqno=7, datatype=Datatype.SNAPPY)) == S.EINVAL


def test_document_with_attributes_wins_a_tie(node, client):
    find_session(node, client).datatypes = 7
    assert client.status(make_set(value=b"v")) == S.SUCCESS
    assert client.status(make_set(value=XATTRS, datatype=Datatype.XATTR)) == S.SUCCESS
    assert client.status(make_set(value=b"v")) == S.KEY_EEXISTS


OPTIONS = [
    # Columns: options, status in a bucket that resolves by seqno, status in a bucket where the last write wins.
    (0, S.SUCCESS, S.EINVAL),
    (F.FORCE_ACCEPT, S.EINVAL, S.SUCCESS),
    (SKIP, S.SUCCESS, S.EINVAL),
    (SKIP | F.FORCE_ACCEPT, S.EINVAL, S.SUCCESS),
    (F.REGENERATE_CAS, S.EINVAL, S.EINVAL),
    (F.REGENERATE_CAS | F.FORCE_ACCEPT, S.EINVAL, S.EINVAL),
    (F.REGENERATE_CAS | SKIP, S.SUCCESS, S.SUCCESS),
    (F.REGENERATE_CAS | F.FORCE_WITH_META, S.SUCCESS, S.SUCCESS),
    (F.REGENERATE_CAS | SKIP | F.FORCE_ACCEPT, S.EINVAL, S.SUCCESS),
    (0x20, S.EINVAL, S.EINVAL),
    (0x80000000 | F.FORCE_ACCEPT, S.EINVAL, S.EINVAL),
]


@pytest.mark.parametrize("make_change", [make_set, make_delete])
@pytest.mark.parametrize(("options", "by_seqno", "by_last_write"), OPTIONS)
@pytest.mark.parametrize("lww", [False, True])
def test_consistent_options_are_accepted(node, client, make_change, options, by_seqno, by_last_write, lww):
    if lww:
        use_last_write_wins(node)
    assert client.status(make_change(options=options)) == (by_last_write if lww else by_seqno)


def test_lww_bucket_requires_force_accept(node, client):
    use_last_write_wins(node)
    for frame in (make_set(), make_set(form=OldSetWithNmeta, nmeta=0), make_delete()):
        assert client.status(frame) == S.EINVAL


REFUSED = [
    ("an unknown version", GetMeta(key=b"k", version=3), S.EINVAL),
    ("metadata of a long key", GetMeta(key=LONG), S.EINVAL),
    ("metadata without a key", Frame(Magic.REQUEST, Opcode.GET_META), S.EINVAL),
    ("metadata in a missing vbucket", GetMeta(key=b"k", vbucket=16), S.NOT_MY_VBUCKET),
    ("a set with the flag of an expiration", make_set(options=F.IS_EXPIRATION), S.EINVAL),
    ("more metadata than value", make_set(form=OldSetWithNmeta, value=b"12", nmeta=3), S.EINVAL),
    ("extras of 25 bytes", Frame(Magic.REQUEST, Opcode.SET_WITH_META, key=b"k", extras=bytes(25)), S.EINVAL),
    ("extras of 32 bytes", Frame(Magic.REQUEST, Opcode.DEL_WITH_META, key=b"k", extras=bytes(32)), S.EINVAL),
    ("no cas", make_set(new_cas=0), S.EINVAL),
    ("the cas of a locked document", make_delete(new_cas=2**64 - 1), S.EINVAL),
    ("a long key", make_set(key=LONG), S.EINVAL),
    ("a long key to delete", make_delete(key=LONG), S.EINVAL),
    ("no key", make_set(key=b""), S.EINVAL),
    ("a store in a missing vbucket", make_set(Opcode.SETQ_WITH_META, vbucket=16), S.NOT_MY_VBUCKET),
    ("a big value", make_set(value=bytes(MAX_VALUE + 1)), S.E2BIG),
    ("a deletion with a value", make_delete(value=b"v"), S.EINVAL),
    ("a quiet deletion with a value", make_delete(Opcode.DELQ_WITH_META, value=b"v"), S.EINVAL),
    ("attributes that were not agreed on", make_set(value=XATTRS, datatype=Datatype.XATTR), S.EINVAL),
    ("a compressed value that was not agreed on", make_set(datatype=Datatype.SNAPPY), S.EINVAL),
    ("the highest rev_seqno", make_set(rev_seqno=2**63), S.ERANGE),
]


@pytest.mark.parametrize(
    ("value", "sent", "stored"),
    [(b'{"m":1}', 0, Datatype.JSON), (b"text", Datatype.JSON, 0), (b"1", Datatype.JSON, Datatype.JSON)],
)
def test_json_is_detected_whatever_the_datatype(node, client, value, sent, stored):
    find_session(node, client).datatypes = int(Datatype.JSON)
    assert client.status(make_set(value=value, datatype=sent)) == S.SUCCESS
    assert client.meta(b"k").value_datatype == stored


def test_compressed_document_has_the_limit_of_its_datatype(node):
    """Clients that read the document have the same limit."""
    packed = pack_xattrs({"_a": b"1"}, bytes(MAX_VALUE))
    rows = [
        (deflate(bytes(MAX_VALUE)), Datatype.SNAPPY, S.SUCCESS),
        (deflate(bytes(MAX_VALUE + 1)), Datatype.SNAPPY, S.EINVAL),
        (deflate(packed), Datatype.SNAPPY | Datatype.XATTR, S.SUCCESS),
    ]
    with connected(node) as modern:
        modern.hello(Feature.SNAPPY, Feature.XATTR)
        for rev_seqno, (value, datatype, status) in enumerate(rows, 100):
            assert modern.status(make_set(value=value, datatype=datatype, rev_seqno=rev_seqno)) == status


@pytest.mark.parametrize(("case", "message", "status"), REFUSED, ids=[row[0] for row in REFUSED])
def test_invalid_requests_are_refused(client, case, message, status):
    client.send(message, Noop())
    refused = client.receive()
    assert (refused.specific, refused.cas, refused.extras) == (status, 0, b"")
    assert client.receive().opcode == Opcode.NOOP
    assert client.stats()["curr_items"] == "0"


def test_largest_value_can_have_extended_metadata(client):
    value = bytes(MAX_VALUE + 2)
    assert client.status(make_set(form=OldSetWithNmeta, value=value, nmeta=2)) == S.SUCCESS
    assert client.status(make_set(form=OldSetWithNmeta, value=value, nmeta=1, rev_seqno=6)) == S.E2BIG


def test_meta_commands_are_counted_as_stores_and_deletions(client):
    client.send(make_set(Opcode.SETQ_WITH_META), make_delete(Opcode.DELQ_WITH_META, rev_seqno=6))
    stats = client.stats()
    assert (stats["cmd_set"], stats["cmd_delete"]) == ("1", "1")
