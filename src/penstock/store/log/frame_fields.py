"""Reads fields of many frames at once, where the frames lie in a log's buffer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.store.log.segment import Column, Lengths, make_arrow_values
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.data_forms import make_head_dtype
from penstock.wire.messages.dcp import DeletionV2, Mutation

_MUTATION = int(Opcode.DCP_MUTATION)
_MUTATION_EXTRAS = make_head_dtype(Mutation).itemsize - HEADER_BYTES
_WORD = (0, "<u8")
_WORD_BYTES = 8
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, with bits everywhere
_LEB_BITS, _LEB_BYTES = 0x7F, 5  # of an id in front of a key
_LARGEST_COLLECTION = 2**32 - 1
_ID_LIMITS = np.array([1 << 7 * nbytes for nbytes in range(1, _LEB_BYTES)])
"""The first collection ids with 2, 3, 4 and 5 bytes."""


def _locate_field(name: str, cls: type[Mutation] | type[DeletionV2]) -> tuple[int, str]:
    """Return the offset of a field in a frame, and its numpy type."""
    dtype, at = make_head_dtype(cls).fields[name][:2]  # type: ignore[index]
    return at, dtype.str


_OPCODE, _KEY_LENGTH, _CAS, _EXPIRY = (
    _locate_field(name, Mutation) for name in ("opcode", "key_length", "cas", "expiry")
)
_VBUCKET, _BY_SEQNO, _REV_SEQNO = (_locate_field(name, Mutation) for name in ("vbucket", "by_seqno", "rev_seqno"))
_EXTRAS_LENGTH = _locate_field("extras_length", Mutation)
_DELETE_TIME = _locate_field("delete_time", DeletionV2)  # in an expiration it lies there too


def read_field(buffer: memoryview, offsets: Column | Lengths, place: tuple[int, str]) -> npt.NDArray[np.generic]:
    """Return one field of the frames at `offsets`.

    Args:
        buffer: the log's memory.
        offsets: where the frames begin.
        place: the field's offset in a frame, and its numpy type.
    """
    at, kind = place
    dtype = np.dtype(kind)
    if not len(offsets):
        return np.zeros(0, dtype)
    overlapping = np.ndarray((len(buffer) - at - dtype.itemsize + 1,), dtype, buffer, at, (1,))
    return overlapping[offsets]


def mask_mutations(buffer: memoryview, offsets: Column | Lengths) -> npt.NDArray[np.bool_]:
    """Return which of the frames are mutations."""
    found: npt.NDArray[np.bool_] = read_field(buffer, offsets, _OPCODE) == _MUTATION
    return found


def read_vbuckets(buffer: memoryview, offsets: Column | Lengths) -> npt.NDArray[np.uint16]:
    """Return the vbucket of each frame."""
    return read_field(buffer, offsets, _VBUCKET).astype(np.uint16)


def read_by_seqnos(buffer: memoryview, offsets: Column | Lengths) -> Column:
    """Return the seqno of each frame."""
    return read_field(buffer, offsets, _BY_SEQNO).astype(np.int64)


def read_rev_seqnos(buffer: memoryview, offsets: Column | Lengths) -> Column:
    """Return the rev_seqno of each frame."""
    return read_field(buffer, offsets, _REV_SEQNO).astype(np.int64)


def read_cas_values(buffer: memoryview, offsets: Column | Lengths) -> npt.NDArray[np.uint64]:
    """Return the cas of each frame."""
    return read_field(buffer, offsets, _CAS).astype(np.uint64)


def read_expiries(buffer: memoryview, offsets: Column | Lengths) -> Column:
    """Return when each document expires, in epoch seconds; 0 for never, and for tombstones."""
    found = np.zeros(len(offsets), np.int64)
    documents = mask_mutations(buffer, offsets)
    found[documents] = read_field(buffer, offsets[documents], _EXPIRY)
    return found


def read_delete_times(buffer: memoryview, offsets: Column | Lengths) -> Column:
    """Return when the document of each tombstone was deleted, in epoch seconds; 0 for mutations."""
    found = np.zeros(len(offsets), np.int64)
    tombstones = ~mask_mutations(buffer, offsets)
    found[tombstones] = read_field(buffer, offsets[tombstones], _DELETE_TIME)
    return found


def read_keys(buffer: memoryview, offsets: Column | Lengths) -> list[bytes]:
    """Return the keys of frames whose offsets ascend."""
    if not len(offsets):
        return []
    begins = _find_key_offsets(buffer, offsets)
    lengths = read_field(buffer, offsets, _KEY_LENGTH).astype(np.uint32)
    found: list[bytes] = make_arrow_values(buffer, begins, lengths).take(np.arange(0, 2 * len(begins), 2)).to_pylist()
    return found


def read_document_keys(buffer: memoryview, offsets: Column, collections: Column) -> pa.Array:
    """Return the keys of frames whose offsets ascend, as Arrow's binary values without the collection ids.

    Args:
        buffer: the log's memory.
        offsets: where the frames begin.
        collections: the collection id of each frame.
    """
    if not len(offsets):
        return pa.array([], pa.binary())
    prefixes = np.searchsorted(_ID_LIMITS, collections, side="right") + 1
    begins = _find_key_offsets(buffer, offsets) + prefixes
    lengths = (read_field(buffer, offsets, _KEY_LENGTH).astype(np.int64) - prefixes).astype(np.uint32)
    return make_arrow_values(buffer, begins, lengths).take(np.arange(0, 2 * len(begins), 2))


def fingerprint_keys(buffer: memoryview, offsets: Column | Lengths) -> npt.NDArray[np.uint64]:
    """Return a number for the key of each frame, made of its length, its ends and its middle.

    Equal keys have equal numbers everywhere. Different keys seldom have equal numbers.
    """
    begins = _find_key_offsets(buffer, offsets)
    lengths = read_field(buffer, offsets, _KEY_LENGTH).astype(np.int64)
    last = begins + lengths - _WORD_BYTES  # of a shorter key it begins in the header
    surplus = np.maximum(_WORD_BYTES - lengths, 0).astype(np.uint64)
    found = read_field(buffer, last, _WORD).astype(np.uint64) >> (np.uint64(8) * surplus)
    for at, least in ((begins, _WORD_BYTES), (last - (lengths >> 1) + _WORD_BYTES // 2, 2 * _WORD_BYTES)):
        word = read_field(buffer, np.where(lengths >= least, at, last), _WORD).astype(np.uint64)
        found = found * _MIX + np.where(lengths >= least, word, np.uint64(0))
    return found * _MIX + lengths.astype(np.uint64)


def read_collection_ids(buffer: memoryview, offsets: Column | Lengths) -> Column:
    """Return the collection id at the beginning of each key; -1 where there is no valid id."""
    if not len(offsets):
        return np.zeros(0, np.int64)
    data = np.frombuffer(buffer, np.uint8)
    begins = _find_key_offsets(buffer, offsets)
    found = data[begins].astype(np.int64)
    more = np.flatnonzero(found > _LEB_BITS)
    found &= _LEB_BITS
    for place in range(1, _LEB_BYTES):
        if not len(more):
            return found
        byte = data[np.minimum(begins[more] + place, len(data) - 1)].astype(np.int64)
        found[more] |= (byte & _LEB_BITS) << (7 * place)
        found[more[byte == 0]] = -1
        more = more[byte > _LEB_BITS]
    found[more] = -1
    found[found > _LARGEST_COLLECTION] = -1
    return found


def _find_key_offsets(buffer: memoryview, offsets: Column | Lengths) -> Column:
    begins = offsets.astype(np.int64) + HEADER_BYTES
    begins += read_field(buffer, offsets, _EXTRAS_LENGTH).astype(np.int64)
    return begins
