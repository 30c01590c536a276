"""All operations of a command on one document.

The caller looks up the document. `select_document` checks whether the command may use it, or makes a new document.
`run_lookups` or `change_document` execute the operations. They raise no StatusError for an operation that fails but
return its status, because the reply contains it together with the others.

An attribute is edited inside a JSON object with one key, the attribute's name. So the operations are the same for the
body and for attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

from penstock.errors import KeyExists, KeyNotFound, StatusError, make_status_error
from penstock.store.subdoc.attributes import (
    MUTATION_MACROS,
    CommandContext,
    EditedDocument,
    decode_binary,
    encode_binary,
    expand_document_macro,
    is_system,
    is_virtual,
    make_virtual_object,
    parse_xattr_name,
)
from penstock.store.subdoc.edit import EDITS, READS, creates_array
from penstock.store.subdoc.path import KeyComponent, Path, parse_path
from penstock.store.subdoc.text import JsonText
from penstock.wire.codec.flags import Datatype, DocFlag, PathFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.messages.subdoc import LookupResult, LookupSpec, MutationResult, MutationSpec
from penstock.wire.values.json_value import detect_json

_MKDIR_P, _XATTR, _BINARY = int(PathFlag.MKDIR_P), int(PathFlag.XATTR), int(PathFlag.BINARY)
_EXPAND = int(PathFlag.EXPAND_MACROS)
_ADD, _REVIVE, _ACCESS = int(DocFlag.ADD), int(DocFlag.REVIVE), int(DocFlag.ACCESS_DELETED)
_CREATES = int(DocFlag.MKDOC) | _ADD
_AS_DELETED = int(DocFlag.CREATE_AS_DELETED)
_STAGES = _ADD | _AS_DELETED  # these flags together: there must be no document, not even a deleted one
_JSON_BODY, _XATTRS = int(Datatype.JSON), int(Datatype.XATTR)
_WHOLE = {Opcode.GET, Opcode.SET, Opcode.ADD, Opcode.DELETE}


class ChangedDocument(NamedTuple):
    """A document after the operations of a command.

    Attributes:
        body: the new body.
        xattrs: name of an extended attribute -> its JSON text.
        datatype: the new Datatype bits.
        deleted: whether the document is deleted now.
        results: results of the operations that return a value.
        macros: stand-in in the attributes' text -> the macro whose value replaces it, a key of MUTATION_MACROS.
    """

    body: bytes
    xattrs: dict[str, bytes]
    datatype: int
    deleted: bool
    results: list[MutationResult]
    macros: dict[bytes, bytes]

    @property
    def nbytes(self) -> int:
        """The size of the value that is stored, in bytes."""
        return len(self.body) + (len(pack_xattrs(self.xattrs)) if self.xattrs else 0)

    def pack_front(self, cas: int = 0, seqno: int = 0) -> bytes:
        """Return the encoded attributes, which are stored before the body.

        Args:
            cas: the cas of the change.
            seqno: the seqno of the change.

        Returns:
            The bytes. Their length does not depend on the arguments.
        """
        if not self.xattrs:
            return b""
        front = pack_xattrs(self.xattrs)
        for stand_in, macro in self.macros.items():
            front = front.replace(stand_in, MUTATION_MACROS[macro](cas, seqno, self.body))
        return front


# Selecting the document


def select_document(
    found: EditedDocument | None, specs: Sequence[LookupSpec | MutationSpec], doc_flags: int, *, cas: int = 0
) -> EditedDocument:
    """Return the document that a command operates on: the document that was found, or a new one.

    Args:
        found: the document with the command's key, also a deleted one, whose body is empty; None if there is none.
        specs: the command's operations, which were checked.
        doc_flags: the command's DocFlag bits.
        cas: the request's cas, 0 for any.

    Raises:
        KeyNotFound: there is no document, and the command does not create one.
        KeyExists: there is a document, and the command must create one; or the document has another cas.
        StatusError: with SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS; the command revives a document that is not deleted.
    """
    if found is not None and found.deleted and not doc_flags & _ACCESS and doc_flags & _STAGES != _STAGES:
        found = None
    if found is None:
        if cas or not doc_flags & _CREATES:
            raise KeyNotFound
        return _make_document(specs, doc_flags)
    if doc_flags & _ADD:
        raise KeyExists("the document exists already")
    if cas and cas != found.cas:
        raise KeyExists(f"cas {cas}, expected the document's cas {found.cas}")
    if doc_flags & _REVIVE and not found.deleted:
        raise make_status_error(Status.SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS, "the document is not deleted")
    return found


def _make_document(specs: Sequence[LookupSpec | MutationSpec], doc_flags: int) -> EditedDocument:
    if doc_flags & _AS_DELETED:
        return EditedDocument(deleted=True)
    for spec in specs:
        if spec.opcode not in _WHOLE:
            return EditedDocument(b"[]" if creates_array(spec.opcode, spec.path) else b"{}", datatype=_JSON_BODY)
    return EditedDocument()


# Executing the operations


def run_lookups(document: EditedDocument, specs: Sequence[LookupSpec], context: CommandContext) -> list[LookupResult]:
    """Execute checked lookups. A lookup that fails does not affect the others.

    If one lookup needs an attribute of the system that is not allowed, all lookups of attributes are denied. Lookups
    in the body are not denied.

    Args:
        document: the document to read.
        specs: the lookups.
        context: the values for virtual attributes, and the permission for attributes of the system.

    Returns:
        A result for each lookup, in the same order.
    """
    work = _DocumentEditor(document, context, specs)
    denied = 0 if _may_access(specs, context) else _XATTR
    results = []
    for spec in specs:
        if spec.flags & denied:
            results.append(LookupResult(Status.EACCESS))
            continue
        try:
            results.append(LookupResult(Status.SUCCESS, work.read(spec)))
        except StatusError as error:
            results.append(LookupResult(error.status))
    return results


def change_document(
    document: EditedDocument, specs: Sequence[MutationSpec], doc_flags: int, context: CommandContext
) -> ChangedDocument | MutationResult:
    """Execute checked changes: all of them, or none if one fails.

    Operations on attributes come first. So an attribute of the system that is not allowed fails the first operation.

    Args:
        document: the document before the command.
        specs: the changes.
        doc_flags: the command's DocFlag bits.
        context: the values for macros, and the permission for attributes of the system.

    Returns:
        The changed document, or the result of the first operation that failed.

    Raises:
        StatusError: with SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE; the document stays deleted and would have a body.
    """
    if not _may_access(specs, context):
        return MutationResult(0, Status.EACCESS)
    work = _DocumentEditor(document, context, specs)
    mkdir_p = _MKDIR_P if doc_flags & _CREATES else 0
    work.reserve_stand_ins(specs)
    answers = []
    for index, spec in enumerate(specs):
        try:
            answer = work.write(spec._replace(flags=spec.flags | mkdir_p))
        except StatusError as error:
            return MutationResult(index, error.status)
        if answer:
            answers.append(MutationResult(index, Status.SUCCESS, answer))
    deleted = any(spec.opcode == Opcode.DELETE for spec in specs)
    if document.deleted and not doc_flags & _REVIVE:
        deleted = True
    if deleted and work.body:
        raise make_status_error(
            Status.SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE, f"a body of {len(work.body)} bytes in a deleted document"
        )
    datatype = _JSON_BODY if work.is_json and work.body else 0
    return ChangedDocument(
        work.body, work.xattrs, datatype | (_XATTRS if work.xattrs else 0), deleted, answers, work.macros
    )


def _may_access(specs: Sequence[LookupSpec | MutationSpec], context: CommandContext) -> bool:
    """Return whether the user may access all attributes of checked operations.

    Source: kv_engine, subdocument_context.cc, do_xattr_phase.
    """
    return context.system_xattrs or not any(spec.flags & _XATTR and is_system(spec.path) for spec in specs)


class _DocumentEditor:
    """Executes operations on one document.

    A text, that is the body or an attribute, is parsed once for all paths that lead into it.

    Attributes:
        is_json: whether the body is JSON text.
        xattrs: name of an extended attribute -> its JSON text.
        macros: stand-in in the attributes' text -> the macro whose value replaces it.
    """

    def __init__(
        self, document: EditedDocument, context: CommandContext, specs: Sequence[LookupSpec | MutationSpec]
    ) -> None:
        self._document = document
        self._context = context
        self._specs = specs
        self._texts: dict[str | None, JsonText | StatusError] = {}  # by attribute; None: the body
        self._body = document.body
        self.is_json = bool(document.datatype & _JSON_BODY)
        self.xattrs = dict(document.xattrs)
        self.macros: dict[bytes, bytes] = {}

    @property
    def body(self) -> bytes:
        """The body with all changes so far."""
        text = self._texts.get(None)
        return text.read() if isinstance(text, JsonText) else self._body

    def read(self, spec: LookupSpec) -> bytes:
        """Execute a lookup.

        Returns:
            The value that the reply contains.

        Raises:
            StatusError: the lookup failed.
        """
        if spec.opcode == Opcode.GET:
            if not self.body:
                raise make_status_error(Status.SUBDOC_PATH_ENOENT, "the document has no body")
            return self.body
        if not spec.flags & _XATTR:
            return READS[spec.opcode](self._parse_body(), parse_path(spec.path))
        text = self._parse_xattr(parse_xattr_name(spec.path))
        found = READS[spec.opcode](text, parse_path(spec.path))
        return decode_binary(found) if spec.flags & _BINARY else found

    def write(self, spec: MutationSpec) -> bytes:
        """Execute a change.

        Returns:
            The value that the reply contains; empty for most operations.

        Raises:
            StatusError: the change failed.
        """
        if spec.opcode in _WHOLE:
            self._write_whole(spec)
            return b""
        if spec.opcode == Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR:
            self._set_body(self.read(LookupSpec(Opcode.SUBDOC_GET, spec.flags, spec.path)))
            return b""
        path, mkdir_p = parse_path(spec.path), bool(spec.flags & _MKDIR_P)
        edit = EDITS[spec.opcode]
        if spec.flags & _XATTR:
            name = parse_xattr_name(spec.path)
            text = self._parse_xattr(name)
            answer = edit(text, path, self._make_value(spec), mkdir_p)
            self._take_out_value(name, text.read())
        else:
            answer = edit(self._parse_body(), path, spec.value, mkdir_p)
            self.is_json = True
        return answer

    def reserve_stand_ins(self, specs: Sequence[MutationSpec]) -> None:
        """Choose stand-ins for the macros whose values are known only when the change gets its cas and seqno.

        A stand-in is a JSON string as long as the value. It occurs nowhere else in the attributes.
        """
        used = {spec.value for spec in specs if spec.flags & _EXPAND and spec.value in MUTATION_MACROS}
        if not used:
            return
        taken = b"\0".join([*self.xattrs.values(), *(part for spec in specs for part in (spec.path, spec.value))])
        digest = sha256(taken)  # no client can put the digest of a text into that text
        for macro in sorted(used):
            digits = len(MUTATION_MACROS[macro](0, 0, b"")) - 2
            while (stand_in := digest.hexdigest()[:digits].encode()) in taken or b'"%s"' % stand_in in self.macros:
                digest.update(b"\0")
            self.macros[b'"%s"' % stand_in] = macro
            digest.update(macro)

    def _parse_body(self) -> JsonText:
        return self._get_parsed(None) or self._parse(None, self._body)

    def _parse_xattr(self, name: KeyComponent) -> JsonText:
        """Return an object of one stored or virtual attribute; an empty object if there is no such attribute."""
        return self._get_parsed(name.name) or self._parse(name.name, self._make_xattr_object(name))

    def _get_parsed(self, name: str | None) -> JsonText | None:
        text = self._texts.get(name)
        if isinstance(text, StatusError):
            raise text
        return text

    def _parse(self, name: str | None, text: bytes) -> JsonText:
        try:
            self._texts[name] = parsed = JsonText(text, self._list_paths(name))
        except StatusError as error:
            self._texts[name] = error
            raise
        return parsed

    def _list_paths(self, name: str | None) -> list[Path]:
        """Return the paths of operations that lead into an attribute, or into the body."""
        paths = []
        for spec in self._specs:
            with suppress(StatusError):  # a path that is not valid: its operation fails later, in its turn
                if name == (parse_xattr_name(spec.path).name if spec.flags & _XATTR else None):
                    paths.append(parse_path(spec.path))
        return paths

    def _set_body(self, body: bytes) -> None:
        self._texts.pop(None, None)
        self._body, self.is_json = body, bool(detect_json(body))

    def _write_whole(self, spec: MutationSpec) -> None:
        if spec.opcode == Opcode.ADD and self.body:
            raise make_status_error(Status.SUBDOC_PATH_EEXISTS, "the document has a body")
        self._set_body(spec.value)
        if spec.opcode == Opcode.DELETE:
            self._texts.clear()
            self.xattrs = {name: value for name, value in self.xattrs.items() if is_system(name)}

    def _make_xattr_object(self, name: KeyComponent) -> bytes:
        if is_virtual(name.name):
            return make_virtual_object(name.name, self._document, self._context).encode()
        value = self.xattrs.get(name.name)
        return b"{}" if value is None else b"%s%s}" % (_make_front(name), value)

    def _take_out_value(self, name: KeyComponent, object_: bytes) -> None:
        """Store the value of an attribute from the object that an operation has edited; remove it if there is none."""
        front = _make_front(name)
        if object_.startswith(front):
            self.xattrs[name.name] = object_[len(front) : -1]
        else:
            self.xattrs.pop(name.name, None)

    def _make_value(self, spec: MutationSpec) -> bytes:
        """Return the JSON text that an operation puts into an attribute."""
        if spec.flags & _BINARY:
            return encode_binary(spec.value)
        if not spec.flags & _EXPAND:
            return spec.value
        for stand_in, macro in self.macros.items():
            if macro == spec.value:
                return stand_in
        return expand_document_macro(spec.value, self._document, self._context)


def _make_front(name: KeyComponent) -> bytes:
    return f'{{"{name.text}":'.encode()
