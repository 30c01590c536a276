"""Extended metadata: the section after a value in releases 4.0 to 4.6, for consumers that enable it.

Source: ep-engine branch 4.1, ext_meta_parser: a version, then elements of type, length and data.
"""

from __future__ import annotations

from struct import Struct

from penstock.wire.codec.frame import BODY_AT, BODY_LENGTH, EXTRAS_LENGTH_AT, HEADER_BYTES, OPCODE_AT, U32
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.dcp import DELETION_HEAD, MUTATION_HEAD, Deletion, Mutation, list_head_fields
from penstock.wire.messages.dcp_values import ExtendedMeta, pack_extended_meta

_BY_REVISION = 0
SECTION = pack_extended_meta(ExtendedMeta(conflict_mode=_BY_REVISION))
"""The section of every document: this node resolves conflicts by rev_seqno."""

_NMETA = Struct(">H")


def _find_nmeta_offset(message: type[Mutation] | type[Deletion], head: Struct) -> int:
    fields = [name for name, _ in list_head_fields(message)]
    return Struct(head.format[: 1 + fields.index("nmeta")]).size


_NMETA_OFFSETS = {
    (int(Opcode.DCP_MUTATION), MUTATION_HEAD.size - HEADER_BYTES): _find_nmeta_offset(Mutation, MUTATION_HEAD),
    (int(Opcode.DCP_DELETION), DELETION_HEAD.size - HEADER_BYTES): _find_nmeta_offset(Deletion, DELETION_HEAD),
}
"""Offset of the section's length in a frame, by opcode and length of the extras. Later forms do not have the field."""


def append_ext_metadata(data: bytes | bytearray | memoryview) -> bytearray:
    """Return whole frames with a section after each value whose message can have one."""
    extended = bytearray()
    begin = 0
    while begin < len(data):
        body: int = BODY_LENGTH.unpack_from(data, begin)[0]
        end = begin + HEADER_BYTES + body
        at = len(extended)
        extended += data[begin:end]
        nmeta_at = _NMETA_OFFSETS.get((data[begin + OPCODE_AT], data[begin + EXTRAS_LENGTH_AT]))
        if nmeta_at is not None:
            extended += SECTION
            U32.pack_into(extended, at + BODY_AT, body + len(SECTION))
            _NMETA.pack_into(extended, at + nmeta_at, len(SECTION))
        begin = end
    return extended
