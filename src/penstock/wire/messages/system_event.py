"""Contents of SYSTEM_EVENT: events of collections and scopes, in all versions of the message.

Versions 0 and 1 have fixed fields; the name is the message's key. Version 2 is a FlatBuffers table, for consumers that
asked for it, with more fields. Source: kv_engine docs/dcp, commands/system_event.md; system_event_types.h;
events.fbs, whose order of fields is that of the slots here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

import flatbuffers
from flatbuffers import number_types
from flatbuffers.table import Table

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.constants import SystemEventKind


class CreatedCollection(NamedTuple):
    """A collection began, or was changed.

    Attributes:
        manifest_uid: uid of the manifest with this change.
        scope_id: id of its scope.
        collection_id: its id.
        name: its name.
        max_ttl: seconds; None: the collection has no limit of its own.
        history: whether change history is kept.
        default_mvs: highest visible seqno of the default collection: its highest seqno that is not a prepare.
        metered: whether use of the collection is metered.
        flush_uid: uid of the manifest that last emptied the collection.
    """

    manifest_uid: int
    scope_id: int
    collection_id: int
    name: str
    max_ttl: int | None = None
    history: bool = False
    default_mvs: int = 0
    metered: bool = False
    flush_uid: int = 0


class DroppedCollection(NamedTuple):
    """A collection was dropped."""

    manifest_uid: int
    scope_id: int
    collection_id: int
    system: bool = False


class CreatedScope(NamedTuple):
    """A scope was created."""

    manifest_uid: int
    scope_id: int
    name: str


class DroppedScope(NamedTuple):
    """A scope was dropped."""

    manifest_uid: int
    scope_id: int
    system: bool = False


Subject = CreatedCollection | DroppedCollection | CreatedScope | DroppedScope


class PackedEvent(NamedTuple):
    """The fields of a SystemEvent message that depend on the event's contents."""

    version: int
    key: bytes
    value: bytes


FLATBUFFERS = 2

_KINDS: dict[int, type[Subject]] = {
    SystemEventKind.COLLECTION_BEGIN: CreatedCollection,
    SystemEventKind.COLLECTION_END: DroppedCollection,
    SystemEventKind.SCOPE_CREATE: CreatedScope,
    SystemEventKind.SCOPE_DROP: DroppedScope,
    SystemEventKind.COLLECTION_MODIFY: CreatedCollection,
}

_FIXED: dict[tuple[int, int], tuple[Struct, tuple[str, ...]]] = {
    (SystemEventKind.COLLECTION_BEGIN, 0): (Struct(">QII"), ("manifest_uid", "scope_id", "collection_id")),
    (SystemEventKind.COLLECTION_BEGIN, 1): (Struct(">QIII"), ("manifest_uid", "scope_id", "collection_id", "max_ttl")),
    (SystemEventKind.COLLECTION_END, 0): (Struct(">QII"), ("manifest_uid", "scope_id", "collection_id")),
    (SystemEventKind.SCOPE_CREATE, 0): (Struct(">QI"), ("manifest_uid", "scope_id")),
    (SystemEventKind.SCOPE_DROP, 0): (Struct(">QI"), ("manifest_uid", "scope_id")),
}
"""(kind, version) -> the numbers in the value, and their names."""

_U64, _U32, _BOOL, _TEXT = "Uint64", "Uint32", "Bool", "text"
_SLOTS: dict[type[Subject], tuple[tuple[str, str], ...]] = {
    CreatedCollection: (
        ("manifest_uid", _U64),
        ("scope_id", _U32),
        ("collection_id", _U32),
        ("ttl_valid", _BOOL),
        ("max_ttl", _U32),
        ("name", _TEXT),
        ("history", _BOOL),
        ("default_mvs", _U64),
        ("metered", _BOOL),
        ("flush_uid", _U64),
    ),
    DroppedCollection: (("manifest_uid", _U64), ("scope_id", _U32), ("collection_id", _U32), ("system", _BOOL)),
    CreatedScope: (("manifest_uid", _U64), ("scope_id", _U32), ("name", _TEXT)),
    DroppedScope: (("manifest_uid", _U64), ("scope_id", _U32), ("system", _BOOL)),
}
"""The slots of the tables, in order. A missing slot is 0, false or empty."""


def unpack_system_event(event: int, version: int, key: bytes, value: bytes) -> Subject:
    """Return the collection or scope of a SystemEvent message.

    Raises:
        RemoteProtocolError: the event or version is unknown, or key or value do not match the version; not fatal.
    """
    kind = _KINDS.get(event)
    form = _FIXED.get((event, version))
    if kind is None or (form is None and version != FLATBUFFERS):
        raise _make_error(event, f"version {version} is not known")
    fields: dict[str, Any]
    if form is None:
        fields = _read_table(event, kind, value)
    else:
        numbers, names = form
        if len(value) != numbers.size:
            raise _make_error(event, f"value of {len(value)} bytes, expected {numbers.size} in version {version}")
        fields = dict(zip(names, numbers.unpack(value), strict=True))
    if "name" not in kind._fields:
        return kind(**fields)
    try:
        return kind(**{**fields, "name": fields.get("name") or key.decode()})
    except UnicodeDecodeError:
        raise _make_error(event, f"name {key[:40]!r} is not UTF-8") from None


def pack_system_event(event: int, subject: Subject, *, as_table: bool) -> PackedEvent:
    """Return the version, key and value of the message for `subject`. Data without a fixed field is left out.

    Args:
        event: a SystemEventKind.
        subject: the collection or scope.
        as_table: use version 2; otherwise the lowest version that can hold a time to live.

    Raises:
        LocalProtocolError: the event does not fit to the subject, exists only as a table (COLLECTION_MODIFY), or a
            number is out of its range.
    """
    if _KINDS.get(event) is not type(subject):
        raise LocalProtocolError(f"system event {event} about a {type(subject).__name__}")
    fields = subject._asdict()
    key = fields.get("name", "").encode()
    if as_table:
        return PackedEvent(FLATBUFFERS, key, _write_table(event, subject, fields))
    version = int(fields.get("max_ttl") is not None)
    if (event, version) not in _FIXED:
        raise LocalProtocolError(f"system event {event} exists only as a table")
    numbers, names = _FIXED[event, version]
    try:
        return PackedEvent(version, key, numbers.pack(*(fields[name] for name in names)))
    except StructError as error:
        raise LocalProtocolError(f"system event {event}: {error}") from error


def _make_error(event: int, fault: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"system event {event}: {fault}", fatal=False)


def _read_table(event: int, kind: type[Subject], value: bytes) -> dict[str, Any]:
    # The library does not check offsets. Python checks each read, and slices end where the buffer does. Wrong offsets
    # therefore raise one of these errors, or read other bytes of the buffer.
    try:
        table = Table(value, int.from_bytes(value[:4], "little"))
        fields = {name: _read_slot(table, slot, code) for slot, (name, code) in enumerate(_SLOTS[kind])}
    except (StructError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise _make_error(
            event, f"value of {len(value)} bytes is not the table of a {kind.__name__}: {error}"
        ) from error
    if not fields.pop("ttl_valid", True):
        fields["max_ttl"] = None
    return fields


def _read_slot(table: Any, slot: int, code: str) -> Any:
    at = table.Offset(4 + 2 * slot)
    if code == _TEXT:
        return table.String(at + table.Pos).decode() if at else ""
    flags = getattr(number_types, f"{code}Flags")
    return table.Get(flags, at + table.Pos) if at else flags.py_type(0)


def _write_table(event: int, subject: Subject, given: Mapping[str, Any]) -> bytes:
    """Return a table. The library takes 65 us to lay one out, so tables of the same shape are laid out once.

    Raises:
        LocalProtocolError: a number is out of its range.
    """
    fields = {**given, "ttl_valid": given.get("max_ttl") is not None, "max_ttl": given.get("max_ttl") or 0}
    if "name" in fields:
        fields["name"] = fields["name"].encode()
    slots = _SLOTS[type(subject)]
    shape = tuple(len(fields[field]) if code == _TEXT else fields[field] != 0 for field, code in slots)
    layout = _lay_out(event, shape)
    table = bytearray(layout.table)
    try:
        for field, number, at in layout.numbers:
            number.pack_into(table, at, fields[field])
    except StructError as error:
        raise LocalProtocolError(f"system event {event}: {error}") from error
    if layout.name_at:
        table[layout.name_at : layout.name_at + len(fields["name"])] = fields["name"]
    return bytes(table)


class _Layout(NamedTuple):
    """A table whose fields are to be written.

    Attributes:
        table: the bytes, with other values in the fields.
        numbers: name, format and offset of each number.
        name_at: offset of the name, 0 without.
    """

    table: bytes
    numbers: tuple[tuple[str, Struct, int], ...]
    name_at: int


@lru_cache(maxsize=1024)
def _lay_out(event: int, shape: tuple[int, ...]) -> _Layout:
    """Return the layout of a table.

    Args:
        event: a SystemEventKind.
        shape: for each slot whether it is there, for the name its length.
    """
    slots = _SLOTS[_KINDS[event]]
    builder = flatbuffers.Builder(256)
    lengths = [length for length, (_, code) in zip(shape, slots, strict=True) if code == _TEXT]
    name = builder.CreateString("x" * lengths[0]) if lengths else 0
    builder.StartObject(len(slots))
    for slot, ((_, code), value) in enumerate(zip(slots, shape, strict=True)):
        if code == _TEXT:
            builder.PrependUOffsetTRelativeSlot(slot, name, 0)
        else:
            getattr(builder, f"Prepend{code}Slot")(slot, int(value), 0)
    builder.Finish(builder.EndObject())
    data = bytes(builder.Output())
    table = Table(data, int.from_bytes(data[:4], "little"))
    numbers, name_at = [], 0
    for slot, (field, code) in enumerate(slots):
        at = table.Offset(4 + 2 * slot) + table.Pos
        if at == table.Pos:
            continue
        if code == _TEXT:
            name_at = at + int.from_bytes(data[at : at + 4], "little") + 4  # after the length
        else:
            numbers.append((field, getattr(number_types, f"{code}Flags").packer_type, at))
    return _Layout(data, tuple(numbers), name_at)
