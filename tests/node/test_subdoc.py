"""Sub-document commands: lookups, mutations, extended attributes, deleted documents and replicas."""

import json
import struct
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.wire.codec.constants import MAX_VALUE, Feature, FrameInfoId, VbucketState
from penstock.wire.codec.flags import Datatype, DocFlag, OpenFlag, PathFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import DeletionV2
from penstock.wire.messages.dcp_values import pack_framing, pack_xattrs, unpack_xattrs
from penstock.wire.messages.kv import (
    GetLocked,
    Hello,
    Noop,
    SetVbucket,
    SetWithMeta,
    Unlock,
    pack_features,
    unpack_features,
)
from penstock.wire.messages.subdoc import (
    RESULTS,
    LookupResult,
    MultiLookup,
    MultiMutation,
    MutationResult,
    SubdocLookup,
    SubdocMutation,
    pack_lookup_specs,
    pack_mutation_specs,
    unpack_lookup_results,
    unpack_mutation_results,
)
from penstock.wire.values.snappy import deflate
from tests.examples import scaled
from tests.node.wire_client import connected

S, F, D = Status, Feature, Datatype
GET, EXISTS, COUNT = Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS, Opcode.SUBDOC_GET_COUNT
UPSERT, COUNTER, PUSH = Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_COUNTER, Opcode.SUBDOC_ARRAY_PUSH_LAST
DELETE, TO_BODY = Opcode.SUBDOC_DELETE, Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR
XATTR, MKDIR_P, MACROS = PathFlag.XATTR, PathFlag.MKDIR_P, PathFlag.XATTR | PathFlag.EXPAND_MACROS
MKDOC, ADD, ACCESS, REVIVE = DocFlag.MKDOC, DocFlag.ADD, DocFlag.ACCESS_DELETED, DocFlag.REVIVE
AS_DELETED = DocFlag.CREATE_AS_DELETED
TEXT = b'{"a": [1, {"b": null}], "n": 5}'


def request_features(client, *features):
    assert client.status(Hello(value=pack_features(features))) == S.SUCCESS


@pytest.fixture
def modern(node):
    """Connect a client with the features of SDKs, except collections."""
    with connected(node) as client:
        request_features(client, F.JSON, F.XATTR, F.XERROR, F.SNAPPY, F.MUTATION_SEQNO)
        yield client


def look_up(client, opcode, path, flags=0, *, key=b"k", **fields):
    return client.ask(SubdocLookup.for_path(path, key=key, flags=flags, **fields).encode(opcode))


def change_part(client, opcode, path, value=b"", flags=0, *, key=b"k", **fields):
    return client.ask(SubdocMutation.for_path(path, value, key=key, flags=flags, **fields).encode(opcode))


def look_up_all(client, *specs, **fields):
    reply = client.ask(MultiLookup(**{"key": b"k", "value": pack_lookup_specs(specs), **fields}))
    results = unpack_lookup_results(reply.value) if reply.specific in RESULTS else []
    return reply.specific, [tuple(result) for result in results]


def change_all(client, *specs, **fields):
    whole = [(*spec, b"")[:4] for spec in specs]
    return client.ask(MultiMutation(**{"key": b"k", "value": pack_mutation_specs(whole), **fields}))


def read_attributes(client, *names, **fields):
    """Return the parsed values of attributes, None for a missing attribute."""
    _, results = look_up_all(client, *((GET, XATTR, name) for name in names), **fields)
    return [json.loads(value) if status == S.SUCCESS else None for status, value in results]


# Lookups


def test_lookup_returns_a_part(modern):
    stored = modern.set(b"k", TEXT)
    found = look_up(modern, GET, b"a[1]")
    assert (found.specific, found.value, found.datatype) == (S.SUCCESS, b'{"b": null}', D.JSON)
    assert (found.cas, found.extras, found.key) == (stored.cas, b"", b"")
    assert look_up(modern, COUNT, b"a").value == b"2"
    exists = look_up(modern, EXISTS, b"n")
    assert (exists.specific, exists.value, exists.datatype) == (S.SUCCESS, b"", 0)
    assert look_up(modern, EXISTS, b"m").specific == S.SUBDOC_PATH_ENOENT


def test_client_without_json_gets_no_json_datatype(client):
    client.set(b"k", TEXT)
    found = look_up(client, GET, b"n")
    assert (found.value, found.datatype) == (b"5", 0)
    missing = look_up(client, GET, b"m")
    assert (missing.specific, missing.value) == (S.SUBDOC_PATH_ENOENT, b"")


def test_client_with_json_gets_an_error_context(modern):
    modern.set(b"k", TEXT)
    refused = look_up(modern, GET, b"n.x")
    assert refused.specific == S.SUBDOC_PATH_MISMATCH
    assert "SUBDOC_PATH_MISMATCH" in json.loads(refused.value)["error"]["context"]


NOT_READ = [
    (b"no", b"a", {}, S.KEY_ENOENT),
    (b"plain", b"a", {}, S.SUBDOC_DOC_NOTJSON),
    (b"k", b"a..b", {}, S.SUBDOC_PATH_EINVAL),
    (b"k", b"x" * 1025, {}, S.EINVAL),
    (b"k", b"", {}, S.EINVAL),
    (b"k", b"a", {"flags": MKDIR_P}, S.EINVAL),
    (b"k", b"a", {"doc_flags": MKDOC}, S.EINVAL),
    (b"k", b"a", {"cas": 5}, S.KEY_EEXISTS),
    (b"k", b"a", {"vbucket": 99}, S.NOT_MY_VBUCKET),
    (b"k" * 251, b"a", {}, S.EINVAL),
]


@pytest.mark.parametrize(("key", "path", "fields", "status"), NOT_READ)
def test_invalid_lookups_are_refused(modern, key, path, fields, status):
    modern.set(b"k", TEXT)
    modern.set(b"plain", b"text")
    assert look_up(modern, GET, path, key=key, **fields).specific == status


def test_path_cannot_exceed_the_value(client):
    bad = Frame(Magic.REQUEST, GET, extras=b"\0\5\0", key=b"k", value=b"a.b")
    assert client.status(bad) == S.EINVAL
    assert client.status(bad._replace(opcode=UPSERT)) == S.EINVAL
    assert client.status(bad._replace(extras=b"\0\2\0")) == S.EINVAL  # a lookup has no value after the path


def test_requests_with_datatypes_are_refused(modern):
    modern.set(b"k", TEXT)
    for datatype in (D.JSON, D.SNAPPY):
        assert look_up(modern, GET, b"n", datatype=datatype).specific == S.EINVAL
        assert change_part(modern, UPSERT, b"n", b"1", datatype=datatype).specific == S.EINVAL


def test_compressed_documents_are_stored_inflated(modern):
    modern.set(b"k", deflate(TEXT), datatype=D.SNAPPY | D.JSON)
    assert look_up(modern, GET, b"n").value == b"5"
    assert change_part(modern, UPSERT, b"n", b"6").specific == S.SUCCESS
    after = modern.get(b"k")
    assert (after.value, after.datatype) == (TEXT.replace(b"5", b"6"), D.JSON)


def test_multi_lookup_returns_all_results(modern):
    stored = modern.set(b"k", TEXT, flags=7)
    reply = modern.ask(MultiLookup(key=b"k", value=pack_lookup_specs([(GET, 0, b"n"), (EXISTS, 0, b"n")])))
    assert (reply.specific, reply.cas, reply.datatype) == (S.SUCCESS, stored.cas, 0)
    assert unpack_lookup_results(reply.value) == [LookupResult(0, b"5"), LookupResult(0)]
    status, results = look_up_all(modern, (GET, XATTR, b"$document.flags"), (GET, 0, b"no"), (Opcode.GET, 0, b""))
    assert status == S.SUBDOC_MULTI_PATH_FAILURE
    assert results == [(0, b"7"), (S.SUBDOC_PATH_ENOENT, b""), (0, TEXT)]
    assert look_up_all(modern, (GET, 0, b"n"), key=b"no")[0] == S.KEY_ENOENT
    reply = modern.ask(MultiLookup(key=b"k", value=pack_lookup_specs([(GET, 0, b"n")] * 17)))
    assert reply.specific == S.SUBDOC_INVALID_COMBO


def test_virtual_document_is_read(modern):
    expiry = int(time.time()) + 1000
    stored = modern.set(b"k", TEXT, flags=7, expiry=expiry)
    shown, vbucket = read_attributes(modern, b"$document", b"$vbucket.HLC")
    assert (shown["CAS"], shown["flags"], shown["exptime"]) == (f"0x{stored.cas:016x}", 7, expiry)
    vbuuid, seqno = (int.from_bytes(part, "big") for part in (stored.extras[:8], stored.extras[8:]))
    assert (int(shown["vbucket_uuid"], 16), int(shown["seqno"], 16)) == (vbuuid, seqno)
    assert (shown["deleted"], shown["revid"], shown["value_bytes"]) == (False, "1", len(TEXT))
    assert abs(int(vbucket["now"]) - time.time()) < 60
    assert int(shown["last_modified"]) == stored.cas // 10**9


# Changes


def test_mutation_changes_a_part(modern):
    before = modern.set(b"k", TEXT, flags=9)
    changed = change_part(modern, UPSERT, b"a[1].c", b"[ ]")
    assert (changed.specific, changed.value, changed.datatype) == (S.SUCCESS, b"", 0)
    assert (len(changed.extras), int.from_bytes(changed.extras[8:], "big")) == (16, 2)
    after = modern.get(b"k")
    assert after.value == b'{"a": [1, {"b": null,"c":[ ]}], "n": 5}'
    assert (after.cas, after.extras, after.datatype) == (changed.cas, b"\0\0\0\x09", D.JSON)
    assert changed.cas > before.cas
    counted = change_part(modern, COUNTER, b"n", b"-6")
    assert (counted.value, counted.datatype, len(counted.extras)) == (b"-1", D.JSON, 16)
    assert change_part(modern, DELETE, b"a").specific == S.SUCCESS
    assert modern.get(b"k").value == b'{ "n": -1}'
    assert change_part(modern, DELETE, b"a").specific == S.SUBDOC_PATH_ENOENT


def test_replies_have_no_tokens_without_agreement(client):
    client.set(b"k", b"{}")
    assert change_part(client, UPSERT, b"a", b"1").extras == b""


def test_cas_guards_a_mutation(modern):
    stored = modern.set(b"k", TEXT)
    assert change_part(modern, UPSERT, b"n", b"1", cas=stored.cas + 1).specific == S.KEY_EEXISTS
    assert change_part(modern, UPSERT, b"n", b"1", cas=stored.cas).specific == S.SUCCESS
    assert change_part(modern, UPSERT, b"n", b"1", cas=stored.cas).specific == S.KEY_EEXISTS
    assert change_part(modern, UPSERT, b"n", b"1", cas=5, key=b"no").specific == S.KEY_ENOENT


def test_locked_document_refuses_mutations(modern):
    modern.set(b"k", TEXT)
    lock = modern.ask(GetLocked(key=b"k")).cas
    for fields in ({}, {"cas": 5}, {"cas": 2**64 - 1}):
        assert change_part(modern, UPSERT, b"n", b"1", **fields).specific == S.LOCKED
    assert look_up(modern, GET, b"n").specific == S.LOCKED
    assert look_up_all(modern, (GET, 0, b"n"))[0] == S.LOCKED
    assert change_part(modern, UPSERT, b"n", b"1", doc_flags=ADD).specific == S.KEY_EEXISTS
    assert change_part(modern, UPSERT, b"n", b"1", cas=lock).specific == S.SUCCESS
    assert modern.status(Unlock(key=b"k", cas=lock)) == S.NOT_LOCKED
    assert look_up(modern, GET, b"n").value == b"1"


def test_mutation_can_create_a_document(modern):
    assert change_part(modern, UPSERT, b"a.b", b"1").specific == S.KEY_ENOENT
    made = change_part(modern, UPSERT, b"a.b", b"1", doc_flags=MKDOC)
    assert made.specific == S.SUCCESS
    after = modern.get(b"k")
    assert (after.value, after.datatype, after.extras, after.cas) == (b'{"a":{"b":1}}', D.JSON, bytes(4), made.cas)
    assert change_part(modern, UPSERT, b"a.c", b"1", doc_flags=MKDOC).specific == S.SUCCESS
    assert change_part(modern, UPSERT, b"a.b", b"1", doc_flags=ADD).specific == S.KEY_EEXISTS
    assert change_part(modern, PUSH, b"", b"1,2", doc_flags=ADD, key=b"list").specific == S.SUCCESS
    assert modern.get(b"list").value == b"[1,2]"


def test_multi_mutation_changes_all_parts(modern):
    reply = change_all(modern, (UPSERT, 0, b"a.b", b"1"), (COUNTER, 0, b"n", b"5"), doc_flags=MKDOC)
    assert (reply.specific, len(reply.extras), reply.datatype) == (S.SUCCESS, 16, 0)
    assert unpack_mutation_results(reply.value) == [MutationResult(1, 0, b"5")]
    before = modern.get(b"k")
    assert before.value == b'{"a":{"b":1},"n":5}'
    reply = change_all(modern, (UPSERT, 0, b"x", b"1"), (UPSERT, 0, b"n.x", b"1"), (UPSERT, 0, b"m.x", b"1"))
    assert (reply.specific, reply.extras) == (S.SUBDOC_MULTI_PATH_FAILURE, b"")
    assert unpack_mutation_results(reply.value) == [MutationResult(1, S.SUBDOC_PATH_MISMATCH)]
    assert modern.get(b"k") == before._replace(opaque=modern.get(b"k").opaque)
    assert change_all(modern, (Opcode.SET, 0, b"", b"plain")).specific == S.SUCCESS
    after = modern.get(b"k")
    assert (after.value, after.datatype) == (b"plain", 0)


def get_expiry(client, key=b"k"):
    return client.meta(key).expiry


def test_mutation_sets_or_removes_the_expiry(modern):
    soon = int(time.time()) + 500
    modern.set(b"k", TEXT, expiry=soon)
    assert change_part(modern, UPSERT, b"n", b"1").specific == S.SUCCESS
    assert get_expiry(modern) == 0
    assert change_part(modern, UPSERT, b"n", b"1", expiry=soon).specific == S.SUCCESS
    assert get_expiry(modern) == soon
    assert change_part(modern, UPSERT, b"n", b"1", expiry=soon + 1, doc_flags=MKDOC).specific == S.SUCCESS
    assert get_expiry(modern) == soon + 1
    assert change_all(modern, (UPSERT, 0, b"n", b"1"), expiry=soon).specific == S.SUCCESS
    assert get_expiry(modern) == soon
    assert change_all(modern, (UPSERT, 0, b"n", b"1"), expiry=100, doc_flags=MKDOC).specific == S.SUCCESS
    assert abs(get_expiry(modern) - time.time() - 100) < 60


def test_preserved_expiry_is_kept(modern):
    soon = int(time.time()) + 500
    modern.set(b"k", TEXT, expiry=soon)
    for key, expected in ((b"k", soon), (b"new", soon + 7)):
        extras = struct.pack(">HBIB", 1, 0, soon + 7, MKDOC)
        framing = pack_framing([(FrameInfoId.PRESERVE_TTL, b"")])
        request = Frame(Magic.ALT_REQUEST, UPSERT, extras=extras, key=key, value=b"n1", framing=framing)
        assert modern.ask(request).specific == S.SUCCESS
        assert get_expiry(modern, key) == expected


def test_document_cannot_exceed_the_limit(modern):
    half = b'"' + b"x" * (MAX_VALUE // 2) + b'"'
    assert change_part(modern, UPSERT, b"a", half, doc_flags=MKDOC).specific == S.SUCCESS
    assert change_part(modern, UPSERT, b"b", half).specific == S.E2BIG
    assert look_up(modern, EXISTS, b"b").specific == S.SUBDOC_PATH_ENOENT


def test_multi_mutation_sets_the_flags(modern):
    """Transactions of Couchbase's clients set the flags so."""
    modern.set(b"k", TEXT, flags=9)
    for fields in ({"user_flags": 7}, {"user_flags": 8, "doc_flags": ACCESS}):
        reply = change_all(modern, (UPSERT, 0, b"n", b"1"), expiry=0, **fields)
        assert (reply.specific, modern.get(b"k").extras) == (S.SUCCESS, fields["user_flags"].to_bytes(4, "big"))
    assert change_all(modern, (UPSERT, 0, b"n", b"2"), expiry=0).specific == S.SUCCESS
    assert modern.meta(b"k").flags == 8


# Extended attributes


def test_attributes_need_the_xattr_feature(client):
    client.set(b"k", TEXT)
    assert look_up(client, GET, b"_sync", XATTR).specific == S.NOT_SUPPORTED
    assert look_up_all(client, (GET, XATTR, b"_sync"), (GET, 0, b"n"))[0] == S.NOT_SUPPORTED
    assert change_part(client, UPSERT, b"_sync", b"1", XATTR).specific == S.NOT_SUPPORTED
    assert look_up_all(client, (GET, 0, b"n")) == (S.SUCCESS, [(S.SUCCESS, b"5")])


def test_attributes_are_separate_from_the_body(modern):
    modern.set(b"k", TEXT)
    assert change_part(modern, UPSERT, b"_sync.rev", b'"1-a"', XATTR | MKDIR_P).specific == S.SUCCESS
    assert change_all(modern, (UPSERT, XATTR, b"mine", b"[1]"), (UPSERT, 0, b"n", b"6")).specific == S.SUCCESS
    read = modern.get(b"k")
    assert (read.value, read.datatype) == (TEXT.replace(b"5", b"6"), D.JSON)
    found = read_attributes(modern, b"_sync", b"mine[0]", b"$XTOC", b"no")
    assert found == [{"rev": "1-a"}, 1, ["_sync", "mine"], None]
    assert modern.meta(b"k").value_datatype == D.JSON | D.XATTR
    assert change_part(modern, DELETE, b"mine", flags=XATTR).specific == S.SUCCESS
    assert read_attributes(modern, b"$XTOC") == [["_sync"]]
    modern.set(b"k", TEXT)
    assert read_attributes(modern, b"_sync") == [{"rev": "1-a"}]  # system attributes stay when the value is replaced


def test_attributes_of_other_clusters_are_read(modern):
    value = deflate(pack_xattrs({"_sync": b'{"rev":3}'}, TEXT))
    datatype = D.SNAPPY | D.XATTR | D.JSON
    meta = SetWithMeta(key=b"k", value=value, datatype=datatype, new_cas=time.time_ns(), rev_seqno=4, flags=0, expiry=0)
    assert modern.ask(meta).specific == S.SUCCESS
    assert read_attributes(modern, b"_sync.rev", b"$document.datatype") == [3, ["snappy", "json", "xattr"]]
    assert look_up(modern, GET, b"n").value == b"5"
    assert change_part(modern, COUNTER, b"_sync.rev", b"1", XATTR).value == b"4"
    assert modern.meta(b"k").value_datatype == D.XATTR | D.JSON


def test_macros_expand_to_cas_and_seqno(modern):
    specs = [
        (UPSERT, MACROS, b"_m", b'"${Mutation.CAS}"'),
        (UPSERT, MACROS | MKDIR_P, b"t.seqno", b'"${Mutation.seqno}"'),
        (UPSERT, 0, b"n", b"1"),
    ]
    made = change_all(modern, *specs, doc_flags=MKDOC)
    assert made.specific == S.SUCCESS
    cas, seqno = read_attributes(modern, b"_m", b"t.seqno")
    assert bytes.fromhex(cas[2:]) == made.cas.to_bytes(8, "little")
    assert int(seqno, 16) == int.from_bytes(made.extras[8:], "big")
    assert modern.get(b"k").cas == made.cas
    assert change_all(modern, *specs).specific == S.SUCCESS
    assert int(read_attributes(modern, b"t.seqno")[0], 16) == 2


def test_binary_attributes_are_stored(modern):
    agreed = modern.ask(Hello(value=pack_features([F.JSON, F.XATTR, F.SUBDOC_BINARY_XATTR])))
    assert F.SUBDOC_BINARY_XATTR in unpack_features(agreed.value)
    binary = XATTR | PathFlag.BINARY
    assert change_part(modern, UPSERT, b"bin", b"\xff\0", binary, doc_flags=MKDOC).specific == S.SUCCESS
    found = look_up(modern, GET, b"bin", binary)
    assert (found.specific, found.value, found.datatype) == (S.SUCCESS, b"\xff\0", 0)
    assert look_up_all(modern, (GET, binary, b"bin")) == (S.SUCCESS, [(S.SUCCESS, b"\xff\0")])
    assert change_part(modern, UPSERT, b"text", b'"a"', XATTR).specific == S.SUCCESS
    assert look_up(modern, GET, b"text", binary).specific == S.SUBDOC_NOT_BINARY


# Deleted documents


def test_attributes_of_deleted_documents_are_kept(modern):
    modern.set(b"k", TEXT)
    specs = [(UPSERT, XATTR, b"_s", b"1"), (UPSERT, XATTR, b"user", b"2"), (Opcode.DELETE, 0, b"")]
    deleted = change_all(modern, *specs)
    assert (deleted.specific, len(deleted.extras)) == (S.SUCCESS, 16)
    assert modern.get(b"k").specific == S.KEY_ENOENT
    assert look_up(modern, GET, b"_s", XATTR).specific == S.KEY_ENOENT
    found = look_up(modern, GET, b"_s", XATTR, doc_flags=ACCESS)
    assert (found.specific, found.value, found.cas) == (S.SUBDOC_SUCCESS_DELETED, b"1", deleted.cas)
    both = ((GET, XATTR, b"_s"), (GET, XATTR, b"user"))
    assert look_up_all(modern, both[0], doc_flags=ACCESS)[0] == S.SUBDOC_SUCCESS_DELETED
    assert look_up_all(modern, *both, doc_flags=ACCESS) == (
        S.SUBDOC_MULTI_PATH_FAILURE_DELETED,
        [(S.SUCCESS, b"1"), (S.SUBDOC_PATH_ENOENT, b"")],
    )
    changed = change_part(modern, COUNTER, b"_s", b"1", XATTR, doc_flags=ACCESS, cas=deleted.cas)
    assert (changed.specific, changed.value) == (S.SUBDOC_SUCCESS_DELETED, b"2")
    assert modern.get(b"k").specific == S.KEY_ENOENT
    assert change_part(modern, COUNTER, b"_s", b"1", XATTR, doc_flags=ACCESS, cas=deleted.cas).specific == S.KEY_EEXISTS
    assert look_up(modern, GET, b"a", doc_flags=ACCESS).specific == S.SUBDOC_DOC_NOTJSON
    assert look_up_all(modern, (GET, XATTR, b"_s"), key=b"never", doc_flags=ACCESS)[0] == S.KEY_ENOENT


def test_document_created_as_deleted_can_be_revived(modern):
    flags = AS_DELETED | ADD | ACCESS
    staged = change_all(modern, (UPSERT, XATTR | MKDIR_P, b"txn.op", b'{"x":1}'), doc_flags=flags)
    assert staged.specific == S.SUBDOC_SUCCESS_DELETED
    assert modern.get(b"k").specific == S.KEY_ENOENT
    assert modern.meta(b"k").deleted == 1
    assert change_all(modern, (UPSERT, XATTR | MKDIR_P, b"txn.op", b"1"), doc_flags=flags).specific == S.KEY_EEXISTS
    without_access = change_all(modern, (UPSERT, XATTR, b"t", b"1"), doc_flags=AS_DELETED | ADD)
    assert without_access.specific == S.KEY_EEXISTS
    staged = look_up(modern, GET, b"txn.op.x", XATTR, doc_flags=ACCESS)
    assert (staged.value, staged.specific) == (b"1", S.SUBDOC_SUCCESS_DELETED)
    reply = change_all(
        modern, (TO_BODY, XATTR, b"txn.op"), (DELETE, XATTR, b"txn"), doc_flags=ACCESS | REVIVE, cas=staged.cas
    )
    assert reply.specific == S.SUCCESS
    read = modern.get(b"k")
    assert (read.value, read.datatype) == (b'{"x":1}', D.JSON)
    assert modern.meta(b"k").value_datatype == D.JSON
    again = change_all(modern, (UPSERT, XATTR, b"t", b"1"), doc_flags=ACCESS | REVIVE)
    assert again.specific == S.SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS


def test_mutation_without_access_deleted_does_not_revive(modern):
    assert (
        change_all(modern, (UPSERT, XATTR, b"t", b"1"), doc_flags=AS_DELETED | ADD).specific == S.SUBDOC_SUCCESS_DELETED
    )
    assert change_part(modern, UPSERT, b"t", b"2", XATTR, doc_flags=REVIVE).specific == S.KEY_ENOENT
    assert change_all(modern, (UPSERT, XATTR, b"t", b"2"), doc_flags=REVIVE).specific == S.EINVAL
    assert change_part(modern, UPSERT, b"t", b"2", XATTR, doc_flags=REVIVE | ACCESS).specific == S.SUCCESS
    again = change_part(modern, UPSERT, b"t", b"3", XATTR, doc_flags=REVIVE)
    assert again.specific == S.SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS


def test_cas_guards_a_staged_insert(modern):
    """Transactions of gocbcore insert, and then replace with CREATE_AS_DELETED|ACCESS_DELETED and a cas."""
    staged = change_all(modern, (UPSERT, XATTR, b"txn", b"1"), doc_flags=AS_DELETED | ADD | ACCESS)
    changed = change_all(modern, (UPSERT, XATTR, b"txn", b"2"), doc_flags=AS_DELETED | ACCESS, cas=staged.cas)
    assert changed.specific == S.SUBDOC_SUCCESS_DELETED
    assert look_up(modern, GET, b"txn", XATTR, doc_flags=ACCESS).value == b"2"
    again = change_all(modern, (UPSERT, XATTR, b"txn", b"3"), doc_flags=AS_DELETED | ACCESS, cas=staged.cas)
    assert again.specific == S.KEY_EEXISTS
    absent = change_all(modern, (UPSERT, XATTR, b"txn", b"3"), key=b"never", doc_flags=AS_DELETED | ACCESS)
    assert absent.specific == S.KEY_ENOENT
    single = change_part(modern, UPSERT, b"txn", b"3", XATTR, doc_flags=AS_DELETED | ACCESS, cas=changed.cas)
    assert single.specific == S.EINVAL


def test_deleted_document_has_no_body(modern):
    change_part(modern, UPSERT, b"t", b"1", XATTR, doc_flags=AS_DELETED | MKDOC)
    refused = change_part(modern, TO_BODY, b"t", flags=XATTR, doc_flags=ACCESS)
    assert refused.specific == S.SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE
    assert change_part(modern, UPSERT, b"a", b"1", doc_flags=AS_DELETED | MKDOC).specific == S.EINVAL
    with_body = change_all(modern, (UPSERT, 0, b"a", b"1"), key=b"new", doc_flags=AS_DELETED | MKDOC)
    assert with_body.specific == S.SUBDOC_MULTI_PATH_FAILURE
    assert unpack_mutation_results(with_body.value) == [MutationResult(0, S.SUBDOC_DOC_NOTJSON)]


def test_streams_send_the_attributes_of_tombstones(modern, node):
    modern.set(b"k", TEXT)
    deleted = change_all(modern, (UPSERT, XATTR, b"_s", b"1"), (Opcode.DELETE, 0, b""))
    with connected(node) as consumer:
        request_features(consumer, F.XATTR, F.JSON)
        consumer.open("c", OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES)
        assert consumer.control("enable_noop", "true") == S.SUCCESS
        assert consumer.stream(end=2).specific == S.SUCCESS
        (deletion,) = [each for each in consumer.changes() if isinstance(each, DeletionV2)]
    assert (deletion.cas, deletion.datatype) == (deleted.cas, D.XATTR)
    assert unpack_xattrs(deletion.value) == ({"_s": b"1"}, b"")


# Replicas


def test_lookup_reads_a_replica(modern):
    modern.set(b"k", TEXT)
    replica = {"doc_flags": DocFlag.REPLICA_READ}
    assert look_up(modern, GET, b"n", **replica).specific == S.NOT_MY_VBUCKET
    assert modern.status(SetVbucket(state=VbucketState.REPLICA)) == S.SUCCESS
    assert look_up(modern, GET, b"n", **replica).value == b"5"
    assert look_up_all(modern, (GET, 0, b"n"), **replica)[1] == [(S.SUCCESS, b"5")]
    assert look_up(modern, GET, b"n").specific == S.NOT_MY_VBUCKET
    assert change_part(modern, UPSERT, b"n", b"5").specific == S.NOT_MY_VBUCKET


# Random requests


OPCODES = [each for each in Opcode if each.name.startswith("SUBDOC")]
EXTRAS = st.sampled_from([b"", b"\0\1\0", b"\0\1\4", b"\0\1\0\1", b"\0\1\4\0\0\0\0\4", b"\1"]) | st.binary(max_size=9)
SPECS = st.tuples(
    st.integers(0, 255) | st.sampled_from([GET, UPSERT, Opcode.SET, Opcode.DELETE, TO_BODY]),
    st.integers(0, 63) | st.just(0),
    st.sampled_from([b"", b"a", b"_s.b", b"$document"]),
    st.sampled_from([b"", b"1", b"{}", b'"${Mutation.CAS}"']),
)
VALUES = (
    st.binary(max_size=60)
    | st.lists(SPECS, min_size=1, max_size=3).map(pack_mutation_specs)
    | st.lists(SPECS.map(lambda spec: spec[:3]), min_size=1, max_size=3).map(pack_lookup_specs)
)


@st.composite
def make_random_request(draw):
    opcode, extras, value = draw(st.sampled_from(OPCODES)), draw(EXTRAS), draw(VALUES)
    key, cas = draw(st.sampled_from([b"k", b"json", b"gone", b""])), draw(st.sampled_from([0, 1]))
    return Frame(Magic.REQUEST, opcode, extras=extras, key=key, value=value, cas=cas)


@settings(max_examples=scaled(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(make_random_request(), min_size=1, max_size=8))
def test_random_requests_are_answered(modern, requests):
    modern.set(b"json", b'{"a":[1]}')
    modern.set(b"k", b"text")
    modern.send(*requests, Noop())
    answered = [modern.receive() for _ in range(len(requests) + 1)]
    assert [frame.opcode for frame in answered] == [*(request.opcode for request in requests), Opcode.NOOP]
    assert all(Status(frame.specific) != S.EINTERNAL for frame in answered)
    assert modern.set(b"k", b"{}").specific == S.SUCCESS
