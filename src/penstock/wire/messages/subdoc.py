"""The sub-document commands: read and change parts of a JSON document, named by paths.

Source: kv_engine docs/SubDocument.md; memcached daemon/subdocument_validators.cc.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple, Self, TypeVar

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.frame import name_opcode
from penstock.wire.codec.frozen_fields import freeze_fields
from penstock.wire.codec.layout import ABSENT, MAYBE, PRESENT, Part, Request, Response, message, u8, u16, u32, u64
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status

MAX_PATHS: Final = 16
"""Paths of one command. Source: docs/SubDocument.md."""


class Needs(NamedTuple):
    """The parts that an operation needs.

    Attributes:
        path: whether it has a path.
        value: whether it has a value to store.
    """

    path: Part
    value: Part


_READS: dict[int, Needs] = {
    Opcode.SUBDOC_GET: Needs(PRESENT, ABSENT),
    Opcode.SUBDOC_EXISTS: Needs(PRESENT, ABSENT),
    Opcode.SUBDOC_GET_COUNT: Needs(MAYBE, ABSENT),
}
_WRITES: dict[int, Needs] = {
    Opcode.SUBDOC_DICT_ADD: Needs(PRESENT, PRESENT),
    Opcode.SUBDOC_DICT_UPSERT: Needs(PRESENT, PRESENT),
    Opcode.SUBDOC_DELETE: Needs(PRESENT, ABSENT),
    Opcode.SUBDOC_REPLACE: Needs(PRESENT, PRESENT),
    Opcode.SUBDOC_ARRAY_PUSH_LAST: Needs(MAYBE, PRESENT),
    Opcode.SUBDOC_ARRAY_PUSH_FIRST: Needs(MAYBE, PRESENT),
    Opcode.SUBDOC_ARRAY_INSERT: Needs(PRESENT, PRESENT),
    Opcode.SUBDOC_ARRAY_ADD_UNIQUE: Needs(MAYBE, PRESENT),
    Opcode.SUBDOC_COUNTER: Needs(PRESENT, PRESENT),
    Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR: Needs(PRESENT, ABSENT),
}

WITH_ONE_PATH: Final = (*map(Opcode, _READS), *map(Opcode, _WRITES))

LOOKUPS: Final[dict[int, Needs]] = {Opcode.GET: Needs(ABSENT, ABSENT), **_READS}
"""The operations of a MULTI_LOOKUP. GET: the whole document."""

MUTATIONS: Final[dict[int, Needs]] = {
    Opcode.SET: Needs(ABSENT, MAYBE),
    Opcode.ADD: Needs(ABSENT, MAYBE),
    Opcode.DELETE: Needs(ABSENT, ABSENT),
    **_WRITES,
}
"""The operations of a MULTI_MUTATION. SET, ADD, DELETE: the whole document."""


def find_unmet_need(needs: Needs, path: bytes, value: bytes) -> str | None:
    """Return which of path and value is missing, or is there although it must not be; None if neither is.

    Commands with one path call it too: their opcodes share a layout, which cannot state the needs of each.
    """
    for name, part, content in (("path", needs.path, path), ("value", needs.value, value)):
        if part is not MAYBE and bool(content) != (part is PRESENT):
            return f"{name} must be {part.value}, found {len(content)} bytes"
    return None


# Commands with one path


@freeze_fields
class _OnePath(Request):
    """A command with one path. The value begins with the path."""

    path_length: int = u16("bytes of the path, which the value begins with")
    flags: int = u8("a PathFlag", default=0)

    @classmethod
    def for_path(cls, path: bytes, content: bytes = b"", **given: Any) -> Self:
        """Return the command with this path and content."""
        return cls(path_length=len(path), value=path + content, **given)

    @property
    def path(self) -> bytes:
        """The path, as the client sent it."""
        return self.value[: self.path_length]

    @property
    def content(self) -> bytes:
        """The value after the path."""
        return self.value[self.path_length :]

    def fault(self) -> str | None:
        """Return the fault of a path that is longer than the value, None otherwise."""
        if self.path_length > len(self.value):
            return f"path of {self.path_length} bytes in {len(self.value)}"
        return None


@message(*map(Opcode, _READS), key=PRESENT, value=MAYBE, cas=MAYBE, extras=(3, 4))
class SubdocLookup(_OnePath):
    """Read the part of the document at a path, test whether it exists, or count its elements. The value is the path."""

    doc_flags: int | None = u8("a DocFlag", default=None)

    def fault(self) -> str | None:
        """Return the fault of a value that is more or less than the path, None otherwise."""
        if self.path_length != len(self.value):
            return f"path of {self.path_length} bytes in {len(self.value)}, expected nothing behind it"
        return None


@message(*map(Opcode, _WRITES), key=PRESENT, value=MAYBE, cas=MAYBE, extras=(3, 4, 7, 8))
class SubdocMutation(_OnePath):
    """Change the part of the document at a path; with a cas, only in that version of the document.

    The value is the path, then the new content, as JSON, or the number to add, as text.
    """

    expiry: int | None = u32("as of Set; missing: 0", default=None)
    doc_flags: int | None = u8("a DocFlag", default=None)


# Commands with several paths


@message(Opcode.SUBDOC_MULTI_LOOKUP, key=PRESENT, value=MAYBE, cas=MAYBE)
class MultiLookup(Request):
    """Up to 16 lookups in one document, in order.

    The value has for each the opcode u8, a PathFlag u8, the length of the path u16, and the path.
    """

    doc_flags: int | None = u8("a DocFlag", default=None)


@message(Opcode.SUBDOC_MULTI_MUTATION, key=PRESENT, value=MAYBE, cas=MAYBE, extras=(0, 1, 4, 5, 8, 9))
class MultiMutation(Request):
    """Up to 16 changes of one document, all or none.

    The value has for each the opcode u8, a PathFlag u8, the lengths of path u16 and value u32, path and value.
    Transactions of clients send extras of 8 or 9 bytes.
    """

    expiry: int | None = u32("as of Set; missing: 0", default=None)
    user_flags: int | None = u32("flags of the document, only beside an expiry; missing: unchanged", default=None)
    doc_flags: int | None = u8("a DocFlag", default=None)


@message(*map(Opcode, _READS), Opcode.SUBDOC_MULTI_LOOKUP, key=MAYBE, value=MAYBE, cas=MAYBE)
class LookupReply(Response):
    """The part at the path, as the value.

    Of MULTI_LOOKUP the value has for each lookup a status u16, a length u32, and the part.
    """


@message(*map(Opcode, _WRITES), Opcode.SUBDOC_MULTI_MUTATION, key=MAYBE, value=MAYBE, cas=MAYBE)
class MutationReply(Response):
    """The result of a change.

    Of SUBDOC_COUNTER the value is the new number, as text. Of MULTI_MUTATION it has, for each change with a result,
    the change's index u8, a status u16, a length u32, and the result. If a change failed, it has only that change's
    index and status.
    """

    vbuuid: int | None = u64("branch of the history, with MUTATION_SEQNO only", default=None)
    seqno: int | None = u64("by_seqno of this change, with MUTATION_SEQNO only", default=None)


# Values of commands with several paths. Every `unpack_` function reads bytes of a peer: it raises RemoteProtocolError,
# not fatal, for bytes that are not well formed.


class LookupSpec(NamedTuple):
    """One lookup.

    Attributes:
        opcode: one of LOOKUPS.
        flags: a PathFlag.
        path: the path in the document.
    """

    opcode: int
    flags: int
    path: bytes


class MutationSpec(NamedTuple):
    """One change.

    Attributes:
        opcode: one of MUTATIONS.
        flags: a PathFlag.
        path: the path in the document.
        value: the content to store.
    """

    opcode: int
    flags: int
    path: bytes
    value: bytes = b""


class LookupResult(NamedTuple):
    """The result of a lookup.

    Attributes:
        status: SUCCESS, or why the lookup failed.
        value: the part at the path; empty with a status other than SUCCESS.
    """

    status: int
    value: bytes = b""


class MutationResult(NamedTuple):
    """The result of a change.

    Attributes:
        operation: the index of the change, from 0.
        status: SUCCESS, or why the change failed.
        value: the result; empty with a status other than SUCCESS.
    """

    operation: int
    status: int
    value: bytes = b""


RESULTS: Final = frozenset(
    (
        *(Status.SUCCESS, Status.SUBDOC_MULTI_PATH_FAILURE),
        *(Status.SUBDOC_SUCCESS_DELETED, Status.SUBDOC_MULTI_PATH_FAILURE_DELETED),
    )
)
"""Statuses of replies to commands with several paths whose value has results."""

_LOOKUP = Struct(">BBH")
_MUTATION = Struct(">BBHI")
_FOUND = Struct(">HI")
_CHANGED = Struct(">BH")
_LENGTH = Struct(">I")


def pack_lookup_specs(specs: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return the value of a MULTI_LOOKUP, given the fields of LookupSpec."""
    return b"".join(_pack(_LOOKUP, opcode, flags, len(path)) + path for opcode, flags, path in specs)


def unpack_lookup_specs(value: bytes) -> list[LookupSpec]:
    """Return the lookups of a MULTI_LOOKUP.

    Raises:
        RemoteProtocolError: the value is not well formed; SUBDOC_INVALID_COMBO for no operations, too many, or one that
            is no lookup.
    """
    specs: list[LookupSpec] = []
    at = 0
    while at < len(value):
        opcode, flags, path_length = _unpack_at(_LOOKUP, value, at, "lookup")
        path_at = at + _LOOKUP.size
        at = path_at + path_length
        spec = LookupSpec(opcode, flags, value[path_at:at])
        _check_operation(len(specs), LOOKUPS, MutationSpec(*spec), at - len(value))
        specs.append(spec)
    return _require_operations(specs)


def pack_mutation_specs(specs: Iterable[tuple[int, int, bytes, bytes]]) -> bytes:
    """Return the value of a MULTI_MUTATION, given the fields of MutationSpec."""
    return b"".join(
        _pack(_MUTATION, opcode, flags, len(path), len(value)) + path + value for opcode, flags, path, value in specs
    )


def unpack_mutation_specs(value: bytes) -> list[MutationSpec]:
    """Return the changes of a MULTI_MUTATION.

    Raises:
        RemoteProtocolError: as unpack_lookup_specs, for an operation that is no change.
    """
    specs: list[MutationSpec] = []
    at = 0
    while at < len(value):
        opcode, flags, path_length, value_length = _unpack_at(_MUTATION, value, at, "change")
        path_at = at + _MUTATION.size
        value_at = path_at + path_length
        at = value_at + value_length
        spec = MutationSpec(opcode, flags, value[path_at:value_at], value[value_at:at])
        _check_operation(len(specs), MUTATIONS, spec, at - len(value))
        specs.append(spec)
    return _require_operations(specs)


def list_lookup_result_parts(results: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """Return the pieces of the value of a reply, given the fields of LookupResult for each lookup."""
    return [part for status, found in results for part in (_pack(_FOUND, status, len(found)), found)]


def pack_lookup_results(results: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the value of a reply, given the fields of LookupResult for each lookup."""
    return b"".join(list_lookup_result_parts(results))


def unpack_lookup_results(value: bytes) -> list[LookupResult]:
    """Return the results of the lookups, in their order.

    Raises:
        RemoteProtocolError: the value is not well formed.
    """
    results: list[LookupResult] = []
    at = 0
    while at < len(value):
        status, length = _unpack_at(_FOUND, value, at, "result")
        begin, at = at + _FOUND.size, at + _FOUND.size + length
        if at > len(value):
            raise _make_error(f"result {len(results)} of {length} bytes in {len(value) - begin}")
        results.append(LookupResult(status, value[begin:at]))
    return results


def pack_mutation_results(results: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return the value of a reply, given fields of MutationResult for changes with a value or the failed one."""
    return b"".join(
        _pack(_CHANGED, operation, status) + (b"" if status else _pack(_LENGTH, len(content)) + content)
        for operation, status, content in results
    )


def unpack_mutation_results(value: bytes) -> list[MutationResult]:
    """Return the results of changes, in the order of the bytes.

    Raises:
        RemoteProtocolError: the value is not well formed.
    """
    results: list[MutationResult] = []
    at = 0
    while at < len(value):
        operation, status = _unpack_at(_CHANGED, value, at, "result")
        at += _CHANGED.size
        content = b""
        if status == Status.SUCCESS:
            (length,) = _unpack_at(_LENGTH, value, at, "result")
            begin, at = at + _LENGTH.size, at + _LENGTH.size + length
            if at > len(value):
                raise _make_error(f"result {len(results)} of {length} bytes in {len(value) - begin}")
            content = value[begin:at]
        results.append(MutationResult(operation, status, content))
    return results


def _pack(form: Struct, *numbers: int) -> bytes:
    try:
        return form.pack(*numbers)
    except StructError as error:
        raise LocalProtocolError(f"sub-document value: {error}") from error


def _unpack_at(form: Struct, value: bytes, at: int, name: str) -> tuple[int, ...]:
    if at + form.size > len(value):
        raise _make_error(f"{name}: {len(value) - at} bytes at {at}, expected {form.size} or more")
    return form.unpack_from(value, at)


def _check_operation(number: int, known: dict[int, Needs], spec: MutationSpec, beyond: int) -> None:
    """Check an operation of a command with several paths.

    Args:
        number: its index.
        known: the operations that the command may have.
        spec: the operation.
        beyond: by how many bytes it is longer than the value.

    Raises:
        RemoteProtocolError: the operation is not valid in this command.
    """
    name = f"operation {number}, {name_opcode(spec.opcode)}"
    if beyond > 0:
        raise _make_error(f"{name}: {beyond} bytes longer than the value")
    if number == MAX_PATHS:
        raise _make_error(f"more than {MAX_PATHS} operations", Status.SUBDOC_INVALID_COMBO)
    if spec.opcode not in known:
        raise _make_error(f"{name}: not allowed in this command", Status.SUBDOC_INVALID_COMBO)
    if (wrong := find_unmet_need(known[spec.opcode], spec.path, spec.value)) is not None:
        raise _make_error(f"{name}: {wrong}")


S = TypeVar("S", LookupSpec, MutationSpec)


def _require_operations(specs: list[S]) -> list[S]:
    if not specs:
        raise _make_error(f"no operation, expected 1 to {MAX_PATHS}", Status.SUBDOC_INVALID_COMBO)
    return specs


def _make_error(fault: str, status: int = Status.EINVAL) -> RemoteProtocolError:
    return RemoteProtocolError(f"sub-document: {fault}", status=status, fatal=False)
