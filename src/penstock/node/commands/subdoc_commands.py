"""The sub-document commands: a document is fetched, what they do is done to it, and it is stored, in one go.

What they do is penstock.store.subdoc's. A document is stored inflated, with the datatype that it has now; lookups
inflate what they read. A thread works on a large document; what it made is stored if the document is still the same.
Source: memcached daemon/protocol/mcbp/subdocument_context.cc and what executes it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from time import time_ns
from typing import NamedTuple, TypeVar

from penstock.errors import InvalidArguments, Locked, NotMyVbucket, NotSupported, StatusError, TooBig, status_error
from penstock.node.answers import Answer
from penstock.node.auth import Privilege
from penstock.node.commands.kv_commands import check_value, serving
from penstock.node.session.command_table import READ, WRITE, CommandTable
from penstock.node.session.large_values import LARGE, work_apart
from penstock.node.session.replies import reply, reply_parts
from penstock.node.session.session import Session
from penstock.store.documents.document_locks import LOCKED_CAS
from penstock.store.documents.vbucket import Item, Stored, Vbucket
from penstock.store.subdoc.attributes import Around, EditedDocument
from penstock.store.subdoc.command import Changed, begin, change, look_up
from penstock.store.subdoc.rules import check_changes, check_lookups
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype, DocFlag, PathFlag
from penstock.wire.codec.frame import opcode_name
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import unpack_xattrs
from penstock.wire.messages.subdoc import (
    LOOKUPS,
    MUTATIONS,
    LookupResult,
    LookupSpec,
    MultiLookup,
    MultiMutation,
    MutationReply,
    MutationResult,
    MutationSpec,
    Needs,
    SubdocLookup,
    SubdocMutation,
    lookup_result_parts,
    pack_mutation_results,
    unmet,
    unpack_lookup_specs,
    unpack_mutation_specs,
)
from penstock.wire.values.large_bytes import plain_bytes
from penstock.wire.values.snappy import MAX_INFLATED, inflate, inflated_length

__all__ = ["COMMANDS"]

COMMANDS = CommandTable()

_XATTR, _BINARY = int(PathFlag.XATTR), int(PathFlag.BINARY)
_JSON, _SNAPPY, _XATTRS = int(Datatype.JSON), int(Datatype.SNAPPY), int(Datatype.XATTR)
_ADD, _REVIVE = int(DocFlag.ADD), int(DocFlag.REVIVE)
_REPLICA = int(DocFlag.REPLICA_READ)
_DELETED_TOO = int(DocFlag.ACCESS_DELETED | DocFlag.CREATE_AS_DELETED)
_OF_SYSTEM = (b"$XTOC", b"_")
_TOKEN = MutationReply.layouts[2].extras


T = TypeVar("T")


class SubdocOptions(NamedTuple):
    """What stands behind the path in a command's extras. user_flags: None: the document's stay as they are."""

    expiry: int = 0
    user_flags: int | None = None
    doc_flags: int = 0


_OnePath = SubdocLookup | SubdocMutation
_Lookup = SubdocLookup | MultiLookup
_Mutation = SubdocMutation | MultiMutation


def _check_path(request: _OnePath, needs: Mapping[int, Needs]) -> None:
    """Raise InvalidArguments unless path and value of a command are there as its opcode needs them."""
    if (wrong := unmet(needs[request.received_as], request.path, request.content)) is not None:
        raise InvalidArguments(f"{opcode_name(request.received_as)}: {wrong}")


# The document


class _Found(NamedTuple):
    """What the store has of a key: a document, or what is left of a deleted one."""

    item: Item
    deleted: bool

    def document(self) -> EditedDocument:
        """Return the document with its value inflated and taken apart."""
        cas, flags, datatype, stored, expiry, rev_seqno, seqno = self.item
        value = inflate(stored) if datatype & _SNAPPY else plain_bytes(stored)
        xattrs, body = unpack_xattrs(value) if datatype & _XATTRS else ({}, value)
        return EditedDocument(body, xattrs, datatype, self.deleted, cas, seqno, rev_seqno, flags, expiry)

    def size(self) -> int:
        """Return how many bytes the value has inflated."""
        value = self.item.value
        return inflated_length(value) if self.item.datatype & _SNAPPY else len(value)


def _find(vbucket: Vbucket, key: bytes, doc_flags: int, cas: int) -> _Found | None:
    """Return a document, or what is left of a deleted one if flags ask for that.

    Raises Locked for a command that has no cas, unless it is to add the document: then that it is there matters more.
    """
    item, deleted = vbucket.get(key), False
    if item is None and doc_flags & _DELETED_TOO:
        item, deleted = vbucket.versions.tombstone(key), True
    if item is None:
        return None
    if item.cas == LOCKED_CAS and not doc_flags & _ADD:
        if cas in (0, LOCKED_CAS):
            raise Locked(vbucket=vbucket.id)
        item = item._replace(cas=cas)  # whether it is the lock's shows when the document is stored
    return _Found(item, deleted)


def _work(
    session: Session,
    request: _Lookup | _Mutation,
    found: _Found | None,
    work: Callable[[EditedDocument | None], T],
    *,
    version: Hashable = None,
) -> T:
    """Return what work on a document comes to. Raises Parked where a thread is to do it.

    version: what is changed, as of `work_apart`; a lookup's result holds for the time when it was asked for.
    """
    nbytes = len(request.value) + (0 if found is None else found.size())
    if nbytes <= LARGE:
        return work(None if found is None else found.document())
    return work_apart(session, version, nbytes, lambda: work(None if found is None else found.document()))


def _around(
    session: Session,
    vbucket: Vbucket,
    key: bytes,
    specs: Sequence[LookupSpec | MutationSpec],
    privilege: Privilege,
) -> Around:
    """Return what operations need beside the document. privilege: for attributes of the system."""
    needs = any(spec.flags & _XATTR and spec.path.startswith(_OF_SYSTEM) for spec in specs)
    system_xattrs = needs and session.may_use_key(privilege, key)
    return Around(vbucket.history.vbuuid, max(time_ns(), vbucket.changes.clock.last), system_xattrs)


def _check(session: Session, request: _Lookup | _Mutation, specs: Sequence[LookupSpec | MutationSpec]) -> None:
    if request.datatype:
        raise InvalidArguments(f"datatype 0x{request.datatype:02x}, expected paths and values as they are")
    if not session.datatypes & _XATTRS and any(spec.flags & _XATTR for spec in specs):
        raise NotSupported("extended attributes: this connection has not agreed on XATTR")


def _failure(spec: LookupSpec | MutationSpec, status: int) -> StatusError:
    return status_error(status, f"{opcode_name(spec.opcode)} of {spec.path[:80]!r}: {Status(status).name}")


# Lookups


def _readable(session: Session, number: int, doc_flags: int) -> Vbucket:
    if not doc_flags & _REPLICA:
        return serving(session, number)
    vbucket = session.selected().store.existing(number)
    if vbucket.history.state is not VbucketState.REPLICA:
        raise NotMyVbucket(vbucket=vbucket.id)
    return vbucket


@COMMANDS.serve(needs=READ)
def look_up_path(session: Session, request: SubdocLookup) -> Answer:
    """Serve SUBDOC_GET, SUBDOC_EXISTS and SUBDOC_GET_COUNT."""
    _check_path(request, LOOKUPS)
    return _look_up(session, request, [LookupSpec(request.received_as, request.flags, request.path)])


@COMMANDS.serve(needs=READ)
def look_up_paths(session: Session, request: MultiLookup) -> Answer:
    return _look_up(session, request, unpack_lookup_specs(request.value))


def _look_up(session: Session, request: _Lookup, specs: list[LookupSpec]) -> Answer:
    doc_flags = request.doc_flags or 0
    check_lookups(specs, doc_flags)
    _check(session, request, specs)
    key = session.read_key(request.key)
    vbucket = _readable(session, request.vbucket, doc_flags)
    found = _find(vbucket, key, doc_flags, request.cas)
    around = _around(session, vbucket, key, specs, Privilege.SYSTEM_XATTR_READ)

    def work(there: EditedDocument | None) -> tuple[EditedDocument, list[LookupResult]]:
        document = begin(there, specs, doc_flags, cas=request.cas)
        results = look_up(document, specs, around)
        return document._replace(body=b""), results  # a large body is to be freed by the thread

    try:
        document, results = _work(session, request, found, work)
    except StatusError:
        _count_read(session, found)
        raise
    _count_read(session, found)
    if isinstance(request, SubdocLookup):
        ((status, value),) = results
        if status:
            raise _failure(specs[0], status)
        return _found(session, request, specs[0], document, value)
    failed = any(result.status for result in results)
    if document.deleted:
        status = Status.SUBDOC_MULTI_PATH_FAILURE_DELETED if failed else Status.SUBDOC_SUCCESS_DELETED
    else:
        status = Status.SUBDOC_MULTI_PATH_FAILURE if failed else Status.SUCCESS
    return reply_parts(request, status, lookup_result_parts(results), cas=document.cas)


def _count_read(session: Session, found: _Found | None) -> None:
    session.counters.cmd_get += 1
    if found is None:
        session.counters.get_misses += 1


def _found(session: Session, request: SubdocLookup, spec: LookupSpec, document: EditedDocument, value: bytes) -> Answer:
    is_json = value and not spec.flags & _BINARY
    return reply_parts(
        request,
        Status.SUBDOC_SUCCESS_DELETED if document.deleted else Status.SUCCESS,
        (value,),
        cas=document.cas,
        datatype=_JSON & session.datatypes if is_json else 0,
    )


# Changes


@COMMANDS.serve(
    needs=WRITE,
    opcodes=(
        *(Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_DELETE, Opcode.SUBDOC_REPLACE),
        *(Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST, Opcode.SUBDOC_ARRAY_INSERT),
        *(Opcode.SUBDOC_ARRAY_ADD_UNIQUE, Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR),
    ),
)
@COMMANDS.serve(needs=READ | WRITE, opcodes=(Opcode.SUBDOC_COUNTER,))
def change_path(session: Session, request: SubdocMutation) -> bytes:
    _check_path(request, MUTATIONS)
    spec = MutationSpec(request.received_as, request.flags, request.path, request.content)
    return _change(session, request, [spec], SubdocOptions(request.expiry or 0, None, request.doc_flags or 0))


@COMMANDS.serve(needs=WRITE)
def change_paths(session: Session, request: MultiMutation) -> bytes:
    options = SubdocOptions(request.expiry or 0, request.user_flags, request.doc_flags or 0)
    return _change(session, request, unpack_mutation_specs(request.value), options)


def _change(session: Session, request: _Mutation, specs: list[MutationSpec], options: SubdocOptions) -> bytes:
    single_path = isinstance(request, SubdocMutation)
    doc_flags = options.doc_flags
    check_changes(specs, doc_flags, cas=request.cas, single_path=single_path)
    _check(session, request, specs)
    tells = any(spec.opcode == Opcode.SUBDOC_COUNTER for spec in specs)  # what the document has
    key = (session.change_key if tells else session.write_key)(request.key)
    vbucket = serving(session, request.vbucket)
    found = _find(vbucket, key, doc_flags, request.cas)
    around = _around(session, vbucket, key, specs, Privilege.SYSTEM_XATTR_WRITE)

    def work(there: EditedDocument | None) -> tuple[EditedDocument, Changed | MutationResult]:
        document = begin(there, specs, doc_flags, cas=request.cas)
        result = change(document, specs, doc_flags, around)
        return document._replace(body=b""), result  # a large body is to be freed by the thread

    version = found and (found.item.cas, found.item.seqno, found.deleted)
    document, result = _work(session, request, found, work, version=version)
    if isinstance(result, MutationResult):
        if single_path:
            raise _failure(specs[0], result.status)
        return reply(request, Status.SUBDOC_MULTI_PATH_FAILURE, value=pack_mutation_results([result]))
    stored = _store(session, vbucket, key, document, result, request.cas, options)
    is_deleted = document.deleted and not doc_flags & _REVIVE
    return reply(
        request,
        Status.SUBDOC_SUCCESS_DELETED if is_deleted else Status.SUCCESS,
        extras=_TOKEN.pack(vbucket.history.vbuuid, stored.seqno) if session.tokens else b"",
        value=_reply_value(request, result.answers),
        cas=stored.cas,
        datatype=_JSON & session.datatypes if request.received_as == Opcode.SUBDOC_COUNTER else 0,
    )


def _store(  # noqa: PLR0917 - all of them are what is stored, and where
    session: Session,
    vbucket: Vbucket,
    key: bytes,
    document: EditedDocument,
    result: Changed,
    cas: int,
    options: SubdocOptions,
) -> Stored:
    """Store what was made of a document; without an expiry it never expires, as with a SET."""
    check_value(result.body)
    if (nbytes := result.nbytes) > MAX_INFLATED:
        raise TooBig(f"value of {nbytes} bytes with its extended attributes, limit {MAX_INFLATED}")
    stored = vbucket.rewrite(
        key,
        result.front,
        body=result.body,
        cas=cas,
        deleted=result.deleted,
        flags=document.flags if options.user_flags is None else options.user_flags,
        expiry=options.expiry,
        datatype=result.datatype,
        preserve_expiry=session.infos.preserve_ttl,
    )
    session.changed.add(vbucket.id)
    session.counters.cmd_set += 1
    return stored


def _reply_value(request: _Mutation, answers: list[MutationResult]) -> bytes:
    if isinstance(request, MultiMutation):
        return pack_mutation_results(answers)
    return answers[0].value if answers else b""
