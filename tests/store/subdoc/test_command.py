"""Sub-document commands: several operations on one document and its attributes."""

import json
from contextlib import suppress
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import KeyExists, KeyNotFound, StatusError
from penstock.store.subdoc.attributes import CommandContext, EditedDocument
from penstock.store.subdoc.command import ChangedDocument, change_document, run_lookups, select_document
from penstock.store.subdoc.rules import check_changes, check_lookups
from penstock.store.subdoc.text import JsonText
from penstock.wire.codec.flags import Datatype, DocFlag, PathFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import unpack_xattrs
from penstock.wire.messages.subdoc import LOOKUPS, MUTATIONS, LookupSpec, MutationResult, MutationSpec

GET, EXISTS, COUNT = Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS, Opcode.SUBDOC_GET_COUNT
UPSERT, ADD, DELETE, REPLACE = (
    Opcode.SUBDOC_DICT_UPSERT,
    Opcode.SUBDOC_DICT_ADD,
    Opcode.SUBDOC_DELETE,
    Opcode.SUBDOC_REPLACE,
)
COUNTER, PUSH = Opcode.SUBDOC_COUNTER, Opcode.SUBDOC_ARRAY_PUSH_LAST
TO_BODY = Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR
XATTR, BINARY, P = PathFlag.XATTR, PathFlag.BINARY, PathFlag.MKDIR_P
MACROS = XATTR | PathFlag.EXPAND_MACROS
JSON = Datatype.JSON

AROUND = CommandContext(vbuuid=0xABC, now=1_700_000_000_123_456_789)
PLAIN = EditedDocument(
    b'{"a": 1}',
    {"_sys": b'{"x":[1]}', "user": b"5"},
    int(Datatype.JSON | Datatype.XATTR | Datatype.SNAPPY),
    cas=0x1122334455667788,
    seqno=9,
    rev_seqno=3,
    flags=0x02000006,
    expiry=1_800_000_000,
)
TOMBSTONE = EditedDocument(b"", {"_sys": b"1"}, int(Datatype.XATTR), deleted=True, cas=7)


def look_up(
    *specs: tuple[int, int, bytes], document: EditedDocument = PLAIN, around: CommandContext = AROUND
) -> list[Any]:
    return [(status, value) for status, value in run_lookups(document, [LookupSpec(*spec) for spec in specs], around)]


def apply_changes(*specs: tuple[Any, ...], document: EditedDocument = PLAIN, doc_flags: int = 0) -> ChangedDocument:
    result = change_document(document, [MutationSpec(*spec) for spec in specs], doc_flags, AROUND)
    assert isinstance(result, ChangedDocument), result
    return result


def find_failure(*specs: tuple[Any, ...], document: EditedDocument = PLAIN, doc_flags: int = 0) -> tuple[int, int]:
    result = change_document(document, [MutationSpec(*spec) for spec in specs], doc_flags, AROUND)
    assert isinstance(result, MutationResult), result
    assert not result.value
    return result.operation, result.status


# Selection of the document


def select(
    found: EditedDocument | None, doc_flags: int = 0, cas: int = 0, *, opcode: int = UPSERT, path: bytes = b"a"
) -> Any:
    return select_document(found, [MutationSpec(opcode, 0, path, b"1")], doc_flags, cas=cas)


def test_existing_document_is_selected_by_flags_and_cas() -> None:
    assert select(PLAIN) is PLAIN
    assert select(PLAIN, DocFlag.MKDOC) is PLAIN
    assert select(PLAIN, cas=PLAIN.cas) is PLAIN
    assert select(TOMBSTONE, DocFlag.ACCESS_DELETED) is TOMBSTONE
    assert select(TOMBSTONE, DocFlag.ACCESS_DELETED | DocFlag.REVIVE) is TOMBSTONE
    for found, flags, cas in [(None, 0, 0), (TOMBSTONE, 0, 0), (None, DocFlag.MKDOC, 5), (TOMBSTONE, DocFlag.MKDOC, 7)]:
        with pytest.raises(KeyNotFound):
            select(found, flags, cas)
    for found, flags, cas in [
        (PLAIN, DocFlag.ADD, 0),
        (TOMBSTONE, DocFlag.ADD | DocFlag.ACCESS_DELETED, 0),
        (TOMBSTONE, DocFlag.ADD | DocFlag.CREATE_AS_DELETED, 0),
        (PLAIN, 0, 1),
    ]:
        with pytest.raises(KeyExists):
            select(found, flags, cas)
    with pytest.raises(StatusError) as caught:
        select(PLAIN, DocFlag.ACCESS_DELETED | DocFlag.REVIVE)
    assert caught.value.status == Status.SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS


@pytest.mark.parametrize("flags", [DocFlag.MKDOC, DocFlag.ADD])
@pytest.mark.parametrize("found", [None, TOMBSTONE])
def test_new_document_is_made_for_the_path(found: EditedDocument | None, flags: DocFlag) -> None:
    assert select(found, flags) == EditedDocument(b"{}", datatype=JSON)
    assert select(found, flags, opcode=PUSH, path=b"") == EditedDocument(b"[]", datatype=JSON)
    assert select(found, flags, opcode=PUSH, path=b"[0]") == EditedDocument(b"[]", datatype=JSON)
    assert select(found, flags, opcode=PUSH, path=b"a[0]") == EditedDocument(b"{}", datatype=JSON)
    assert select(found, flags, opcode=Opcode.SET, path=b"") == EditedDocument()
    if found is None or flags == DocFlag.MKDOC:
        assert select(found, flags | DocFlag.CREATE_AS_DELETED) == EditedDocument(deleted=True)


# Lookups


def test_failed_lookup_does_not_stop_the_others() -> None:
    assert look_up((GET, 0, b"a"), (EXISTS, 0, b"b"), (EXISTS, 0, b"a"), (COUNT, 0, b""), (Opcode.GET, 0, b"")) == [
        *((Status.SUCCESS, b"1"), (Status.SUBDOC_PATH_ENOENT, b""), (Status.SUCCESS, b"")),
        *((Status.SUCCESS, b"1"), (Status.SUCCESS, b'{"a": 1}')),
    ]


def test_lookups_read_attributes() -> None:
    assert look_up((GET, XATTR, b"_sys.x[0]"), (GET, XATTR, b"user"), (COUNT, XATTR, b"_sys"), (GET, XATTR, b"no")) == [
        *((Status.SUCCESS, b"1"), (Status.SUCCESS, b"5"), (Status.SUCCESS, b"1"), (Status.SUBDOC_PATH_ENOENT, b"")),
    ]
    assert look_up((GET, XATTR, b"user.x"), (GET, XATTR, b"user[0]")) == [(Status.SUBDOC_PATH_MISMATCH, b"")] * 2
    assert look_up((GET, XATTR, b"user.")) == [(Status.SUBDOC_PATH_EINVAL, b"")]


@pytest.mark.parametrize("body", [b"", b"plain", b"{", b"[NaN]"])
def test_lookups_in_a_body_without_json_fail(body: bytes) -> None:
    document = EditedDocument(body, {"x": b"{"})
    assert look_up((GET, 0, b"a"), (GET, XATTR, b"x"), document=document) == [(Status.SUBDOC_DOC_NOTJSON, b"")] * 2
    whole = (Status.SUCCESS, body) if body else (Status.SUBDOC_PATH_ENOENT, b"")
    assert look_up((Opcode.GET, 0, b""), document=document) == [whole]


def test_virtual_attributes_describe_the_document() -> None:
    ((status, text),) = look_up((GET, XATTR, b"$document"))
    assert status == Status.SUCCESS
    assert json.loads(text) == {
        "CAS": "0x1122334455667788",
        "datatype": ["snappy", "json", "xattr"],
        "deleted": False,
        "exptime": 1_800_000_000,
        "flags": 0x02000006,
        "last_modified": "1234605616",
        "revid": "3",
        "seqno": "0x0000000000000009",
        "value_bytes": 8,
        "value_crc32c": f"0x{crc32c(PLAIN.body):08x}",
        "vbucket_uuid": "0x0000000000000abc",
    }
    assert look_up(
        *((GET, XATTR, b"$document.exptime"), (GET, XATTR, b"$document.datatype[-1]"), (GET, XATTR, b"$vbucket.HLC")),
        *(
            (GET, XATTR, b"$XTOC"),
            (COUNT, XATTR, b"$XTOC"),
            (EXISTS, XATTR, b"$document.no"),
            (GET, XATTR, b"$other.x"),
        ),
    ) == [
        *((Status.SUCCESS, b"1800000000"), (Status.SUCCESS, b'"xattr"')),
        (Status.SUCCESS, b'{"mode":"real","now":"1700000000"}'),
        *((Status.SUCCESS, b'["_sys","user"]'), (Status.SUCCESS, b"2"), (Status.SUBDOC_PATH_ENOENT, b"")),
        (Status.SUBDOC_XATTR_UNKNOWN_VATTR, b""),
    ]
    assert look_up((GET, XATTR, b"$XTOC"), around=CommandContext(system_xattrs=False)) == [
        (Status.SUCCESS, b'["user"]')
    ]
    assert look_up((GET, XATTR, b"$document.datatype"), document=EditedDocument(b"x")) == [(Status.SUCCESS, b'["raw"]')]
    assert look_up((GET, XATTR, b"$document.deleted"), document=TOMBSTONE) == [(Status.SUCCESS, b"true")]


DENIED, HIDDEN = (Status.EACCESS, b""), CommandContext(system_xattrs=False)


def test_lookups_of_system_attributes_need_access() -> None:
    body = (GET, 0, b"a")
    assert look_up((GET, XATTR, b"user"), body, around=HIDDEN) == [(Status.SUCCESS, b"5"), (Status.SUCCESS, b"1")]
    for path in (b"_sys", b"_sys.x[0]", b"_no"):
        rows = ((GET, XATTR, b"user"), (EXISTS, XATTR, path), (GET, XATTR, b"$document"), body)
        assert look_up(*rows, around=HIDDEN) == [DENIED, DENIED, DENIED, (Status.SUCCESS, b"1")]


def test_changes_of_system_attributes_need_access() -> None:
    specs = [MutationSpec(UPSERT, XATTR, b"user", b"6"), MutationSpec(UPSERT, XATTR, b"_sys.y", b"2")]
    assert change_document(PLAIN, specs, 0, HIDDEN) == MutationResult(0, Status.EACCESS)
    assert isinstance(change_document(PLAIN, specs[:1], 0, HIDDEN), ChangedDocument)
    assert change_document(PLAIN, [MutationSpec(TO_BODY, XATTR, b"_sys", b"")], 0, HIDDEN) == MutationResult(
        0, Status.EACCESS
    )


# Changes


def test_each_change_sees_the_changes_before_it() -> None:
    after = apply_changes(
        *((UPSERT, XATTR, b"user", b"6"), (ADD, XATTR | P, b"new.a.b", b"[ ]"), (UPSERT, XATTR, b"_sys.y", b"2")),
        *((UPSERT, 0, b"b", b"[]"), (PUSH, 0, b"b", b"1,2"), (COUNTER, 0, b"b[1]", b"5"), (COUNTER, 0, b"a", b"1")),
    )
    assert after.body == b'{"a": 2,"b":[1,7]}'
    assert after.xattrs == {"_sys": b'{"x":[1],"y":2}', "user": b"6", "new": b'{"a":{"b":[ ]}}'}
    assert after.results == [MutationResult(5, Status.SUCCESS, b"7"), MutationResult(6, Status.SUCCESS, b"2")]
    assert after.datatype == Datatype.JSON | Datatype.XATTR
    assert unpack_xattrs(after.pack_front() + after.body) == (after.xattrs, after.body)
    assert not after.deleted
    assert PLAIN.xattrs == {"_sys": b'{"x":[1]}', "user": b"5"}


def test_first_failed_change_is_reported() -> None:
    assert find_failure((UPSERT, 0, b"x", b"1"), (REPLACE, 0, b"y", b"1"), (DELETE, 0, b"z")) == (
        1,
        Status.SUBDOC_PATH_ENOENT,
    )
    assert find_failure((UPSERT, XATTR, b"user.x", b"1")) == (0, Status.SUBDOC_PATH_MISMATCH)
    assert find_failure((UPSERT, 0, b"x", b"1"), document=EditedDocument(b"plain")) == (0, Status.SUBDOC_DOC_NOTJSON)
    assert find_failure((Opcode.ADD, 0, b"", b"1")) == (0, Status.SUBDOC_PATH_EEXISTS)


def test_an_attribute_is_removed() -> None:
    after = apply_changes((DELETE, XATTR, b"user"), (DELETE, XATTR, b"_sys"))
    assert (after.xattrs, after.datatype, after.pack_front() + after.body) == ({}, JSON, b'{"a": 1}')


def test_names_of_attributes_may_have_escapes() -> None:
    after = apply_changes((UPSERT, XATTR, b'q\\"', b"1"), (UPSERT, XATTR | P, "ä.b".encode(), b"2"))
    assert after.xattrs['q"'] == b"1"
    assert after.xattrs["ä"] == b'{"b":2}'
    again = EditedDocument(b"{}", after.xattrs)
    assert look_up((GET, XATTR, b'q\\"'), (GET, XATTR, "ä.b".encode()), document=again) == [
        (Status.SUCCESS, b"1"),
        (Status.SUCCESS, b"2"),
    ]


def test_whole_body_is_replaced() -> None:
    assert apply_changes((Opcode.SET, 0, b"", b" {}")).datatype == Datatype.JSON | Datatype.XATTR
    after = apply_changes((Opcode.SET, 0, b"", b"no json"), document=EditedDocument())
    assert (after.body, after.datatype, after.pack_front() + after.body) == (b"no json", 0, b"no json")
    assert apply_changes((Opcode.ADD, 0, b"", b"1"), document=EditedDocument()).body == b"1"


def test_a_document_is_deleted() -> None:
    after = apply_changes((UPSERT, XATTR, b"_sys", b"2"), (UPSERT, XATTR, b"own", b"2"), (Opcode.DELETE, 0, b""))
    assert (after.body, after.xattrs, after.datatype, after.deleted) == (b"", {"_sys": b"2"}, Datatype.XATTR, True)
    after = apply_changes((Opcode.DELETE, 0, b""), document=EditedDocument(b"x", {"user": b"1"}))
    assert (after.pack_front() + after.body, after.datatype, after.deleted) == (b"", 0, True)


def test_deleted_document_stays_deleted_unless_it_is_revived() -> None:
    after = apply_changes((UPSERT, XATTR, b"_sys", b"2"), document=TOMBSTONE, doc_flags=DocFlag.ACCESS_DELETED)
    assert (after.xattrs, after.deleted, after.datatype) == ({"_sys": b"2"}, True, Datatype.XATTR)
    revive = DocFlag.ACCESS_DELETED | DocFlag.REVIVE
    after = apply_changes((TO_BODY, XATTR, b"_sys"), document=TOMBSTONE, doc_flags=revive)
    assert (after.body, after.deleted, after.datatype) == (b"1", False, Datatype.JSON | Datatype.XATTR)
    with pytest.raises(StatusError) as caught:
        apply_changes((TO_BODY, XATTR, b"_sys"), document=TOMBSTONE, doc_flags=DocFlag.ACCESS_DELETED)
    assert caught.value.status == Status.SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE


def test_missing_objects_are_made_in_documents_that_may_be_new() -> None:
    for flags in (DocFlag.MKDOC, DocFlag.ADD):
        assert (
            apply_changes((UPSERT, 0, b"x.y", b"1"), document=EditedDocument(b"{}"), doc_flags=flags).body
            == b'{"x":{"y":1}}'
        )
    assert find_failure((UPSERT, 0, b"x.y", b"1")) == (0, Status.SUBDOC_PATH_ENOENT)


# Macros


def test_mutation_macros_show_the_new_version() -> None:
    after = apply_changes(
        *((UPSERT, MACROS, b"_s", b'"${Mutation.CAS}"'), (UPSERT, MACROS | P, b"t.seqno", b'"${Mutation.seqno}"')),
        *((UPSERT, MACROS, b"t.crc", b'"${Mutation.value_crc32c}"'), (UPSERT, MACROS, b"t.c", b'"${Mutation.CAS}"')),
        *((UPSERT, XATTR, b"t.as_is", b'"${Mutation.CAS}"'), (UPSERT, 0, b"a", b"2")),
    )
    assert len(after.pack_front() + after.body) == len(after.pack_front(2**64 - 1, 2**63) + after.body)
    xattrs, body = unpack_xattrs(after.pack_front(0x0102030405060708, 0x2A) + after.body)
    assert body == b'{"a": 2}'
    assert xattrs["_s"] == b'"0x0807060504030201"'
    assert json.loads(xattrs["t"]) == {
        "seqno": "0x000000000000002a",
        "crc": f"0x{crc32c(body):08x}",
        "c": "0x0807060504030201",
        "as_is": "${Mutation.CAS}",
    }


def test_document_macros_show_the_old_document() -> None:
    after = apply_changes(
        (UPSERT, 0, b"a", b"2"),
        *((UPSERT, MACROS, name, b'"${$document.%s}"' % field) for name, field in ((b"x", b"CAS"), (b"y", b"exptime"))),
        *((UPSERT, MACROS, b"z", b'"${$document}"'), (UPSERT, MACROS, b"d", b'"${$document.datatype}"')),
    )
    assert after.xattrs["x"] == b'"0x1122334455667788"'
    assert after.xattrs["y"] == b"1800000000"
    assert json.loads(after.xattrs["z"])["seqno"] == "0x0000000000000009"
    assert after.xattrs["d"] == b'["snappy","json","xattr"]'
    assert find_failure((UPSERT, MACROS, b"x", b'"${$document.no}"')) == (0, Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO)


@given(st.binary(max_size=200))
def test_stand_in_of_a_cas_is_unique(junk: bytes) -> None:
    before = EditedDocument(b"{}", {"junk": json.dumps(junk.hex()).encode()})
    specs = [(UPSERT, MACROS, b"a", b'"${Mutation.CAS}"'), (UPSERT, MACROS, b"b", b'"${Mutation.value_crc32c}"')]
    for _ in range(2):  # the stand-ins of the first time are part of the document the second time
        after = apply_changes(*specs, document=before)
        xattrs = unpack_xattrs(after.pack_front(1, 1) + after.body).xattrs
        assert xattrs == {**before.xattrs, "a": b'"0x0100000000000000"', "b": b'"0x%08x"' % crc32c(b"{}")}
        before = EditedDocument(b"{}", {"junk": b"[" + b",".join(after.macros) + b"]"})


# Values that are not JSON


def test_attributes_can_hold_bytes() -> None:
    after = apply_changes((UPSERT, XATTR | BINARY, b"bin", b"\xff\x00"), (UPSERT, XATTR | BINARY | P, b"t.b", b""))
    assert after.xattrs["bin"] == b'"cb-content-base64-encoded:/wA="'
    document = EditedDocument(b"{}", {**after.xattrs, "bad": b'"cb-content-base64-encoded:!"'})
    no = (Status.SUBDOC_NOT_BINARY, b"")
    assert look_up(
        *((GET, XATTR | BINARY, b"bin"), (GET, XATTR | BINARY, b"t.b"), (GET, XATTR, b"bin")),
        *((GET, XATTR | BINARY, b"t"), (GET, XATTR | BINARY, b"bad"), (GET, XATTR | BINARY, b"no")),
        document=document,
    ) == [
        *((Status.SUCCESS, b"\xff\x00"), (Status.SUCCESS, b""), (Status.SUCCESS, after.xattrs["bin"])),
        *(no, no, (Status.SUBDOC_PATH_ENOENT, b"")),
    ]
    body = apply_changes((TO_BODY, XATTR | BINARY, b"bin"), document=document)
    assert (body.body, body.datatype) == (b"\xff\x00", Datatype.XATTR)


# Random commands

PATHS = st.sampled_from(
    [b"", b"a", b"a.b", b"a[0]", b"_sys", b"_sys.x[-1]", b"user", b"$document.CAS", b"$XTOC", b"a."]
)
ANY_PATHS = PATHS | st.binary(max_size=6)
VALUES = st.sampled_from([b"", b"1", b"{}", b"[1,{}]", b'"s"', b"x", b'"${Mutation.CAS}"', b'"${$document.seqno}"'])
FLAGS = st.sampled_from([0, XATTR, XATTR | P, P, MACROS, XATTR | BINARY]) | st.integers(0, 255)
DOC_FLAGS = st.sampled_from([0, DocFlag.MKDOC, DocFlag.ADD, DocFlag.ACCESS_DELETED]) | st.integers(0, 255)
CHANGES = st.builds(MutationSpec, st.sampled_from(sorted(MUTATIONS)), FLAGS, ANY_PATHS, VALUES)
LOOKUP_SPECS = st.builds(LookupSpec, st.sampled_from(sorted(LOOKUPS)), FLAGS, ANY_PATHS)
FOUND = st.sampled_from([None, PLAIN, TOMBSTONE, EditedDocument(b"[1]"), EditedDocument(b"junk", {"a": b"junk"})])


@given(FOUND, st.lists(CHANGES, min_size=1, max_size=4), DOC_FLAGS)
def test_any_changes_are_made_or_refused(
    found: EditedDocument | None, specs: list[MutationSpec], doc_flags: int
) -> None:
    with suppress(StatusError):
        check_changes(specs, doc_flags)
        after = change_document(select_document(found, specs, doc_flags), specs, doc_flags, AROUND)
        if isinstance(after, MutationResult):
            assert specs[after.operation]
            assert after.status in set(Status)
        else:
            value = after.pack_front(5, 6) + after.body
            xattrs, body = unpack_xattrs(value) if after.datatype & Datatype.XATTR else ({}, value)
            assert (list(xattrs), body) == (list(after.xattrs), after.body)
            assert not (after.deleted and body)
            assert not after.datatype & JSON or JsonText(body).read() == body


@given(FOUND, st.lists(LOOKUP_SPECS, min_size=1, max_size=4), DOC_FLAGS)
def test_any_lookups_are_answered_or_refused(
    found: EditedDocument | None, specs: list[LookupSpec], doc_flags: int
) -> None:
    with suppress(StatusError):
        check_lookups(specs, doc_flags)
        results = run_lookups(select_document(found, specs, doc_flags), specs, AROUND)
        assert len(results) == len(specs)
        assert all(result.status == Status.SUCCESS or not result.value for result in results)


# The changes of one command are located in one pass over the old document; the result equals that of separate changes.

KEYED = EditedDocument(b'{"a":{"b":1,"c":{}},"d":[1,[],{"e":2}],"n":5 , "o" : { } }', datatype=int(JSON))
STEPS = st.sampled_from([b"a", b"b", b"c", b"d", b"n", b"o", b"new", b"\\/", b"/"])
INDEXES = st.sampled_from([b"", b"", b"[0]", b"[-1]", b"[2]", b"[3]"])
DEEP_PATHS = st.lists(st.builds(bytes.__add__, STEPS, INDEXES), min_size=1, max_size=3).map(b".".join)
ARRAY_PATHS = st.sampled_from([b"d", b"d[1]", b"d[-1]", b"d[3]", b"n", b"new"])
KEY_PATHS = st.lists(STEPS, min_size=1, max_size=2).map(b".".join)
SIMPLE = st.sampled_from([UPSERT, ADD, REPLACE, COUNTER])
ANY_EDIT = st.sampled_from(sorted(MUTATIONS.keys() - {Opcode.SET, Opcode.ADD, Opcode.DELETE, TO_BODY}))
NEW = st.sampled_from([b"7", b'{"b":3}', b'{"c":{"a":[]}}', b"[]", b' "s" ', b"-2"])


@given(
    st.lists(
        st.builds(MutationSpec, SIMPLE, st.sampled_from([0, P]), KEY_PATHS, NEW)
        | st.builds(MutationSpec, st.just(Opcode.SUBDOC_ARRAY_PUSH_LAST), st.just(0), ARRAY_PATHS, NEW)
        | st.builds(MutationSpec, ANY_EDIT, st.sampled_from([0, P]), DEEP_PATHS, NEW),
        min_size=2,
        max_size=8,
    )
)
def test_changes_of_one_command_equal_separate_changes(specs: list[MutationSpec]) -> None:
    document, answers = KEYED, list[MutationResult]()
    made: list[MutationSpec] = []
    for spec in specs:
        spec = spec._replace(value=b"" if spec.opcode == DELETE else spec.value)
        alone = change_document(document, [spec], 0, AROUND)
        if isinstance(alone, MutationResult):
            failing = change_document(KEYED, [*made, spec], 0, AROUND)
            assert failing == MutationResult(len(made), alone.status)
            continue
        document = document._replace(body=alone.body)
        answers += [result._replace(operation=len(made)) for result in alone.results]
        made.append(spec)
    if made:
        together = change_document(KEYED, made, 0, AROUND)
        assert isinstance(together, ChangedDocument)
        assert (together.body, together.results) == (document.body, answers)
