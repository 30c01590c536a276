"""Rules for the combination of operations, flags and paths in one command.

The decoder of the command has checked more: a lookup has only lookups, a change only changes. Each operation has the
path and the value that it needs.

Source: memcached daemon/subdocument_traits.h and subdocument_validators.cc, their statuses included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.errors import InvalidArguments, make_status_error
from penstock.store.subdoc.attributes import check_macro, is_virtual, parse_xattr_name
from penstock.store.subdoc.path import MAX_PATH
from penstock.wire.codec.flags import DocFlag, PathFlag
from penstock.wire.codec.frame import name_opcode
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.subdoc import LookupSpec, MutationSpec

# Plain numbers: the checks run for every operation, and an operator of a flag costs as much as ten of an int.
MKDIR_P, XATTR, BINARY = int(PathFlag.MKDIR_P), int(PathFlag.XATTR), int(PathFlag.BINARY)
EXPAND = int(PathFlag.EXPAND_MACROS)
MKDOC, ADD, REVIVE = int(DocFlag.MKDOC), int(DocFlag.ADD), int(DocFlag.REVIVE)
ACCESS, AS_DELETED = int(DocFlag.ACCESS_DELETED), int(DocFlag.CREATE_AS_DELETED)

_LOOKUP = ACCESS | int(DocFlag.REPLICA_READ)
_CHANGE = ACCESS | REVIVE
_CREATE = MKDOC | ADD | AS_DELETED | _CHANGE


class AllowedFlags(NamedTuple):
    """The flags that an operation may have.

    Attributes:
        flags: the PathFlag bits of the operation.
        doc_flags: the DocFlag bits of the command that contains the operation.
    """

    flags: int
    doc_flags: int


_ALLOWED: dict[int, AllowedFlags] = {
    Opcode.GET: AllowedFlags(0, _LOOKUP),
    Opcode.SUBDOC_GET: AllowedFlags(XATTR | BINARY, _LOOKUP),
    Opcode.SUBDOC_EXISTS: AllowedFlags(XATTR, _LOOKUP),
    Opcode.SUBDOC_GET_COUNT: AllowedFlags(XATTR, _LOOKUP),
    Opcode.SET: AllowedFlags(0, MKDOC | ADD),
    Opcode.ADD: AllowedFlags(0, MKDOC | ADD),
    Opcode.DELETE: AllowedFlags(0, _CHANGE),
    Opcode.SUBDOC_DICT_ADD: AllowedFlags(MKDIR_P | XATTR | EXPAND | BINARY, _CREATE),
    Opcode.SUBDOC_DICT_UPSERT: AllowedFlags(MKDIR_P | XATTR | EXPAND | BINARY, _CREATE),
    Opcode.SUBDOC_DELETE: AllowedFlags(XATTR, _CHANGE),
    Opcode.SUBDOC_REPLACE: AllowedFlags(XATTR | EXPAND | BINARY, _CHANGE | ADD),
    Opcode.SUBDOC_ARRAY_PUSH_LAST: AllowedFlags(MKDIR_P | XATTR | EXPAND | BINARY, _CREATE),
    Opcode.SUBDOC_ARRAY_PUSH_FIRST: AllowedFlags(MKDIR_P | XATTR | EXPAND | BINARY, _CREATE),
    Opcode.SUBDOC_ARRAY_INSERT: AllowedFlags(XATTR | EXPAND | BINARY, _CHANGE | ADD | AS_DELETED),
    Opcode.SUBDOC_ARRAY_ADD_UNIQUE: AllowedFlags(MKDIR_P | XATTR, _CREATE),
    Opcode.SUBDOC_COUNTER: AllowedFlags(MKDIR_P | XATTR, _CREATE),
    Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR: AllowedFlags(XATTR | BINARY, _CHANGE),
}


def check_lookups(specs: Sequence[LookupSpec], doc_flags: int, *, several_xattrs: bool = True) -> None:
    """Check the flags and paths of a lookup command.

    Args:
        specs: the command's lookups.
        doc_flags: the command's DocFlag bits.
        several_xattrs: whether one command may read more than one extended attribute.

    Raises:
        StatusError: the lookups cannot stand together in one command.
    """
    _check_paths([MutationSpec(*spec) for spec in specs], doc_flags, several_xattrs)


def check_changes(
    specs: Sequence[MutationSpec],
    doc_flags: int,
    *,
    cas: int = 0,
    single_path: bool = False,
    several_xattrs: bool = True,
) -> None:
    """Check the flags and paths of a mutation command.

    Args:
        specs: the command's operations.
        doc_flags: the command's DocFlag bits.
        cas: the request's cas.
        single_path: True for a single-path command, False for SUBDOC_MULTI_MUTATION.
        several_xattrs: whether one command may change more than one extended attribute.

    Raises:
        InvalidArguments: the flags or the paths are not allowed.
        StatusError: the operations cannot stand together in one command.
    """
    if doc_flags & ADD and cas:
        raise InvalidArguments(
            "a cas and the flag ADD, expected one of them: a document that does not exist has no cas"
        )
    if doc_flags & ADD and doc_flags & MKDOC:
        raise InvalidArguments("the flags ADD and MKDOC, expected one of them")
    if single_path and doc_flags & AS_DELETED:
        _check_created_as_deleted(specs, doc_flags)
    if not single_path and doc_flags & REVIVE:
        _check_revived(doc_flags)
    _check_paths(specs, doc_flags, several_xattrs)


def _check_revived(doc_flags: int) -> None:
    """Check REVIVE on SUBDOC_MULTI_MUTATION.

    A single-path command has neither rule: without ACCESS_DELETED it finds no deleted document to revive.
    Source: kv_engine subdocument_validators.cc.

    Raises:
        InvalidArguments: the flag without ACCESS_DELETED, or with CREATE_AS_DELETED.
    """
    if not doc_flags & ACCESS:
        raise InvalidArguments("the flag REVIVE without ACCESS_DELETED")
    if doc_flags & AS_DELETED:
        raise InvalidArguments("the flags REVIVE and CREATE_AS_DELETED, expected one of them")


def _check_created_as_deleted(specs: Sequence[MutationSpec], doc_flags: int) -> None:
    """Check CREATE_AS_DELETED on a single-path command.

    SUBDOC_MULTI_MUTATION has neither rule: gocbcore's transactions send it with CREATE_AS_DELETED|ACCESS_DELETED and a
    cas, to change a staged insert. Source: kv_engine subdocument_validators.cc.

    Raises:
        InvalidArguments: the flag without ADD and MKDOC, or with a path in the body.
    """
    if not doc_flags & (ADD | MKDOC):
        raise InvalidArguments("the flag CREATE_AS_DELETED without ADD or MKDOC")
    if any(not spec.flags & XATTR for spec in specs):
        raise InvalidArguments("the flag CREATE_AS_DELETED with a path in the body; expected an extended attribute")


def find_xattr_names(specs: Sequence[LookupSpec | MutationSpec]) -> set[str]:
    """Return the attributes that checked operations name, without virtual ones."""
    names = {parse_xattr_name(spec.path).name for spec in specs if spec.flags & XATTR}
    return {name for name in names if not is_virtual(name)}


def _check_paths(specs: Sequence[MutationSpec], doc_flags: int, several_xattrs: bool) -> None:
    in_body = 0
    for spec in specs:
        _check_operation(spec, doc_flags)
        if spec.flags & XATTR and in_body:
            raise make_status_error(
                Status.SUBDOC_INVALID_XATTR_ORDER,
                "an extended attribute after a path of the body, expected the attributes first",
            )
        in_body += not spec.flags & XATTR
    if in_body > 1 and any(spec.opcode == Opcode.DELETE for spec in specs):
        raise make_status_error(
            Status.SUBDOC_INVALID_COMBO, "DELETE together with other operations on the body, expected DELETE alone"
        )
    if not several_xattrs and len(find_xattr_names(specs)) > 1:
        raise make_status_error(
            Status.SUBDOC_XATTR_INVALID_KEY_COMBO, f"{len(find_xattr_names(specs))} extended attributes, expected one"
        )


def _check_operation(spec: MutationSpec, doc_flags: int) -> None:
    allowed = _ALLOWED[spec.opcode]
    for kind, flags, some in (("path", spec.flags, allowed.flags), ("document", doc_flags, allowed.doc_flags)):
        if excess := flags & ~some:
            name = name_opcode(spec.opcode)
            raise InvalidArguments(f"{name} with {kind} flags 0x{excess:02x}, allowed 0x{some:02x}")
    if len(spec.path) > MAX_PATH:
        raise InvalidArguments(f"{name_opcode(spec.opcode)} with a path of {len(spec.path)} bytes, limit {MAX_PATH}")
    if spec.opcode == Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR and not spec.flags & XATTR:
        raise InvalidArguments(f"{name_opcode(spec.opcode)} without the flag XATTR")
    if spec.flags & XATTR:
        _check_xattr(spec)
    elif spec.flags & (EXPAND | BINARY):
        raise make_status_error(
            Status.SUBDOC_XATTR_INVALID_FLAG_COMBO,
            f"path flags 0x{spec.flags:02x}: they are allowed for extended attributes only",
        )


def _check_xattr(spec: MutationSpec) -> None:
    if spec.flags & EXPAND and spec.flags & BINARY:
        raise make_status_error(
            Status.SUBDOC_XATTR_INVALID_FLAG_COMBO, "the flags EXPAND_MACROS and BINARY, expected one of them"
        )
    name = parse_xattr_name(spec.path).name
    if is_virtual(name) and spec.opcode not in _READ:
        raise make_status_error(
            Status.SUBDOC_XATTR_CANT_MODIFY_VATTR, f"{name} is a virtual attribute and cannot be changed"
        )
    if spec.flags & EXPAND:
        check_macro(spec.value)


_READ = {Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS, Opcode.SUBDOC_GET_COUNT}
