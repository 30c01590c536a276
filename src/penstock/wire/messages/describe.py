"""A frame in readable terms: what it is called, and its fields as names, numbers, bytes and lists of these.

Layouts say what stands where; the tables here say what is inside a value or the engine-private data, by message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from enum import EnumType, IntEnum, IntFlag
from functools import lru_cache
from struct import Struct
from typing import Any

from penstock.errors import RemoteProtocolError
from penstock.wire.codec import constants, flags, opcodes, statuses
from penstock.wire.codec.constants import (
    Dialect,
    Feature,
    FrameInfoId,
    KeyState,
    ResponseFrameInfo,
    TapOpaque,
    VbucketState,
)
from penstock.wire.codec.flags import Datatype, PathFlag
from penstock.wire.codec.frame import PLAIN_OF, SERVER_MAGICS, Frame, opcode_name, status_name
from penstock.wire.codec.layout import PRIVATE, Code, Message, decode, forms_of, layout_of
from penstock.wire.codec.opcodes import DraftCode, Magic, Opcode, UprOpcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages import dcp, dcp_values, kv, observe, sasl, subdoc, system_event, tap, upr
from penstock.wire.messages.frame_info import Durability, unpack_request_infos, unpack_response_infos

ENUMS: dict[str, EnumType] = {
    name: kind
    for module in (opcodes, statuses, flags, constants)
    for name, kind in vars(module).items()
    if isinstance(kind, EnumType) and kind.__module__ == module.__name__
}
"""The enums of the protocol family by name, in the order of the page docs/protocol.md."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a frame says.

    fields: those of the extras and what the value or the engine-private data is made of, in the order of the bytes.
    Flags are tuples of names, enums names, or numbers where they have none. parts: what else there is, as bytes: key,
    value, framing, engine_private; of a frame that is not understood also extras. Of what is secret there are only
    the lengths, as fields. status: of a response, its name.
    datatype: names, as of flags. fault: why the frame is not the message that its opcode says; None if it is.
    unknown: no such opcode is declared.
    """

    name: str
    reply: bool
    vbucket: int | None
    status: str | None
    datatype: tuple[str, ...]
    fields: Mapping[str, Any]
    parts: Mapping[str, bytes]
    fault: str | None = None
    unknown: bool = False


def describe(frame: Frame, dialect: Dialect) -> Description:
    """Return what a frame says in a dialect. Raises nothing: what does not fit is a fault."""
    code = code_of(frame, dialect)
    reply = PLAIN_OF[frame.magic] is Magic.RESPONSE
    status = None if isinstance(code, DraftCode) or not reply else status_name(frame.specific)
    found: dict[str, Any] = {}
    parts = {"framing": frame.framing, "extras": frame.extras, "key": frame.key, "value": frame.value}
    fault, unknown = None, code is None
    if code is not None:
        try:
            message = decode(frame, dialect)
            found = {each.name: readable(each, getattr(message, each.name)) for each in wire_fields(type(message))}
            parts = _parts(message)
            found |= _framing(reply, parts) | _insides(code, message, parts) | _xattrs(message, parts)
        except RemoteProtocolError as error:
            fault = str(error)
        if code in sasl.SECRETS:
            found |= _hidden(parts, ("value",) if fault is None else (*parts,))
    return Description(
        name=_name(frame, code),
        reply=reply,
        vbucket=frame.specific if status is None else None,
        status=status,
        datatype=() if isinstance(code, DraftCode) else named(Datatype, frame.datatype),
        fields=found,
        parts={name: content for name, content in parts.items() if content},
        fault=fault,
        unknown=unknown,
    )


def fitting(frame: Frame) -> Dialect:
    """Return the dialect that a frame out of the middle of a conversation has most likely.

    That is the first one in which the frame is a message: DCP, UPR, the draft. DCP if it is one in none of them.
    """
    for dialect in (Dialect.DCP, Dialect.UPR, Dialect.UPR_DRAFT):
        try:
            layout_of(frame, dialect).check(frame)
        except RemoteProtocolError:
            continue
        return dialect
    return Dialect.DCP


def code_of(frame: Frame, dialect: Dialect) -> Code | None:
    """Return what names a frame's message in a dialect, None if nothing does."""
    forms = forms_of(frame, dialect)
    if forms is None:
        return None
    kind = type(next(iter(forms.values())).cls.opcode)
    return kind(frame.opcode << 8 | frame.datatype if kind is DraftCode else frame.opcode)


def _name(frame: Frame, code: Code | None) -> str:
    if code is None:
        # What a server asks of its own accord has opcodes of another table.
        return f"server opcode 0x{frame.opcode:02x}" if frame.magic in SERVER_MAGICS else opcode_name(frame.opcode)
    if code is DraftCode.DRAFT_NOT_MY_VBUCKET and frame.value:
        return "DRAFT_FAILOVER_LOG"
    return code.name


_WIRE_FIELDS: dict[type[Message], tuple[Field[Any], ...]] = {}


def wire_fields(message: type[Message]) -> tuple[Field[Any], ...]:
    """Return the fields of a message's extras and of its value, in the order of the bytes."""
    if message not in _WIRE_FIELDS:
        declared = [each for each in fields(message) if "within" in each.metadata]
        _WIRE_FIELDS[message] = tuple(sorted(declared, key=lambda each: each.metadata["within"] == "value"))
    return _WIRE_FIELDS[message]


def enum_of(doc: str) -> type[IntEnum] | type[IntFlag] | None:
    """Return the enum that a field's documentation names, which is what its numbers mean."""
    for word in re.findall(r"\b[A-Z][a-z]\w+", doc):
        found = ENUMS.get(word)
        if found is not None and issubclass(found, IntEnum | IntFlag):
            return found
    return None


_enum_of = lru_cache(maxsize=None)(enum_of)


def readable(declared: Field[Any], number: int | None) -> Any:
    """Return a field's number as what it means: a name, a tuple of flags' names, or as it is."""
    kind = None if number is None else _enum_of(declared.metadata["doc"])
    return number if kind is None or number is None else named(kind, number)


def named(kind: type[IntEnum] | type[IntFlag], number: int) -> Any:
    """Return a number's name, for flags a tuple of names; what has no name stays a number."""
    if issubclass(kind, IntFlag):
        known = [flag for flag in kind if flag & number]
        rest = number & ~sum(known)
        return (*(str(flag.name) for flag in known), *([f"0x{rest:x}"] if rest else []))
    return kind(number).name if number in kind._value2member_map_ else number


def _parts(message: Message) -> dict[str, bytes]:
    parts = {"framing": message.framing, PRIVATE: getattr(message, PRIVATE, b"")}
    return parts | {"key": message.key, "value": message.value}


def _hidden(parts: dict[str, bytes], names: tuple[str, ...]) -> dict[str, int]:
    """Take parts away and return how long they were. Where lengths are wrong, the secret may be in any part."""
    return {f"{name}_bytes": len(content) for name in names if (content := parts.pop(name, b""))}


# What stands in values and engine-private data

Reader = Callable[[Any], Mapping[str, Any] | None]
"""Makes fields of a message's part; None where this message has none there. Raises RemoteProtocolError."""

_U64 = Struct(">Q")
_REV_SEQNO_AND_NRU = Struct(">QB")


def _integer(name: str, part: str = "value") -> Reader:
    def read(message: Message) -> Mapping[str, Any] | None:
        content: bytes = getattr(message, part)
        return {name: int.from_bytes(content, "big")} if len(content) == _U64.size else None

    return read


def _private_enum(name: str, kind: type[IntEnum]) -> Reader:
    def read(message: Any) -> Mapping[str, Any] | None:
        content: bytes = message.engine_private
        return {name: named(kind, int.from_bytes(content, "big"))} if len(content) == 4 else None

    return read


def _failover_log(message: Message) -> Mapping[str, Any] | None:
    if not message.value:
        return None
    return {"failover_log": [entry._asdict() for entry in kv.unpack_failover_log(message.value)]}


def _on_success(read: Reader) -> Reader:
    return lambda message: read(message) if message.status == Status.SUCCESS else None


def _stream_reply(message: Any) -> Mapping[str, Any] | None:
    if message.status == Status.ROLLBACK:
        return {"rollback_seqno": dcp.unpack_rollback(message.value)}
    return _failover_log(message) if message.status == Status.SUCCESS else None


def _upr_stream_reply(message: upr.UprStreamReply) -> Mapping[str, Any] | None:
    if message.status != Status.ROLLBACK or message.rollback_seqno is not None:
        return None
    return {"rollback_seqno": dcp.unpack_rollback(message.value)}


def _vb_seqnos(message: Message) -> Mapping[str, Any]:
    seqnos = kv.unpack_vb_seqnos(message.value)
    return {"seqnos": [{"vbucket": vbucket, "seqno": seqno} for vbucket, seqno in seqnos.items()]}


def _features(message: Message) -> Mapping[str, Any]:
    return {"features": [named(Feature, feature) for feature in kv.unpack_features(message.value)]}


def _observed(message: Message) -> Mapping[str, Any]:
    return kv.unpack_observed(message.value)._asdict()


def _keys(message: Message) -> Mapping[str, Any]:
    return {"keys": [asked._asdict() for asked in observe.unpack_keys(message.value)]}


def _observed_keys(message: Message) -> Mapping[str, Any]:
    found = observe.unpack_observed_keys(message.value)
    return {"keys": [each._asdict() | {"state": named(KeyState, each.state)} for each in found]}


def _tap_options(message: tap.TapConnect) -> Mapping[str, Any]:
    options = tap.unpack_options(message.flags or 0, message.value)
    said: dict[str, Any] = {"backfill": options.backfill, "vbuckets": options.vbuckets}
    if options.checkpoints is not None:
        said["checkpoints"] = _checkpoints(options.checkpoints)
    return said | {"closed_only": options.closed_only}


def _checkpoints(pairs: tuple[tuple[int, int], ...]) -> list[dict[str, int]]:
    return [{"vbucket": vbucket, "checkpoint_id": checkpoint} for vbucket, checkpoint in pairs]


def _vb_filter(message: Message) -> Mapping[str, Any]:
    return {"checkpoints": _checkpoints(tap.unpack_checkpoints(message.value))}


def _tap_mutation(message: tap.TapMutation) -> Mapping[str, Any] | None:
    if len(message.engine_private) != _REV_SEQNO_AND_NRU.size:
        return _integer("rev_seqno", PRIVATE)(message)
    rev_seqno, nru = _REV_SEQNO_AND_NRU.unpack(message.engine_private)
    return {"rev_seqno": rev_seqno, "nru": nru}


def _system_event(message: dcp.SystemEvent) -> Mapping[str, Any]:
    about = system_event.unpack_system_event(message.event, message.version, message.key, message.value)
    return {name: said for name, said in about._asdict().items() if name != "name"}


def _cached(message: Message) -> Mapping[str, Any]:
    return {"documents": [document._asdict() for document in dcp_values.unpack_cached(message.value)]}


def _key_list(message: Message) -> Mapping[str, Any]:
    return {"keys": [{"key": key} for key in kv.unpack_key_list(message.value)]}


def _one_path(message: subdoc.SubdocLookup | subdoc.SubdocMutation) -> Mapping[str, Any]:
    return {"path": message.path} | ({"content": message.content} if message.content else {})


def _lookups(message: Message) -> Mapping[str, Any]:
    return {"operations": [_operation(spec) for spec in subdoc.unpack_lookup_specs(message.value)]}


def _mutations(message: Message) -> Mapping[str, Any]:
    return {"operations": [_operation(spec) for spec in subdoc.unpack_mutation_specs(message.value)]}


def _operation(spec: subdoc.LookupSpec | subdoc.MutationSpec) -> dict[str, Any]:
    told = {"opcode": opcode_name(spec.opcode), "flags": named(PathFlag, spec.flags)}
    return spec._asdict() | told


def _with_results(read: Reader) -> Reader:
    return lambda message: read(message) if message.status in subdoc.RESULTS else None


def _found(message: Message) -> Mapping[str, Any]:
    return {"results": [_result(each) for each in subdoc.unpack_lookup_results(message.value)]}


def _changed(message: Message) -> Mapping[str, Any]:
    return {"results": [_result(each) for each in subdoc.unpack_mutation_results(message.value)]}


def _result(result: subdoc.LookupResult | subdoc.MutationResult) -> dict[str, Any]:
    return result._asdict() | {"status": status_name(result.status)}


_ASKED, _SAID = Magic.REQUEST, Magic.RESPONSE

INSIDES: dict[tuple[Magic, Code], tuple[tuple[str, Reader], ...]] = {
    (_ASKED, Opcode.TAP_CONNECT): (("value", _tap_options),),
    (_ASKED, Opcode.TAP_MUTATION): ((PRIVATE, _tap_mutation),),
    (_ASKED, Opcode.TAP_DELETE): ((PRIVATE, _integer("rev_seqno", PRIVATE)),),
    (_ASKED, Opcode.TAP_OPAQUE): ((PRIVATE, _private_enum("command", TapOpaque)),),
    (_ASKED, Opcode.TAP_VBUCKET_SET): ((PRIVATE, _private_enum("state", VbucketState)),),
    (_ASKED, Opcode.TAP_CHECKPOINT_START): (
        (PRIVATE, _integer("max_deleted_rev_seqno", PRIVATE)),
        ("value", _integer("checkpoint_id")),
    ),
    (_ASKED, Opcode.TAP_CHECKPOINT_END): (("value", _integer("checkpoint_id")),),
    (_ASKED, Opcode.CHANGE_VB_FILTER): (("value", _vb_filter),),
    (_SAID, Opcode.LAST_CLOSED_CHECKPOINT): (("value", _on_success(_integer("checkpoint_id"))),),
    (_SAID, UprOpcode.UPR_STREAM_REQ): (("value", _upr_stream_reply),),
    (_SAID, UprOpcode.UPR_GET_FAILOVER_LOG): (("value", _on_success(_failover_log)),),
    (_SAID, DraftCode.DRAFT_NOT_MY_VBUCKET): (("value", _failover_log),),
    (_SAID, Opcode.DCP_STREAM_REQ): (("value", _stream_reply),),
    (_SAID, Opcode.DCP_GET_FAILOVER_LOG): (("value", _on_success(_failover_log)),),
    (_SAID, Opcode.GET_FAILOVER_LOG): (("value", _on_success(_failover_log)),),
    (_SAID, Opcode.GET_ALL_VB_SEQNOS): (("value", _on_success(_vb_seqnos)),),
    (_ASKED, Opcode.DCP_SYSTEM_EVENT): (("value", _system_event),),
    (_ASKED, Opcode.DCP_CACHE_TRANSFER): (("value", _cached),),
    (_ASKED, Opcode.HELLO): (("value", _features),),
    (_SAID, Opcode.HELLO): (("value", _on_success(_features)),),
    (_ASKED, Opcode.OBSERVE_SEQNO): (("value", _integer("vbuuid")),),
    (_SAID, Opcode.OBSERVE_SEQNO): (("value", _on_success(_observed)),),
    (_SAID, Opcode.INCREMENT): (("value", _on_success(_integer("number"))),),
    (_SAID, Opcode.INCREMENTQ): (("value", _on_success(_integer("number"))),),
    (_SAID, Opcode.DECREMENT): (("value", _on_success(_integer("number"))),),
    (_SAID, Opcode.DECREMENTQ): (("value", _on_success(_integer("number"))),),
    (_ASKED, Opcode.OBSERVE): (("value", _keys),),
    (_SAID, Opcode.OBSERVE): (("value", _on_success(_observed_keys)),),
    (_SAID, Opcode.GET_KEYS): (("value", _on_success(_key_list)),),
    **{(_ASKED, opcode): (("value", _one_path),) for opcode in subdoc.WITH_ONE_PATH},
    (_ASKED, Opcode.SUBDOC_MULTI_LOOKUP): (("value", _lookups),),
    (_ASKED, Opcode.SUBDOC_MULTI_MUTATION): (("value", _mutations),),
    (_SAID, Opcode.SUBDOC_MULTI_LOOKUP): (("value", _with_results(_found)),),
    (_SAID, Opcode.SUBDOC_MULTI_MUTATION): (("value", _with_results(_changed)),),
}
"""By direction and code: which parts are made of what. A part that was read so is left out of the bytes."""

_INSIDES = {(magic, type(code), code): readers for (magic, code), readers in INSIDES.items()}
"""With the kind of code: UPR's stream request and DCP's OPEN are the same number."""


def _insides(code: Code, message: Message, parts: dict[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part, read in _INSIDES.get((message.magic, type(code), code), ()):
        inside = read(message)
        if inside is not None:
            found |= inside
            del parts[part]
    return found


def _framing(reply: bool, parts: dict[str, bytes]) -> dict[str, Any]:
    """Return what framing extras say, where all their elements are known."""
    known: type[IntEnum] = ResponseFrameInfo if reply else FrameInfoId
    elements = dcp_values.unpack_framing(parts["framing"])
    if not elements or any(element.id not in known._value2member_map_ for element in elements):
        return {}
    framing = parts.pop("framing")
    infos = unpack_response_infos(framing) if reply else unpack_request_infos(framing)
    return {name: _told(said) for name, said in infos._asdict().items() if said != infos._field_defaults[name]}


def _told(said: Any) -> Any:
    if isinstance(said, Durability):
        return {"level": said.level.name, "timeout_ms": said.timeout_ms}
    return round(said, 1) if isinstance(said, float) else said


_XATTRS = int(Datatype.XATTR)
_XATTRS_AND_SNAPPY = int(Datatype.XATTR | Datatype.SNAPPY)


def _xattrs(message: Message, parts: dict[str, bytes]) -> dict[str, Any]:
    """Return the extended attributes of a document, unless they are compressed with it."""
    if message.datatype & _XATTRS_AND_SNAPPY != _XATTRS or not parts.get("value"):
        return {}
    xattrs, parts["value"] = dcp_values.unpack_xattrs(parts["value"])
    return {"xattrs": xattrs}
