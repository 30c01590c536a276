"""Commands about storage: the persistence of documents, compaction, parameters, and stopped persistence.

Source: memcached protocol_binary.h and kv_engine docs/BinaryProtocol.md, "Observe" and "Compact Database"; the others:
kv_engine mcbp_validators.cc.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.layout import MAYBE, PRESENT, Request, Response, message, u8, u16, u32, u64
from penstock.wire.codec.opcodes import Opcode


@message(Opcode.OBSERVE, value=PRESENT)
class Observe(Request):
    """Ask for the persistence of documents.

    The value has for each document its vbucket u16, the length of its key u16, and its key.
    """


@message(Opcode.OBSERVE, key=MAYBE, value=MAYBE, cas=MAYBE)
class ObserveReply(Response):
    """The request's value, with the document's state (a KeyState, u8) and its cas (u64) after each key.

    The upper half of the header's cas is the expected time of a write to disk, in milliseconds.
    """


@message(Opcode.COMPACT_DB)
class CompactDb(Request):
    """Rewrite the files on disk without obsolete versions and old tombstones. Answered after the rewrite.

    Sent for one vbucket: the first servers with this command had a file for each.
    """

    purge_before_ts: int = u64("also drop deletions from before this epoch second", default=0)
    purge_before_seqno: int = u64("purge_before_ts applies only up to this seqno; 0: to any seqno", default=0)
    drop_deletes: int = u8("1: drop every deletion, however new", default=0)
    padding: int = u8("0", default=0)
    db_file_id: int = u16("the vbucket again, or 0", default=0)
    more_padding: int = u32("0", default=0)

    def fault(self) -> str | None:
        """Return the fault of a padding or of drop_deletes, None if they are valid."""
        if self.padding or self.more_padding:
            return f"padding of 0x{self.padding:x} and 0x{self.more_padding:x}, expected 0"
        return None if self.drop_deletes <= 1 else f"drop_deletes {self.drop_deletes}, expected 0 or 1"


@message(Opcode.STOP_PERSISTENCE)
class StopPersistence(Request):
    """Write no more changes of the selected bucket to disk. A crash loses the changes that come after the reply."""


@message(Opcode.START_PERSISTENCE)
class StartPersistence(Request):
    """Write changes to disk again, beginning with those after STOP_PERSISTENCE."""


@message(Opcode.SET_PARAM, key=PRESENT, value=PRESENT)
class SetParam(Request):
    """Set a parameter of the selected bucket until the node stops. The key is its name, the value its text."""

    type: int = u32("a ParamType")


@message(Opcode.EVICT_KEY, key=PRESENT)
class EvictKey(Request):
    """Remove the value of a document from memory, if it is on disk. Answered with the outcome, as text."""


@message(
    *(Opcode.COMPACT_DB, Opcode.STOP_PERSISTENCE, Opcode.START_PERSISTENCE, Opcode.SET_PARAM, Opcode.EVICT_KEY),
    key=MAYBE,
    value=MAYBE,
    cas=MAYBE,
)
class StorageReply(Response):
    """The status is the outcome of the request."""


class RequestedKey(NamedTuple):
    """A document in an OBSERVE request."""

    vbucket: int
    key: bytes


class ObservedKey(NamedTuple):
    """The persistence of a document.

    Attributes:
        vbucket: its vbucket.
        key: its key.
        state: a KeyState, or an unknown number.
        cas: its cas.
    """

    vbucket: int
    key: bytes
    state: int
    cas: int


_HEAD = Struct(">HH")
_TAIL = Struct(">BQ")


def pack_keys(keys: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the value of an OBSERVE, given (vbucket, key)."""
    return b"".join(_HEAD.pack(vbucket, len(key)) + key for vbucket, key in keys)


def unpack_keys(value: bytes) -> list[RequestedKey]:
    """Return the documents in an OBSERVE.

    Raises:
        RemoteProtocolError: the value has a part of an entry (EINVAL, not fatal).
    """
    return [RequestedKey(vbucket, key) for vbucket, key, _ in _split_entries(value, 0)]


def pack_observed_keys(observed: Iterable[tuple[int, bytes, int, int]]) -> bytes:
    """Return the value of a reply to OBSERVE, given the fields of ObservedKey."""
    return b"".join(
        _HEAD.pack(vbucket, len(key)) + key + _TAIL.pack(state, cas) for vbucket, key, state, cas in observed
    )


def unpack_observed_keys(value: bytes) -> list[ObservedKey]:
    """Return the documents in a reply to OBSERVE.

    Raises:
        RemoteProtocolError: the value has a part of an entry (EINVAL, not fatal).
    """
    return [ObservedKey(vbucket, key, *_TAIL.unpack(tail)) for vbucket, key, tail in _split_entries(value, _TAIL.size)]


def _split_entries(value: bytes, tail: int) -> Iterable[tuple[int, bytes, bytes]]:
    """Yield vbucket, key and the `tail` bytes after the key of each entry.

    Yields:
        (vbucket, key, tail).

    Raises:
        RemoteProtocolError: the value has a part of an entry.
    """
    at = 0
    while at < len(value):
        try:
            vbucket, length = _HEAD.unpack_from(value, at)
        except StructError:
            raise _make_error(value, at) from None
        key_at, at = at + _HEAD.size, at + _HEAD.size + length + tail
        if at > len(value):
            raise _make_error(value, key_at - _HEAD.size)
        yield vbucket, value[key_at : key_at + length], value[key_at + length : at]


def _make_error(value: bytes, at: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"OBSERVE: of {len(value)} bytes, those from {at} on are a part of an entry", fatal=False
    )
