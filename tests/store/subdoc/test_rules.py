from typing import Any

import pytest

from penstock.errors import StatusError
from penstock.store.subdoc.rules import check_changes, check_lookups, find_xattr_names
from penstock.wire.codec.flags import DocFlag, PathFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.subdoc import LOOKUPS, MUTATIONS, LookupSpec, MutationSpec

GET, EXISTS, COUNT = Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS, Opcode.SUBDOC_GET_COUNT
UPSERT, DELETE = Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_DELETE
TO_BODY = Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR
XATTR, BINARY, MKDIR_P, EXPAND = PathFlag.XATTR, PathFlag.BINARY, PathFlag.MKDIR_P, PathFlag.EXPAND_MACROS
MKDOC, ADD, ACCESS = DocFlag.MKDOC, DocFlag.ADD, DocFlag.ACCESS_DELETED
AS_DELETED, REVIVE, REPLICA = DocFlag.CREATE_AS_DELETED, DocFlag.REVIVE, DocFlag.REPLICA_READ

CHECKED: list[tuple[list[Any], int]] = [
    ([(GET, 0, b"a")], 0),
    ([(GET, XATTR, b"_s.a"), (GET, XATTR, b"$document.CAS"), (COUNT, 0, b""), (Opcode.GET, 0, b"")], ACCESS),
    ([(GET, XATTR | BINARY, b"x" * 15)], REPLICA),
    ([(UPSERT, MKDIR_P, b"a", b"1")], MKDOC),
    ([(UPSERT, XATTR | EXPAND, b"a", b'"${Mutation.CAS}"'), (UPSERT, 0, b"a", b"1")], ADD),
    ([(UPSERT, XATTR | EXPAND, b"a", b'"${$document.what_ever}"')], 0),
    ([(UPSERT, XATTR, b"a", b"1")], MKDOC | AS_DELETED | ACCESS),
    ([(UPSERT, XATTR, b"a", b"1")], AS_DELETED | ACCESS),
    ([(UPSERT, XATTR, b"a", b"1"), (UPSERT, 0, b"a", b"1")], AS_DELETED | MKDOC),
    ([(UPSERT, XATTR, b"a", b"1"), (Opcode.DELETE, 0, b"")], ACCESS),
    ([(TO_BODY, XATTR, b"a"), (DELETE, XATTR, b"a")], ACCESS | REVIVE),
    ([(Opcode.SET, 0, b"", b"1")], MKDOC),
    ([(GET, XATTR, b"a.b.")], 0),  # the operation itself refuses this path
    ([(GET, XATTR, "größe.a".encode())], 0),
]


def check_specs(specs: list[Any], doc_flags: int, cas: int = 0, **options: bool) -> None:
    if specs[0][0] in LOOKUPS:
        check_lookups([LookupSpec(*spec) for spec in specs], doc_flags, **options)
    else:
        check_changes([MutationSpec(*spec) for spec in specs], doc_flags, cas=cas, **options)


@pytest.mark.parametrize(("specs", "doc_flags"), CHECKED)
def test_valid_combinations_are_accepted(specs: list[Any], doc_flags: int) -> None:
    check_specs(specs, doc_flags)


EINVAL, COMBO, ORDER = Status.EINVAL, Status.SUBDOC_INVALID_COMBO, Status.SUBDOC_INVALID_XATTR_ORDER
FLAGS, NAME, MACRO = Status.SUBDOC_XATTR_INVALID_FLAG_COMBO, Status.XATTR_EINVAL, Status.SUBDOC_XATTR_UNKNOWN_MACRO

REFUSED: list[tuple[list[Any], int, Status]] = [
    ([(GET, 0x02, b"a")], 0, EINVAL),
    ([(GET, MKDIR_P, b"a")], 0, EINVAL),
    ([(EXISTS, XATTR | BINARY, b"a")], 0, EINVAL),
    ([(Opcode.GET, XATTR, b"")], 0, EINVAL),
    ([(GET, 0, b"a")], MKDOC, EINVAL),
    ([(GET, 0, b"a")], 0x40, EINVAL),
    ([(GET, 0, b"a" * 1025)], 0, EINVAL),
    ([(GET, BINARY, b"a")], 0, FLAGS),
    ([(GET, 0, b"a"), (GET, XATTR, b"a")], 0, ORDER),
    ([(GET, XATTR, b"")], 0, NAME),
    ([(COUNT, XATTR, b"")], 0, NAME),
    ([(GET, XATTR, b"x" * 16)], 0, NAME),
    ([(GET, XATTR, b"x" * 16 + b".a")], 0, NAME),
    ([(GET, XATTR, b"_")], 0, NAME),
    ([(GET, XATTR, b"_.a")], 0, NAME),
    ([(GET, XATTR, b"$")], 0, NAME),
    ([(GET, XATTR, b".a")], 0, NAME),
    ([(GET, XATTR, b"[0]")], 0, NAME),
    ([(GET, XATTR, b"`a`")], 0, NAME),
    ([(GET, XATTR, b"a`.`b")], 0, NAME),
    ([(GET, XATTR, b"#a")], 0, NAME),
    ([(GET, XATTR, b"a\0")], 0, NAME),
    ([(GET, XATTR, b"a]")], 0, NAME),
    ([(GET, XATTR, b"\xff")], 0, NAME),
    ([(UPSERT, EXPAND, b"a", b'"${Mutation.CAS}"')], 0, FLAGS),
    ([(UPSERT, XATTR | EXPAND | BINARY, b"a", b'"${Mutation.CAS}"')], 0, FLAGS),
    ([(UPSERT, XATTR | EXPAND, b"a", b'"${Mutation.cas}"')], 0, MACRO),
    ([(UPSERT, XATTR | EXPAND, b"a", b"${Mutation.CAS}")], 0, MACRO),
    ([(UPSERT, XATTR | EXPAND, b"a", b'"${$other}"')], 0, MACRO),
    ([(UPSERT, XATTR, b"$document.a", b"1")], 0, Status.SUBDOC_XATTR_CANT_MODIFY_VATTR),
    ([(UPSERT, XATTR, b"$other", b"1")], 0, Status.SUBDOC_XATTR_CANT_MODIFY_VATTR),
    ([(UPSERT, 0, b"a", b"1")], ADD | MKDOC, EINVAL),
    ([(UPSERT, XATTR, b"a", b"1")], REVIVE, EINVAL),
    ([(UPSERT, XATTR, b"a", b"1")], REVIVE | ACCESS | MKDOC | AS_DELETED, EINVAL),
    ([(UPSERT, 0, b"a", b"1")], REPLICA, EINVAL),
    ([(DELETE, 0, b"a")], MKDOC, EINVAL),
    ([(DELETE, MKDIR_P, b"a")], 0, EINVAL),
    ([(TO_BODY, 0, b"a")], 0, EINVAL),
    ([(Opcode.SET, 0, b"", b"1")], ACCESS, EINVAL),
    ([(Opcode.DELETE, 0, b""), (UPSERT, 0, b"a", b"1")], 0, COMBO),
    ([(UPSERT, 0, b"a", b"1"), (Opcode.DELETE, 0, b"")], 0, COMBO),
    ([(Opcode.DELETE, 0, b""), (UPSERT, XATTR, b"a", b"1")], 0, ORDER),
]


@pytest.mark.parametrize(("specs", "doc_flags", "status"), REFUSED)
def test_invalid_combinations_are_refused(specs: list[Any], doc_flags: int, status: Status) -> None:
    with pytest.raises(StatusError) as caught:
        check_specs(specs, doc_flags)
    assert caught.value.status == status


@pytest.mark.parametrize(("flags", "doc_flags"), [(XATTR, AS_DELETED), (0, AS_DELETED | MKDOC), (0, AS_DELETED | ADD)])
def test_create_as_deleted_on_a_single_path_needs_an_attribute_and_mkdoc(flags: int, doc_flags: int) -> None:
    with pytest.raises(StatusError) as caught:
        check_specs([(UPSERT, flags, b"a", b"1")], doc_flags, single_path=True)
    assert caught.value.status == EINVAL
    check_specs([(UPSERT, XATTR, b"a", b"1")], AS_DELETED | MKDOC, single_path=True)


@pytest.mark.parametrize("doc_flags", [REVIVE, REVIVE | ACCESS | MKDOC | AS_DELETED])
def test_revive_is_not_checked_on_a_single_path(doc_flags: int) -> None:
    spec: list[Any] = [(UPSERT, XATTR, b"a", b"1")]
    check_specs(spec, doc_flags, single_path=True)
    with pytest.raises(StatusError) as caught:
        check_specs(spec, doc_flags)
    assert caught.value.status == EINVAL


def test_add_with_a_cas_is_refused() -> None:
    with pytest.raises(StatusError) as caught:
        check_specs([(UPSERT, 0, b"a", b"1")], ADD, cas=5)
    assert caught.value.status == EINVAL


def test_every_operation_has_its_flags() -> None:
    for opcode in LOOKUPS:
        check_specs([(opcode, 0, b"")], 0)
    for opcode in MUTATIONS:
        check_specs([(opcode, XATTR if opcode == TO_BODY else 0, b"a", b"")], 0)


def test_single_attribute_limit_is_enforced() -> None:
    same = [(GET, XATTR, b"a.x"), (GET, XATTR, b"a.y"), (GET, XATTR, b"$document")]
    check_specs(same, 0, several_xattrs=False)
    check_specs([*same, (GET, XATTR, b"b")], 0)
    with pytest.raises(StatusError) as caught:
        check_specs([*same, (GET, XATTR, b"b")], 0, several_xattrs=False)
    assert caught.value.status == Status.SUBDOC_XATTR_INVALID_KEY_COMBO
    assert find_xattr_names([LookupSpec(*spec) for spec in [*same, (GET, 0, b"c")]]) == {"a"}
