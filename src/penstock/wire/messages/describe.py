"""Describes a frame in readable terms: its name, and its fields as names, numbers, bytes and lists of these.

Layouts define the place of each field. The tables here define, for each message, the contents of its value and of its
engine-private data.
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
from penstock.wire.codec.frame import PLAIN_OF, SERVER_MAGICS, Frame, name_opcode, name_status
from penstock.wire.codec.layout import PRIVATE, Code, Message, decode_frame, find_forms, find_layout
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
    """The readable contents of a frame.

    Attributes:
        name: the name of the opcode.
        reply: whether it is a response.
        vbucket: the vbucket of a request.
        status: the name of a response's status.
        datatype: names of the datatype's bits.
        fields: the fields of the extras, then the contents of the value or the engine-private data, in the order of the
            bytes. Flags are tuples of names, enums names, or numbers where they have none. Secrets are lengths only.
        parts: the other parts, as bytes: key, value, framing, engine_private; for a frame with a fault also extras.
        fault: why the frame contradicts its opcode's layout; None if it does not.
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


def describe_frame(frame: Frame, dialect: Dialect) -> Description:
    """Return the readable contents of a frame in a dialect. It raises nothing: the description holds the fault."""
    code = find_code(frame, dialect)
    reply = PLAIN_OF[frame.magic] is Magic.RESPONSE
    status = None if isinstance(code, DraftCode) or not reply else name_status(frame.specific)
    found: dict[str, Any] = {}
    parts = {"framing": frame.framing, "extras": frame.extras, "key": frame.key, "value": frame.value}
    fault, unknown = None, code is None
    if code is not None:
        try:
            message = decode_frame(frame, dialect)
            found = {
                each.name: format_field(each, getattr(message, each.name)) for each in list_wire_fields(type(message))
            }
            parts = _list_parts(message)
            found |= (
                _read_framing(reply, parts) | _read_contents(code, message, parts) | _read_attributes(message, parts)
            )
        except RemoteProtocolError as error:
            fault = str(error)
        if code in sasl.SECRETS:
            found |= _hide_parts(parts, ("value",) if fault is None else (*parts,))
    return Description(
        name=_name_frame(frame, code),
        reply=reply,
        vbucket=frame.specific if status is None else None,
        status=status,
        datatype=() if isinstance(code, DraftCode) else format_number(Datatype, frame.datatype),
        fields=found,
        parts={name: content for name, content in parts.items() if content},
        fault=fault,
        unknown=unknown,
    )


def guess_dialect(frame: Frame) -> Dialect:
    """Return the most likely dialect of a frame from the middle of a conversation.

    That is the first of DCP, UPR and the draft in which the frame is a message; DCP if it is a message in none.
    """
    for dialect in (Dialect.DCP, Dialect.UPR, Dialect.UPR_DRAFT):
        try:
            find_layout(frame, dialect).check(frame)
        except RemoteProtocolError:
            continue
        return dialect
    return Dialect.DCP


def find_code(frame: Frame, dialect: Dialect) -> Code | None:
    """Return the code of a frame's message in a dialect, None if no such message is declared."""
    forms = find_forms(frame, dialect)
    if forms is None:
        return None
    kind = type(next(iter(forms.values())).cls.opcode)
    return kind(frame.opcode << 8 | frame.datatype if kind is DraftCode else frame.opcode)


def _name_frame(frame: Frame, code: Code | None) -> str:
    if code is None:
        # Requests of servers have opcodes of their own.
        return f"server opcode 0x{frame.opcode:02x}" if frame.magic in SERVER_MAGICS else name_opcode(frame.opcode)
    if code is DraftCode.DRAFT_NOT_MY_VBUCKET and frame.value:
        return "DRAFT_FAILOVER_LOG"
    return code.name


_WIRE_FIELDS: dict[type[Message], tuple[Field[Any], ...]] = {}


def list_wire_fields(message: type[Message]) -> tuple[Field[Any], ...]:
    """Return the fields of a message's extras and of its value, in the order of the bytes."""
    if message not in _WIRE_FIELDS:
        declared = [each for each in fields(message) if "within" in each.metadata]
        _WIRE_FIELDS[message] = tuple(sorted(declared, key=lambda each: each.metadata["within"] == "value"))
    return _WIRE_FIELDS[message]


def find_enum(doc: str) -> type[IntEnum] | type[IntFlag] | None:
    """Return the enum that a field's documentation names, None if it names none."""
    for word in re.findall(r"\b[A-Z][a-z]\w+", doc):
        found = ENUMS.get(word)
        if found is not None and issubclass(found, IntEnum | IntFlag):
            return found
    return None


_find_enum = lru_cache(maxsize=None)(find_enum)


def format_field(declared: Field[Any], number: int | None) -> Any:
    """Return a field's number in readable form: a name, a tuple of flags' names, or the number."""
    kind = None if number is None else _find_enum(declared.metadata["doc"])
    return number if kind is None or number is None else format_number(kind, number)


def format_number(kind: type[IntEnum] | type[IntFlag], number: int) -> Any:
    """Return a number's name in an enum, for flags a tuple of names. A number without a name is returned as it is."""
    if issubclass(kind, IntFlag):
        known = [flag for flag in kind if flag & number]
        rest = number & ~sum(known)
        return (*(str(flag.name) for flag in known), *([f"0x{rest:x}"] if rest else []))
    return kind(number).name if number in kind._value2member_map_ else number


def _list_parts(message: Message) -> dict[str, bytes]:
    parts = {"framing": message.framing, PRIVATE: getattr(message, PRIVATE, b"")}
    return parts | {"key": message.key, "value": message.value}


def _hide_parts(parts: dict[str, bytes], names: tuple[str, ...]) -> dict[str, int]:
    """Return the lengths of secret parts, and remove them. If the frame's lengths are wrong, any part may be secret."""
    return {f"{name}_bytes": len(content) for name in names if (content := parts.pop(name, b""))}


# Contents of values and engine-private data

Reader = Callable[[Any], Mapping[str, Any] | None]
"""Reads fields from a part of a message; None if this message has none there. Raises RemoteProtocolError."""

_U64 = Struct(">Q")
_REV_SEQNO_AND_NRU = Struct(">QB")


def _integer_reader(name: str, part: str = "value") -> Reader:
    def read(message: Message) -> Mapping[str, Any] | None:
        content: bytes = getattr(message, part)
        return {name: int.from_bytes(content, "big")} if len(content) == _U64.size else None

    return read


def _private_enum_reader(name: str, kind: type[IntEnum]) -> Reader:
    def read(message: Any) -> Mapping[str, Any] | None:
        content: bytes = message.engine_private
        return {name: format_number(kind, int.from_bytes(content, "big"))} if len(content) == 4 else None

    return read


def _read_failover_log(message: Message) -> Mapping[str, Any] | None:
    if not message.value:
        return None
    return {"failover_log": [entry._asdict() for entry in kv.unpack_failover_log(message.value)]}


def _success_reader(read: Reader) -> Reader:
    return lambda message: read(message) if message.status == Status.SUCCESS else None


def _read_stream_reply(message: Any) -> Mapping[str, Any] | None:
    if message.status == Status.ROLLBACK:
        return {"rollback_seqno": dcp.unpack_rollback(message.value)}
    return _read_failover_log(message) if message.status == Status.SUCCESS else None


def _read_upr_stream_reply(message: upr.UprStreamReply) -> Mapping[str, Any] | None:
    if message.status != Status.ROLLBACK or message.rollback_seqno is not None:
        return None
    return {"rollback_seqno": dcp.unpack_rollback(message.value)}


def _read_vb_seqnos(message: Message) -> Mapping[str, Any]:
    seqnos = kv.unpack_vb_seqnos(message.value)
    return {"seqnos": [{"vbucket": vbucket, "seqno": seqno} for vbucket, seqno in seqnos.items()]}


def _read_features(message: Message) -> Mapping[str, Any]:
    return {"features": [format_number(Feature, feature) for feature in kv.unpack_features(message.value)]}


def _read_observed(message: Message) -> Mapping[str, Any]:
    return kv.unpack_observed(message.value)._asdict()


def _read_keys(message: Message) -> Mapping[str, Any]:
    return {"keys": [asked._asdict() for asked in observe.unpack_keys(message.value)]}


def _read_observed_keys(message: Message) -> Mapping[str, Any]:
    found = observe.unpack_observed_keys(message.value)
    return {"keys": [each._asdict() | {"state": format_number(KeyState, each.state)} for each in found]}


def _read_tap_options(message: tap.TapConnect) -> Mapping[str, Any]:
    options = tap.unpack_tap_options(message.flags or 0, message.value)
    found: dict[str, Any] = {"backfill": options.backfill, "vbuckets": options.vbuckets}
    if options.checkpoints is not None:
        found["checkpoints"] = _list_checkpoints(options.checkpoints)
    return found | {"closed_only": options.closed_only}


def _list_checkpoints(pairs: tuple[tuple[int, int], ...]) -> list[dict[str, int]]:
    return [{"vbucket": vbucket, "checkpoint_id": checkpoint} for vbucket, checkpoint in pairs]


def _read_vb_filter(message: Message) -> Mapping[str, Any]:
    return {"checkpoints": _list_checkpoints(tap.unpack_checkpoints(message.value))}


def _read_tap_mutation(message: tap.TapMutation) -> Mapping[str, Any] | None:
    if len(message.engine_private) != _REV_SEQNO_AND_NRU.size:
        return _integer_reader("rev_seqno", PRIVATE)(message)
    rev_seqno, nru = _REV_SEQNO_AND_NRU.unpack(message.engine_private)
    return {"rev_seqno": rev_seqno, "nru": nru}


def _read_system_event(message: dcp.SystemEvent) -> Mapping[str, Any]:
    about = system_event.unpack_system_event(message.event, message.version, message.key, message.value)
    return {name: content for name, content in about._asdict().items() if name != "name"}


def _read_cached_documents(message: Message) -> Mapping[str, Any]:
    return {"documents": [document._asdict() for document in dcp_values.unpack_cached_documents(message.value)]}


def _read_key_list(message: Message) -> Mapping[str, Any]:
    return {"keys": [{"key": key} for key in kv.unpack_key_list(message.value)]}


def _read_path(message: subdoc.SubdocLookup | subdoc.SubdocMutation) -> Mapping[str, Any]:
    return {"path": message.path} | ({"content": message.content} if message.content else {})


def _read_lookups(message: Message) -> Mapping[str, Any]:
    return {"operations": [_describe_operation(spec) for spec in subdoc.unpack_lookup_specs(message.value)]}


def _read_mutations(message: Message) -> Mapping[str, Any]:
    return {"operations": [_describe_operation(spec) for spec in subdoc.unpack_mutation_specs(message.value)]}


def _describe_operation(spec: subdoc.LookupSpec | subdoc.MutationSpec) -> dict[str, Any]:
    names = {"opcode": name_opcode(spec.opcode), "flags": format_number(PathFlag, spec.flags)}
    return spec._asdict() | names


def _results_reader(read: Reader) -> Reader:
    return lambda message: read(message) if message.status in subdoc.RESULTS else None


def _read_lookup_results(message: Message) -> Mapping[str, Any]:
    return {"results": [_describe_result(each) for each in subdoc.unpack_lookup_results(message.value)]}


def _read_mutation_results(message: Message) -> Mapping[str, Any]:
    return {"results": [_describe_result(each) for each in subdoc.unpack_mutation_results(message.value)]}


def _describe_result(result: subdoc.LookupResult | subdoc.MutationResult) -> dict[str, Any]:
    return result._asdict() | {"status": name_status(result.status)}


_REQUEST, _RESPONSE = Magic.REQUEST, Magic.RESPONSE

CONTENT_READERS: dict[tuple[Magic, Code], tuple[tuple[str, Reader], ...]] = {
    (_REQUEST, Opcode.TAP_CONNECT): (("value", _read_tap_options),),
    (_REQUEST, Opcode.TAP_MUTATION): ((PRIVATE, _read_tap_mutation),),
    (_REQUEST, Opcode.TAP_DELETE): ((PRIVATE, _integer_reader("rev_seqno", PRIVATE)),),
    (_REQUEST, Opcode.TAP_OPAQUE): ((PRIVATE, _private_enum_reader("command", TapOpaque)),),
    (_REQUEST, Opcode.TAP_VBUCKET_SET): ((PRIVATE, _private_enum_reader("state", VbucketState)),),
    (_REQUEST, Opcode.TAP_CHECKPOINT_START): (
        (PRIVATE, _integer_reader("max_deleted_rev_seqno", PRIVATE)),
        ("value", _integer_reader("checkpoint_id")),
    ),
    (_REQUEST, Opcode.TAP_CHECKPOINT_END): (("value", _integer_reader("checkpoint_id")),),
    (_REQUEST, Opcode.CHANGE_VB_FILTER): (("value", _read_vb_filter),),
    (_RESPONSE, Opcode.LAST_CLOSED_CHECKPOINT): (("value", _success_reader(_integer_reader("checkpoint_id"))),),
    (_RESPONSE, UprOpcode.UPR_STREAM_REQ): (("value", _read_upr_stream_reply),),
    (_RESPONSE, UprOpcode.UPR_GET_FAILOVER_LOG): (("value", _success_reader(_read_failover_log)),),
    (_RESPONSE, DraftCode.DRAFT_NOT_MY_VBUCKET): (("value", _read_failover_log),),
    (_RESPONSE, Opcode.DCP_STREAM_REQ): (("value", _read_stream_reply),),
    (_RESPONSE, Opcode.DCP_GET_FAILOVER_LOG): (("value", _success_reader(_read_failover_log)),),
    (_RESPONSE, Opcode.GET_FAILOVER_LOG): (("value", _success_reader(_read_failover_log)),),
    (_RESPONSE, Opcode.GET_ALL_VB_SEQNOS): (("value", _success_reader(_read_vb_seqnos)),),
    (_REQUEST, Opcode.DCP_SYSTEM_EVENT): (("value", _read_system_event),),
    (_REQUEST, Opcode.DCP_CACHE_TRANSFER): (("value", _read_cached_documents),),
    (_REQUEST, Opcode.HELLO): (("value", _read_features),),
    (_RESPONSE, Opcode.HELLO): (("value", _success_reader(_read_features)),),
    (_REQUEST, Opcode.OBSERVE_SEQNO): (("value", _integer_reader("vbuuid")),),
    (_RESPONSE, Opcode.OBSERVE_SEQNO): (("value", _success_reader(_read_observed)),),
    (_RESPONSE, Opcode.INCREMENT): (("value", _success_reader(_integer_reader("number"))),),
    (_RESPONSE, Opcode.INCREMENTQ): (("value", _success_reader(_integer_reader("number"))),),
    (_RESPONSE, Opcode.DECREMENT): (("value", _success_reader(_integer_reader("number"))),),
    (_RESPONSE, Opcode.DECREMENTQ): (("value", _success_reader(_integer_reader("number"))),),
    (_REQUEST, Opcode.OBSERVE): (("value", _read_keys),),
    (_RESPONSE, Opcode.OBSERVE): (("value", _success_reader(_read_observed_keys)),),
    (_RESPONSE, Opcode.GET_KEYS): (("value", _success_reader(_read_key_list)),),
    **{(_REQUEST, opcode): (("value", _read_path),) for opcode in subdoc.WITH_ONE_PATH},
    (_REQUEST, Opcode.SUBDOC_MULTI_LOOKUP): (("value", _read_lookups),),
    (_REQUEST, Opcode.SUBDOC_MULTI_MUTATION): (("value", _read_mutations),),
    (_RESPONSE, Opcode.SUBDOC_MULTI_LOOKUP): (("value", _results_reader(_read_lookup_results)),),
    (_RESPONSE, Opcode.SUBDOC_MULTI_MUTATION): (("value", _results_reader(_read_mutation_results)),),
}
"""(direction, code) -> the parts with contents, each with its reader. Description.parts does not have such a part."""

_INSIDES = {(magic, type(code), code): readers for (magic, code), readers in CONTENT_READERS.items()}
"""The same by magic, kind of code, and code: UPR's stream request and DCP's OPEN are the same number."""


def _read_contents(code: Code, message: Message, parts: dict[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part, read in _INSIDES.get((message.magic, type(code), code), ()):
        inside = read(message)
        if inside is not None:
            found |= inside
            del parts[part]
    return found


def _read_framing(reply: bool, parts: dict[str, bytes]) -> dict[str, Any]:
    """Return the contents of framing extras if all their elements are known."""
    known: type[IntEnum] = ResponseFrameInfo if reply else FrameInfoId
    elements = dcp_values.unpack_framing(parts["framing"])
    if not elements or any(element.id not in known._value2member_map_ for element in elements):
        return {}
    framing = parts.pop("framing")
    infos = unpack_response_infos(framing) if reply else unpack_request_infos(framing)
    given = {name: info for name, info in infos._asdict().items() if info != infos._field_defaults[name]}
    return {name: _format_info(info) for name, info in given.items()}


def _format_info(info: Any) -> Any:
    if isinstance(info, Durability):
        return {"level": info.level.name, "timeout_ms": info.timeout_ms}
    return round(info, 1) if isinstance(info, float) else info


_XATTRS = int(Datatype.XATTR)
_XATTRS_AND_SNAPPY = int(Datatype.XATTR | Datatype.SNAPPY)


def _read_attributes(message: Message, parts: dict[str, bytes]) -> dict[str, Any]:
    """Return the extended attributes of a document, unless they are compressed with it."""
    if message.datatype & _XATTRS_AND_SNAPPY != _XATTRS or not parts.get("value"):
        return {}
    xattrs, parts["value"] = dcp_values.unpack_xattrs(parts["value"])
    return {"xattrs": xattrs}
