"""Sub-document commands: fetch a document, execute the operations of penstock.store.subdoc, and store the result.

A document is stored inflated, with its new datatype; lookups inflate the values that they read. A thread works on a
large document; its result is stored if the document has not changed meanwhile.
Source: memcached daemon/protocol/mcbp/subdocument_context.cc and its callers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from penstock.errors import InvalidArguments, Locked, NotMyVbucket, NotSupported, StatusError, TooBig, make_status_error
from penstock.node.answers import Answer
from penstock.node.auth import Privilege
from penstock.node.commands.kv_commands import check_value_size, find_active_vbucket
from penstock.node.session.command_table import READ, WRITE, CommandTable, Trait
from penstock.node.session.large_values import LARGE_VALUE_BYTES, run_in_worker
from penstock.node.session.replies import encode_reply, encode_reply_in_parts
from penstock.node.session.session import Session
from penstock.store.documents.document_locks import LOCKED_CAS
from penstock.store.documents.item import Item, Stored
from penstock.store.documents.vbucket import Vbucket
from penstock.store.subdoc.attributes import CommandContext, EditedDocument
from penstock.store.subdoc.command import ChangedDocument, change_document, run_lookups, select_document
from penstock.store.subdoc.rules import check_changes, check_lookups
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype, DocFlag, PathFlag
from penstock.wire.codec.frame import name_opcode
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
    find_unmet_need,
    list_lookup_result_parts,
    pack_mutation_results,
    unpack_lookup_specs,
    unpack_mutation_specs,
)
from penstock.wire.values.large_bytes import to_bytes
from penstock.wire.values.snappy import MAX_INFLATED, inflate, read_inflated_length

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
    """The fields behind the path in a command's extras.

    Attributes:
        expiry: the document's expiry; 0: none.
        user_flags: the document's flags; None: they stay.
        doc_flags: DocFlag bits.
    """

    expiry: int = 0
    user_flags: int | None = None
    doc_flags: int = 0


_OnePath = SubdocLookup | SubdocMutation
_Lookup = SubdocLookup | MultiLookup
_Mutation = SubdocMutation | MultiMutation


def _check_path(request: _OnePath, needs: Mapping[int, Needs]) -> None:
    """Raise InvalidArguments unless path and value are as the opcode of a command needs them."""
    if (wrong := find_unmet_need(needs[request.received_as], request.path, request.content)) is not None:
        raise InvalidArguments(f"{name_opcode(request.received_as)}: {wrong}")


# The document


class _FoundDocument(NamedTuple):
    """A document of the store, or the tombstone of a deleted one.

    Attributes:
        item: the stored version.
        deleted: whether it is a tombstone.
    """

    item: Item
    deleted: bool

    def read_document(self) -> EditedDocument:
        """Return the document with its value inflated and divided into attributes and body."""
        cas, flags, datatype, stored, expiry, rev_seqno, seqno = self.item
        value = inflate(stored) if datatype & _SNAPPY else to_bytes(stored)
        xattrs, body = unpack_xattrs(value) if datatype & _XATTRS else ({}, value)
        return EditedDocument(body, xattrs, datatype, self.deleted, cas, seqno, rev_seqno, flags, expiry)

    def get_size(self) -> int:
        """Return the inflated size of the value in bytes."""
        value = self.item.value
        return read_inflated_length(value) if self.item.datatype & _SNAPPY else len(value)


def _find_document(vbucket: Vbucket, key: bytes, doc_flags: int, cas: int) -> _FoundDocument | None:
    """Return a document, or the tombstone of a deleted one if flags request it.

    Raises Locked for a command without a cas. An ADD is exempt: its error is that the document exists.
    """
    item, deleted = vbucket.get(key), False
    if item is None and doc_flags & _DELETED_TOO:
        item, deleted = vbucket.versions.find_tombstone(key), True
    if item is None:
        return None
    if item.cas == LOCKED_CAS and not doc_flags & _ADD:
        if cas in (0, LOCKED_CAS):
            raise Locked(vbucket=vbucket.id)
        item = item._replace(cas=cas)  # compared with the lock's cas when the document is stored
    return _FoundDocument(item, deleted)


def _run_work(
    session: Session,
    request: _Lookup | _Mutation,
    found: _FoundDocument | None,
    work: Callable[[EditedDocument | None], T],
    *,
    version: Hashable = None,
) -> T:
    """Return the result of work on a document. Raises Parked if a thread must do the work.

    Args:
        session: the session of the client.
        request: the request.
        found: the document; None: it does not exist.
        work: returns the result; called with the document or None.
        version: version of a document that is changed, as in `work_apart`. None: a lookup, whose result stays valid.
    """
    nbytes = len(request.value) + (0 if found is None else found.get_size())
    if nbytes <= LARGE_VALUE_BYTES:
        return work(None if found is None else found.read_document())
    return run_in_worker(session, version, nbytes, lambda: work(None if found is None else found.read_document()))


def _make_context(
    session: Session,
    vbucket: Vbucket,
    key: bytes,
    specs: Sequence[LookupSpec | MutationSpec],
    privilege: Privilege,
) -> CommandContext:
    """Return the values that operations need in addition to the document.

    Args:
        session: the session of the client.
        vbucket: the document's vbucket.
        key: the store's key.
        specs: the operations.
        privilege: the privilege for system attributes.
    """
    needs = any(spec.flags & _XATTR and spec.path.startswith(_OF_SYSTEM) for spec in specs)
    system_xattrs = needs and session.can_use_key(privilege, key)
    now = max(session.node.machine.time_ns(), vbucket.changes.clock.last)
    return CommandContext(vbucket.history.vbuuid, now, system_xattrs)


def _check_request(session: Session, request: _Lookup | _Mutation, specs: Sequence[LookupSpec | MutationSpec]) -> None:
    if request.datatype:
        raise InvalidArguments(f"datatype 0x{request.datatype:02x}, expected 0")
    if not session.datatypes & _XATTRS and any(spec.flags & _XATTR for spec in specs):
        raise NotSupported("extended attributes: this connection has not agreed on XATTR")


def _make_error(spec: LookupSpec | MutationSpec, status: int) -> StatusError:
    return make_status_error(status, f"{name_opcode(spec.opcode)} of {spec.path[:80]!r}: {Status(status).name}")


# Lookups


def _find_readable_vbucket(session: Session, number: int, doc_flags: int) -> Vbucket:
    if not doc_flags & _REPLICA:
        return find_active_vbucket(session, number)
    vbucket = session.require_bucket().store.find_existing(number)
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
    """Serve SUBDOC_MULTI_LOOKUP."""
    return _look_up(session, request, unpack_lookup_specs(request.value))


def _look_up(session: Session, request: _Lookup, specs: list[LookupSpec]) -> Answer:
    doc_flags = request.doc_flags or 0
    check_lookups(specs, doc_flags)
    _check_request(session, request, specs)
    key = session.read_key(request.key)
    vbucket = _find_readable_vbucket(session, request.vbucket, doc_flags)
    found = _find_document(vbucket, key, doc_flags, request.cas)
    around = _make_context(session, vbucket, key, specs, Privilege.SYSTEM_XATTR_READ)

    def work(there: EditedDocument | None) -> tuple[EditedDocument, list[LookupResult]]:
        document = select_document(there, specs, doc_flags, cas=request.cas)
        results = run_lookups(document, specs, around)
        return document._replace(body=b""), results  # so that the thread frees a large body

    try:
        document, results = _run_work(session, request, found, work)
    except StatusError:
        _count_read(session, found)
        raise
    _count_read(session, found)
    if isinstance(request, SubdocLookup):
        ((status, value),) = results
        if status:
            raise _make_error(specs[0], status)
        return _make_lookup_reply(session, request, specs[0], document, value)
    failed = any(result.status for result in results)
    if document.deleted:
        status = Status.SUBDOC_MULTI_PATH_FAILURE_DELETED if failed else Status.SUBDOC_SUCCESS_DELETED
    else:
        status = Status.SUBDOC_MULTI_PATH_FAILURE if failed else Status.SUCCESS
    return encode_reply_in_parts(request, status, list_lookup_result_parts(results), cas=document.cas)


def _count_read(session: Session, found: _FoundDocument | None) -> None:
    session.counters.cmd_get += 1
    if found is None:
        session.counters.get_misses += 1


def _make_lookup_reply(
    session: Session, request: SubdocLookup, spec: LookupSpec, document: EditedDocument, value: bytes
) -> Answer:
    is_json = value and not spec.flags & _BINARY
    return encode_reply_in_parts(
        request,
        Status.SUBDOC_SUCCESS_DELETED if document.deleted else Status.SUCCESS,
        (value,),
        cas=document.cas,
        datatype=_JSON & session.datatypes if is_json else 0,
    )


# Changes


@COMMANDS.serve(
    needs=WRITE,
    traits=Trait.DURABLE,
    opcodes=(
        *(Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_DELETE, Opcode.SUBDOC_REPLACE),
        *(Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST, Opcode.SUBDOC_ARRAY_INSERT),
        *(Opcode.SUBDOC_ARRAY_ADD_UNIQUE, Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR),
    ),
)
@COMMANDS.serve(needs=READ | WRITE, traits=Trait.DURABLE, opcodes=(Opcode.SUBDOC_COUNTER,))
def change_path(session: Session, request: SubdocMutation) -> bytes:
    """Serve the mutations of one path."""
    _check_path(request, MUTATIONS)
    spec = MutationSpec(request.received_as, request.flags, request.path, request.content)
    return _change_document(session, request, [spec], SubdocOptions(request.expiry or 0, None, request.doc_flags or 0))


@COMMANDS.serve(needs=WRITE, traits=Trait.DURABLE)
def change_paths(session: Session, request: MultiMutation) -> bytes:
    """Serve SUBDOC_MULTI_MUTATION."""
    options = SubdocOptions(request.expiry or 0, request.user_flags, request.doc_flags or 0)
    return _change_document(session, request, unpack_mutation_specs(request.value), options)


def _change_document(session: Session, request: _Mutation, specs: list[MutationSpec], options: SubdocOptions) -> bytes:
    single_path = isinstance(request, SubdocMutation)
    doc_flags = options.doc_flags
    check_changes(specs, doc_flags, cas=request.cas, single_path=single_path)
    _check_request(session, request, specs)
    is_counter = any(
        spec.opcode == Opcode.SUBDOC_COUNTER for spec in specs
    )  # its reply reveals the value: READ is needed
    key = (session.change_key if is_counter else session.write_key)(request.key)
    vbucket = find_active_vbucket(session, request.vbucket)
    found = _find_document(vbucket, key, doc_flags, request.cas)
    around = _make_context(session, vbucket, key, specs, Privilege.SYSTEM_XATTR_WRITE)

    def work(there: EditedDocument | None) -> tuple[EditedDocument, ChangedDocument | MutationResult]:
        document = select_document(there, specs, doc_flags, cas=request.cas)
        result = change_document(document, specs, doc_flags, around)
        return document._replace(body=b""), result  # so that the thread frees a large body

    version = found and (found.item.cas, found.item.seqno, found.deleted)
    document, result = _run_work(session, request, found, work, version=version)
    if isinstance(result, MutationResult):
        if single_path:
            raise _make_error(specs[0], result.status)
        return encode_reply(request, Status.SUBDOC_MULTI_PATH_FAILURE, value=pack_mutation_results([result]))
    stored = _store_document(session, vbucket, key, document, result, request.cas, options)
    is_deleted = document.deleted and not doc_flags & _REVIVE
    return encode_reply(
        request,
        Status.SUBDOC_SUCCESS_DELETED if is_deleted else Status.SUCCESS,
        extras=_TOKEN.pack(vbucket.history.vbuuid, stored.seqno) if session.sends_tokens else b"",
        value=_pack_results(request, result.results),
        cas=stored.cas,
        datatype=_JSON & session.datatypes if request.received_as == Opcode.SUBDOC_COUNTER else 0,
    )


def _store_document(  # noqa: PLR0917 - all of them describe the stored version
    session: Session,
    vbucket: Vbucket,
    key: bytes,
    document: EditedDocument,
    result: ChangedDocument,
    cas: int,
    options: SubdocOptions,
) -> Stored:
    """Store a changed document. Without an expiry in the request it never expires, as with SET.

    Returns:
        The new version.
    """
    check_value_size(result.body)
    if (nbytes := result.nbytes) > MAX_INFLATED:
        raise TooBig(f"value of {nbytes} bytes with its extended attributes, limit {MAX_INFLATED}")
    stored = vbucket.rewrite(
        key,
        result.pack_front,
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


def _pack_results(request: _Mutation, answers: list[MutationResult]) -> bytes:
    if isinstance(request, MultiMutation):
        return pack_mutation_results(answers)
    return answers[0].value if answers else b""
