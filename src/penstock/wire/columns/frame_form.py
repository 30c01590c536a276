"""Forms of change frames for consumers: the message that each kind becomes, and the rules for its head.

The log holds DCP frames: mutations, and tombstones with their times (DELETION V2, EXPIRATION). Each field of a new head
is a constant or a rule. A rule works on numbers and on columns alike, so `reframe` applies it to few frames one by one
and to many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from struct import Struct, calcsize
from typing import Any

import numpy.typing as npt

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import HEADER_BYTES, HEADER_NAMES
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import DraftCode, Magic, Opcode
from penstock.wire.columns.data_forms import make_dtype, reverse_u32
from penstock.wire.messages.dcp import Deletion, DeletionV2, Expiration, Mutation, list_head_fields
from penstock.wire.messages.dcp_values import pack_stream_id
from penstock.wire.messages.tap import TapDelete, TapMutation
from penstock.wire.messages.upr import UprDeletion, UprExpiration, UprMutation
from penstock.wire.messages.upr_draft import DraftDeletion, DraftExpiration, DraftMutation
from penstock.wire.values.collection_key import DEFAULT_PREFIX

Column = npt.NDArray[Any]
Numbers = int | Column
Stored = Column | Mapping[str, int]
"""Heads of the log's frames: a structured column, or the numbers of one by name (STORED_NAMES). A rule reads both."""

Rule = Callable[[Any], Numbers]
"""Computes a field of the new head from Stored."""

STORED_NAMES = tuple(name for name, _ in list_head_fields(Mutation))
"""The numbers of a stored head: those of a mutation. In a tombstone the delete time stands where this has `flags`."""

_MUTATION_ONLY = frozenset(("flags", "expiry", "lock_time", "nmeta", "nru"))
"""Fields that a tombstone does not have: its delete time and key stand in their place."""

_TIMED_EXTRAS = Expiration.layouts[max(Expiration.layouts)].extras.size
"""Bytes of extras from which on a tombstone has a delete time."""

_PRIVATE = {TapMutation: [("rev_seqno", "Q"), ("nru", "B")], TapDelete: [("rev_seqno", "Q")]}
"""The engine-private data of TAP, as ep-engine has it: between extras and key."""

_FRAMING = [("frame_info", "B"), ("framing", "H")]
_STREAM_ID_INFO = pack_stream_id(1)[0]
"""The first byte of framing extras with a stream's id.

Framing extras stand between header and extras; their length is in the upper byte of the key's length.
"""


@dataclass(frozen=True)
class FrameForm:
    """The form of a connection's change frames.

    Attributes:
        mutation, deletion, expiration: the message of each kind of change.
        keys_only: frames have no values.
        datatypes: the datatype bits that the consumer understands; None: all, also for values that are left out.
        reversed_flags: item flags have the byte order that little-endian TAP servers send.
        bare_keys: keys have no collection id; all frames are then the default collection's.
        stream_id: stands in each frame where one vbucket may have several streams; None: no id.
    """

    mutation: type[Message]
    deletion: type[Message]
    expiration: type[Message]
    keys_only: bool = False
    datatypes: int | None = None
    reversed_flags: bool = False
    bare_keys: bool = False
    stream_id: int | None = None

    @cached_property
    def head_rules(self) -> dict[int, HeadRules]:
        """How the new head is made, by the opcode of the log."""
        return {
            int(Opcode.DCP_MUTATION): HeadRules(self.mutation, self),
            int(Opcode.DCP_DELETION): HeadRules(self.deletion, self),
            int(Opcode.DCP_EXPIRATION): HeadRules(self.expiration, self),
        }

    @cached_property
    def keeps_mutations(self) -> bool:
        """Whether mutations are sent as the log has them, except for the collection's id."""
        changed = self.keys_only or self.datatypes is not None or self.stream_id is not None
        return self.mutation is Mutation and not changed

    @cached_property
    def is_native(self) -> bool:
        """Whether all frames are sent as the log has them, except for the collection's id."""
        return self.keeps_mutations and self.deletion is DeletionV2 and self.expiration is Expiration

    @cached_property
    def prefix_bytes(self) -> int:
        """How many bytes at the start of the log's keys are left out."""
        return len(DEFAULT_PREFIX) if self.bare_keys else 0

    def find_tail(self, stored: Any, begin: Any, end: Any) -> tuple[Any, Any]:
        """Return where the kept bytes of a frame begin and end: its key without prefix, and its value if it is sent."""
        at = begin + stored["extras_length"] + (HEADER_BYTES + self.prefix_bytes)
        return at, at + stored["key_length"] - self.prefix_bytes if self.keys_only else end


class HeadRules:
    """The head of a message in a form: header, framing extras, extras and engine-private data.

    Attributes:
        dtype: the head as a structured type for columns.
        head: the head as a Struct, with its numbers in the same order.
    """

    def __init__(self, cls: type[Message], form: FrameForm) -> None:
        framing = _FRAMING if form.stream_id is not None else []
        own, private = list_head_fields(cls), _PRIVATE.get(cls, [])
        fields = [*own[: len(HEADER_NAMES)], *framing, *own[len(HEADER_NAMES) :], *private]
        self.dtype = make_dtype(fields)
        self.head = Struct(">" + "".join(code for _, code in fields))
        rules = _make_rules(cls, form)
        self._fields = [(name, rules.get(name, 0)) for name, _ in fields]

    def compute_fields(self, stored: Stored, tail_bytes: Numbers, given: Mapping[str, Numbers]) -> dict[str, Numbers]:
        """Return the fields of new heads by name, in the order of the bytes.

        Args:
            stored: the heads of the log's frames.
            tail_bytes: bytes after the head: the key, and the value if it is sent.
            given: fields that do not follow from the log.
        """
        given = {**given, "body": self.head.size - HEADER_BYTES + tail_bytes}
        return {
            name: given[name] if name in given else rule if isinstance(rule, int) else rule(stored)
            for name, rule in self._fields
        }


def _make_rules(cls: type[Message], form: FrameForm) -> dict[str, int | Rule]:
    """Return the fields of a form's message, each a constant or a rule. Fields that are not named are 0."""
    draft = isinstance(cls.opcode, DraftCode)
    extras = cls.layouts[max(cls.layouts)].extras
    framing_bytes = 0 if form.stream_id is None else calcsize(">BH")
    kept = [name for name in STORED_NAMES if cls is form.mutation or name not in _MUTATION_ONLY]
    rules: dict[str, int | Rule] = {
        **{name: itemgetter(name) for name in kept},
        "magic": int(cls.magic if form.stream_id is None else Magic.ALT_REQUEST),
        "opcode": cls.opcode >> 8 if draft else int(cls.opcode),
        "key_length": lambda stored: stored["key_length"] - form.prefix_bytes | framing_bytes << 8,
        "extras_length": extras.size,
        "frame_info": _STREAM_ID_INFO,
        "framing": form.stream_id or 0,
        # A product instead of a condition, since rules work on columns too.
        "delete_time": lambda stored: (stored["extras_length"] >= _TIMED_EXTRAS) * stored["flags"],
    }
    if draft:
        rules["datatype"] = cls.opcode & 0xFF
    elif (datatypes := form.datatypes) is not None:
        rules["datatype"] = 0 if form.keys_only else lambda stored: stored["datatype"] & datatypes
    if form.reversed_flags and "flags" in kept:
        rules["flags"] = lambda stored: reverse_u32(stored["flags"])
    if cls in _PRIVATE:
        rules |= {"engine_length": calcsize(">" + "".join(code for _, code in _PRIVATE[cls])), "ttl": 0xFF}
    return rules


DCP = FrameForm(Mutation, Deletion, Deletion, bare_keys=True)
"""The form of a DCP consumer without options: deletions of form V1, also for expirations."""

NATIVE = FrameForm(Mutation, DeletionV2, Expiration)
"""The form of the log."""

FORMS = {
    Dialect.DCP: DCP,
    Dialect.UPR: FrameForm(UprMutation, UprDeletion, UprExpiration, bare_keys=True),
    Dialect.UPR_DRAFT: FrameForm(DraftMutation, DraftDeletion, DraftExpiration, bare_keys=True),
    Dialect.TAP: FrameForm(TapMutation, TapDelete, TapDelete, datatypes=0, bare_keys=True),
}
"""Dialect -> the form of a connection without options."""
