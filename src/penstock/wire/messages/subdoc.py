"""The sub-document commands: read and change parts of a JSON document, named by paths.

Source: kv_engine docs/SubDocument.md; memcached daemon/subdocument_validators.cc.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple, Self, TypeVar

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.frame import opcode_name
from penstock.wire.codec.layout import ABSENT, MAYBE, PRESENT, Part, Request, Response, message, u8, u16, u32, u64
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status

__all__ = [
    "LOOKUPS",
    "MAX_PATHS",
    "MUTATIONS",
    "RESULTS",
    "WITH_ONE_PATH",
    "LookupReply",
    "LookupResult",
    "LookupSpec",
    "MultiLookup",
    "MultiMutation",
    "MutationReply",
    "MutationResult",
    "MutationSpec",
    "Needs",
    "SubdocLookup",
    "SubdocMutation",
    "pack_lookup_results",
    "pack_lookup_specs",
    "pack_mutation_results",
    "pack_mutation_specs",
    "unmet",
    "unpack_lookup_results",
    "unpack_lookup_specs",
    "unpack_mutation_results",
    "unpack_mutation_specs",
]

MAX_PATHS: Final = 16
"""Of one command. Source: docs/SubDocument.md."""


class Needs(NamedTuple):
    """What an operation has: a path, and something to put there."""

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
"""What may stand in a MULTI_LOOKUP. GET: the whole document."""

MUTATIONS: Final[dict[int, Needs]] = {
    Opcode.SET: Needs(ABSENT, MAYBE),
    Opcode.ADD: Needs(ABSENT, MAYBE),
    Opcode.DELETE: Needs(ABSENT, ABSENT),
    **_WRITES,
}
"""What may stand in a MULTI_MUTATION. SET, ADD, DELETE: the whole document."""


def unmet(needs: Needs, path: bytes, value: bytes) -> str | None:
    """Return what of path and value is there but must not be, or the reverse; None if all is well.

    For commands with one path too: their layouts, which several opcodes share, do not say it.
    """
    for name, part, content in (("path", needs.path, path), ("value", needs.value, value)):
        if part is not MAYBE and bool(content) != (part is PRESENT):
            return f"{name} must be {part.value}, found {len(content)} bytes"
    return None


# Commands with one path


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnePath(Request):
    """What stands in front of the value, behind the key, is the path."""

    path_length: int = u16("bytes of the path, which stands in front of the value")
    flags: int = u8("a PathFlag", default=0)

    @classmethod
    def at(cls, path: bytes, content: bytes = b"", **said: Any) -> Self:
        """Return the command with this path and what is to be put there."""
        return cls(path_length=len(path), value=path + content, **said)

    @property
    def path(self) -> bytes:
        return self.value[: self.path_length]

    @property
    def content(self) -> bytes:
        """What stands behind the path."""
        return self.value[self.path_length :]

    def fault(self) -> str | None:
        if self.path_length > len(self.value):
            return f"path of {self.path_length} bytes in {len(self.value)}"
        return None


@message(*map(Opcode, _READS), key=PRESENT, value=MAYBE, cas=MAYBE, extras=(3, 4))
class SubdocLookup(_OnePath):
    """Read what a path leads to; whether there is something; how many elements it has. value: the path."""

    doc_flags: int | None = u8("a DocFlag", default=None)

    def fault(self) -> str | None:
        if self.path_length != len(self.value):
            return f"path of {self.path_length} bytes in {len(self.value)}, expected nothing behind it"
        return None


@message(*map(Opcode, _WRITES), key=PRESENT, value=MAYBE, cas=MAYBE, extras=(3, 4, 7, 8))
class SubdocMutation(_OnePath):
    """Change what a path leads to; with a cas, only in that version of the document. value: the path, then what is to
    be put there, as JSON, or the number to count by, as text."""

    expiry: int | None = u32("as of Set; missing: 0", default=None)
    doc_flags: int | None = u8("a DocFlag", default=None)


# Commands with several paths


@message(Opcode.SUBDOC_MULTI_LOOKUP, key=PRESENT, value=PRESENT, cas=MAYBE)
class MultiLookup(Request):
    """Up to 16 lookups in one document, in order. value: of each the opcode u8, a PathFlag u8, the length of the path
    u16, and the path."""

    doc_flags: int | None = u8("a DocFlag", default=None)


@message(Opcode.SUBDOC_MULTI_MUTATION, key=PRESENT, value=PRESENT, cas=MAYBE, extras=(0, 1, 4, 5, 8, 9))
class MultiMutation(Request):
    """Up to 16 changes of one document, all or none. value: of each the opcode u8, a PathFlag u8, the lengths of path
    u16 and value u32, path and value. Extras of 8 or 9 bytes are what clients' transactions send."""

    expiry: int | None = u32("as of Set; missing: 0", default=None)
    user_flags: int | None = u32("flags of the document, with an expiry only; missing: as they are", default=None)
    doc_flags: int | None = u8("a DocFlag", default=None)


@message(*map(Opcode, _READS), Opcode.SUBDOC_MULTI_LOOKUP, key=MAYBE, value=MAYBE, cas=MAYBE)
class LookupReply(Response):
    """value: what the path leads to; of MULTI_LOOKUP of each lookup a status u16, a length u32, and what was found."""


@message(*map(Opcode, _WRITES), Opcode.SUBDOC_MULTI_MUTATION, key=MAYBE, value=MAYBE, cas=MAYBE)
class MutationReply(Response):
    """value: of SUBDOC_COUNTER the number as it is now, as text; of MULTI_MUTATION of each change that has something to
    say its index u8, a status u16, a length u32, and that; or of the one that failed its index and status."""

    vbuuid: int | None = u64("branch of the history, with MUTATION_SEQNO only", default=None)
    seqno: int | None = u64("by_seqno of this change, with MUTATION_SEQNO only", default=None)


# What stands in the values of commands with several paths. Every `unpack_` takes what a peer sent: it raises
# RemoteProtocolError, not fatal, for what is not well formed.


class LookupSpec(NamedTuple):
    """One lookup. opcode: one of LOOKUPS. flags: a PathFlag."""

    opcode: int
    flags: int
    path: bytes


class MutationSpec(NamedTuple):
    """One change. opcode: one of MUTATIONS. flags: a PathFlag."""

    opcode: int
    flags: int
    path: bytes
    value: bytes = b""


class LookupResult(NamedTuple):
    """What a lookup found; with a status other than SUCCESS nothing."""

    status: int
    value: bytes = b""


class MutationResult(NamedTuple):
    """What a change has to say. operation: which one, counted from 0. value: with SUCCESS only."""

    operation: int
    status: int
    value: bytes = b""


RESULTS: Final = frozenset(
    (
        *(Status.SUCCESS, Status.SUBDOC_MULTI_PATH_FAILURE),
        *(Status.SUBDOC_SUCCESS_DELETED, Status.SUBDOC_MULTI_PATH_FAILURE_DELETED),
    )
)
"""Statuses of replies to commands with several paths whose value is made of results."""

_LOOKUP = Struct(">BBH")
_MUTATION = Struct(">BBHI")
_FOUND = Struct(">HI")
_CHANGED = Struct(">BH")
_LENGTH = Struct(">I")


def pack_lookup_specs(specs: Iterable[tuple[int, int, bytes]]) -> bytes:
    """specs: as LookupSpec."""
    return b"".join(_pack(_LOOKUP, opcode, flags, len(path)) + path for opcode, flags, path in specs)


def unpack_lookup_specs(value: bytes) -> list[LookupSpec]:
    """Return the lookups of a MULTI_LOOKUP. Raises with status SUBDOC_INVALID_COMBO for none or too many of them, or
    for an operation that is no lookup."""
    specs: list[LookupSpec] = []
    at = 0
    while at < len(value):
        opcode, flags, path_length = _read(_LOOKUP, value, at, "lookup")
        path_at = at + _LOOKUP.size
        at = path_at + path_length
        spec = LookupSpec(opcode, flags, value[path_at:at])
        _check(len(specs), LOOKUPS, MutationSpec(*spec), at - len(value))
        specs.append(spec)
    return _some(specs)


def pack_mutation_specs(specs: Iterable[tuple[int, int, bytes, bytes]]) -> bytes:
    """specs: as MutationSpec."""
    return b"".join(
        _pack(_MUTATION, opcode, flags, len(path), len(value)) + path + value for opcode, flags, path, value in specs
    )


def unpack_mutation_specs(value: bytes) -> list[MutationSpec]:
    """Return the changes of a MULTI_MUTATION. Raises as unpack_lookup_specs does."""
    specs: list[MutationSpec] = []
    at = 0
    while at < len(value):
        opcode, flags, path_length, value_length = _read(_MUTATION, value, at, "change")
        path_at = at + _MUTATION.size
        value_at = path_at + path_length
        at = value_at + value_length
        spec = MutationSpec(opcode, flags, value[path_at:value_at], value[value_at:at])
        _check(len(specs), MUTATIONS, spec, at - len(value))
        specs.append(spec)
    return _some(specs)


def lookup_result_parts(results: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """Return what lies behind each other in the value of a reply. results: as LookupResult, one for each lookup."""
    return [part for status, found in results for part in (_pack(_FOUND, status, len(found)), found)]


def pack_lookup_results(results: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the value of a reply. results: as of `lookup_result_parts`."""
    return b"".join(lookup_result_parts(results))


def unpack_lookup_results(value: bytes) -> list[LookupResult]:
    """Return what the lookups found, in their order."""
    results: list[LookupResult] = []
    at = 0
    while at < len(value):
        status, length = _read(_FOUND, value, at, "result")
        begin, at = at + _FOUND.size, at + _FOUND.size + length
        if at > len(value):
            raise _bad(f"result {len(results)} of {length} bytes in {len(value) - begin}")
        results.append(LookupResult(status, value[begin:at]))
    return results


def pack_mutation_results(results: Iterable[tuple[int, int, bytes]]) -> bytes:
    """results: as MutationResult; those with a value, or the one that failed."""
    return b"".join(
        _pack(_CHANGED, operation, status) + (b"" if status else _pack(_LENGTH, len(said)) + said)
        for operation, status, said in results
    )


def unpack_mutation_results(value: bytes) -> list[MutationResult]:
    """Return what changes have to say, in the order of the bytes."""
    results: list[MutationResult] = []
    at = 0
    while at < len(value):
        operation, status = _read(_CHANGED, value, at, "result")
        at += _CHANGED.size
        said = b""
        if status == Status.SUCCESS:
            (length,) = _read(_LENGTH, value, at, "result")
            begin, at = at + _LENGTH.size, at + _LENGTH.size + length
            if at > len(value):
                raise _bad(f"result {len(results)} of {length} bytes in {len(value) - begin}")
            said = value[begin:at]
        results.append(MutationResult(operation, status, said))
    return results


def _pack(form: Struct, *numbers: int) -> bytes:
    try:
        return form.pack(*numbers)
    except StructError as error:
        raise LocalProtocolError(f"sub-document value: {error}") from error


def _read(form: Struct, value: bytes, at: int, what: str) -> tuple[int, ...]:
    if at + form.size > len(value):
        raise _bad(f"{what}: {len(value) - at} bytes at {at}, expected {form.size} or more")
    return form.unpack_from(value, at)


def _check(number: int, known: dict[int, Needs], spec: MutationSpec, beyond: int) -> None:
    """Raise for an operation that cannot stand here. beyond: by how many bytes it is longer than the value."""
    name = f"operation {number}, {opcode_name(spec.opcode)}"
    if beyond > 0:
        raise _bad(f"{name}: {beyond} bytes longer than the value")
    if number == MAX_PATHS:
        raise _bad(f"more than {MAX_PATHS} operations", Status.SUBDOC_INVALID_COMBO)
    if spec.opcode not in known:
        raise _bad(f"{name}: not one that can stand here", Status.SUBDOC_INVALID_COMBO)
    if (wrong := unmet(known[spec.opcode], spec.path, spec.value)) is not None:
        raise _bad(f"{name}: {wrong}")


S = TypeVar("S", LookupSpec, MutationSpec)


def _some(specs: list[S]) -> list[S]:
    if not specs:
        raise _bad(f"no operation, expected 1 to {MAX_PATHS}", Status.SUBDOC_INVALID_COMBO)
    return specs


def _bad(what: str, status: int = Status.EINVAL) -> RemoteProtocolError:
    return RemoteProtocolError(f"sub-document: {what}", status=status, fatal=False)
