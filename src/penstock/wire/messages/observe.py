"""The commands about what is on disk: which documents are, making what is there smaller, and stopping persistence.

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
    """Ask how far documents have got. value: of each its vbucket u16, the length of its key u16, and its key."""


@message(Opcode.OBSERVE, key=MAYBE, value=MAYBE, cas=MAYBE)
class ObserveReply(Response):
    """The value that was sent, with the document's state, u8 a KeyState, and its cas, u64, behind each key.

    cas: how many milliseconds it takes until what is stored now is on disk, in the upper half.
    """


@message(Opcode.COMPACT_DB)
class CompactDb(Request):
    """Rewrite what is on disk without what does not count any more; answered when that is done.

    Sent for one vbucket, a file of its own on the servers that first had this.
    """

    purge_before_ts: int = u64("drop deletions from before this epoch second too", default=0)
    purge_before_seqno: int = u64("purge_before_ts applies only up to this seqno; 0: to any seqno", default=0)
    drop_deletes: int = u8("1: drop every deletion, however new", default=0)
    padding: int = u8("0", default=0)
    db_file_id: int = u16("the vbucket once more, or 0", default=0)
    more_padding: int = u32("0", default=0)

    def fault(self) -> str | None:
        if self.padding or self.more_padding:
            return f"padding of 0x{self.padding:x} and 0x{self.more_padding:x}, expected 0"
        return None if self.drop_deletes <= 1 else f"drop_deletes {self.drop_deletes}, expected 0 or 1"


@message(Opcode.STOP_PERSISTENCE)
class StopPersistence(Request):
    """Write no more changes of the selected bucket to disk. A crash loses the changes that come after the reply."""


@message(Opcode.START_PERSISTENCE)
class StartPersistence(Request):
    """Write changes to disk again, beginning with those that came after STOP_PERSISTENCE."""


@message(Opcode.SET_PARAM, key=PRESENT, value=PRESENT)
class SetParam(Request):
    """Set a parameter of the selected bucket until the node stops. key: its name; value: its value, as text."""

    type: int = u32("a ParamType")


@message(Opcode.EVICT_KEY, key=PRESENT)
class EvictKey(Request):
    """Remove the value of a document from memory, if it is on disk. Answered with what was done, as text."""


@message(
    *(Opcode.COMPACT_DB, Opcode.STOP_PERSISTENCE, Opcode.START_PERSISTENCE, Opcode.SET_PARAM, Opcode.EVICT_KEY),
    key=MAYBE,
    value=MAYBE,
    cas=MAYBE,
)
class StorageReply(Response):
    """The status says whether the request succeeded."""


class AskedKey(NamedTuple):
    """A document that is asked for."""

    vbucket: int
    key: bytes


class ObservedKey(NamedTuple):
    """How far a document has got. state: a KeyState, as it came."""

    vbucket: int
    key: bytes
    state: int
    cas: int


_HEAD = Struct(">HH")
_TAIL = Struct(">BQ")


def pack_keys(keys: Iterable[tuple[int, bytes]]) -> bytes:
    """keys: (vbucket, key)."""
    return b"".join(_HEAD.pack(vbucket, len(key)) + key for vbucket, key in keys)


def unpack_keys(value: bytes) -> list[AskedKey]:
    """Return what an OBSERVE asks for. Raises RemoteProtocolError (EINVAL, not fatal) for a part of a key."""
    return [AskedKey(vbucket, key) for vbucket, key, _ in _cut(value, 0)]


def pack_observed_keys(observed: Iterable[tuple[int, bytes, int, int]]) -> bytes:
    """observed: as ObservedKey."""
    return b"".join(
        _HEAD.pack(vbucket, len(key)) + key + _TAIL.pack(state, cas) for vbucket, key, state, cas in observed
    )


def unpack_observed_keys(value: bytes) -> list[ObservedKey]:
    """Raises RemoteProtocolError (EINVAL, not fatal) for a part of an entry."""
    return [ObservedKey(vbucket, key, *_TAIL.unpack(tail)) for vbucket, key, tail in _cut(value, _TAIL.size)]


def _cut(value: bytes, tail: int) -> Iterable[tuple[int, bytes, bytes]]:
    """Yield vbucket, key and the `tail` bytes behind it of each entry."""
    at = 0
    while at < len(value):
        try:
            vbucket, length = _HEAD.unpack_from(value, at)
        except StructError:
            raise _cut_off(value, at) from None
        key_at, at = at + _HEAD.size, at + _HEAD.size + length + tail
        if at > len(value):
            raise _cut_off(value, key_at - _HEAD.size)
        yield vbucket, value[key_at : key_at + length], value[key_at + length : at]


def _cut_off(value: bytes, at: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"OBSERVE: of {len(value)} bytes, those from {at} on are a part of an entry", fatal=False
    )
