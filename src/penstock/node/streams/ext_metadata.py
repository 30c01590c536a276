"""Extended meta data: the section behind a value that releases 4.0 to 4.6 send to who asks for it.

Source: ep-engine branch 4.1, ext_meta_parser: a version, then elements of type, length and data.
"""

from __future__ import annotations

from struct import Struct

from penstock.wire.codec.frame import BODY_AT, BODY_LENGTH, EXTRAS_LENGTH_AT, HEADER_BYTES, OPCODE_AT, U32
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.dcp import DELETION_HEAD, MUTATION_HEAD, Deletion, Mutation, head_fields
from penstock.wire.messages.dcp_values import ExtendedMeta, pack_extended_meta

__all__ = ["with_ext_metadata"]

_BY_REVISION = 0
SECTION = pack_extended_meta(ExtendedMeta(conflict_mode=_BY_REVISION))
"""Documents of this node are compared by rev_seqno."""

_NMETA = Struct(">H")


def _nmeta_at(message: type[Mutation] | type[Deletion], head: Struct) -> int:
    fields = [name for name, _ in head_fields(message)]
    return Struct(head.format[: 1 + fields.index("nmeta")]).size


_NMETA_AT = {
    (int(Opcode.DCP_MUTATION), MUTATION_HEAD.size - HEADER_BYTES): _nmeta_at(Mutation, MUTATION_HEAD),
    (int(Opcode.DCP_DELETION), DELETION_HEAD.size - HEADER_BYTES): _nmeta_at(Deletion, DELETION_HEAD),
}
"""By opcode and length of the extras. Forms that came later have no place for it."""


def with_ext_metadata(data: bytes | bytearray | memoryview) -> bytearray:
    """Return whole frames with a section behind each that has a place for one."""
    extended = bytearray()
    begin = 0
    while begin < len(data):
        body: int = BODY_LENGTH.unpack_from(data, begin)[0]
        end = begin + HEADER_BYTES + body
        at = len(extended)
        extended += data[begin:end]
        nmeta_at = _NMETA_AT.get((data[begin + OPCODE_AT], data[begin + EXTRAS_LENGTH_AT]))
        if nmeta_at is not None:
            extended += SECTION
            U32.pack_into(extended, at + BODY_AT, body + len(SECTION))
            _NMETA.pack_into(extended, at + nmeta_at, len(SECTION))
        begin = end
    return extended
