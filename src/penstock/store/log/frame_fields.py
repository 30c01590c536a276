"""Fields of many frames at once, read where they lie in a log's buffer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.store.log.segment import Column, Lengths, values_of
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.columns.shapes import head_dtype
from penstock.wire.messages.dcp import DeletionV2, Mutation

__all__ = [
    "by_seqnos",
    "cas",
    "collection_ids",
    "delete_times",
    "expiries",
    "field",
    "is_mutation",
    "key_fingerprints",
    "keys",
    "rev_seqnos",
    "vbuckets_of",
]

_MUTATION = int(Opcode.DCP_MUTATION)
_MUTATION_EXTRAS = head_dtype(Mutation).itemsize - HEADER_BYTES
_WORD = (0, "<u8")
_WORD_BYTES = 8
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, with bits everywhere
_LEB_BITS, _LEB_BYTES = 0x7F, 5  # of an id in front of a key
_LARGEST_COLLECTION = 2**32 - 1


def _place(name: str, cls: type[Mutation] | type[DeletionV2]) -> tuple[int, str]:
    """Return where a field begins in a frame, and its type."""
    dtype, at = head_dtype(cls).fields[name][:2]  # type: ignore[index]
    return at, dtype.str


_OPCODE, _KEY_LENGTH, _CAS, _EXPIRY = (_place(name, Mutation) for name in ("opcode", "key_length", "cas", "expiry"))
_VBUCKET, _BY_SEQNO, _REV_SEQNO = (_place(name, Mutation) for name in ("vbucket", "by_seqno", "rev_seqno"))
_EXTRAS_LENGTH = _place("extras_length", Mutation)
_DELETE_TIME = _place("delete_time", DeletionV2)  # in an expiration it lies there too


def field(buffer: memoryview, offsets: Column | Lengths, place: tuple[int, str]) -> npt.NDArray[np.generic]:
    """Return a field of the frames at `offsets`. place: where it begins in a frame, and its type."""
    at, kind = place
    dtype = np.dtype(kind)
    if not len(offsets):
        return np.zeros(0, dtype)
    overlapping = np.ndarray((len(buffer) - at - dtype.itemsize + 1,), dtype, buffer, at, (1,))
    return overlapping[offsets]


def is_mutation(buffer: memoryview, offsets: Column | Lengths) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = field(buffer, offsets, _OPCODE) == _MUTATION
    return found


def vbuckets_of(buffer: memoryview, offsets: Column | Lengths) -> npt.NDArray[np.uint16]:
    return field(buffer, offsets, _VBUCKET).astype(np.uint16)


def by_seqnos(buffer: memoryview, offsets: Column | Lengths) -> Column:
    return field(buffer, offsets, _BY_SEQNO).astype(np.int64)


def rev_seqnos(buffer: memoryview, offsets: Column | Lengths) -> Column:
    return field(buffer, offsets, _REV_SEQNO).astype(np.int64)


def cas(buffer: memoryview, offsets: Column | Lengths) -> npt.NDArray[np.uint64]:
    return field(buffer, offsets, _CAS).astype(np.uint64)


def expiries(buffer: memoryview, offsets: Column | Lengths) -> Column:
    """Return when the documents expire, in epoch seconds; 0 for never, and for tombstones."""
    found = np.zeros(len(offsets), np.int64)
    documents = is_mutation(buffer, offsets)
    found[documents] = field(buffer, offsets[documents], _EXPIRY)
    return found


def delete_times(buffer: memoryview, offsets: Column | Lengths) -> Column:
    """Return when the documents of tombstones were deleted, in epoch seconds; 0 for mutations."""
    found = np.zeros(len(offsets), np.int64)
    tombstones = ~is_mutation(buffer, offsets)
    found[tombstones] = field(buffer, offsets[tombstones], _DELETE_TIME)
    return found


def keys(buffer: memoryview, offsets: Column | Lengths) -> list[bytes]:
    """Return the keys of frames whose offsets ascend."""
    if not len(offsets):
        return []
    begins = _key_begins(buffer, offsets)
    lengths = field(buffer, offsets, _KEY_LENGTH).astype(np.uint32)
    found: list[bytes] = values_of(buffer, begins, lengths).take(np.arange(0, 2 * len(begins), 2)).to_pylist()
    return found


def key_fingerprints(buffer: memoryview, offsets: Column | Lengths) -> npt.NDArray[np.uint64]:
    """Return a number for the key of each frame, made of its length and the bytes at its ends and in its middle.

    The same key has the same number everywhere; two keys seldom have.
    """
    begins = _key_begins(buffer, offsets)
    lengths = field(buffer, offsets, _KEY_LENGTH).astype(np.int64)
    last = begins + lengths - _WORD_BYTES  # of a shorter key it begins in the header
    surplus = np.maximum(_WORD_BYTES - lengths, 0).astype(np.uint64)
    found = field(buffer, last, _WORD).astype(np.uint64) >> (np.uint64(8) * surplus)
    for at, least in ((begins, _WORD_BYTES), (last - (lengths >> 1) + _WORD_BYTES // 2, 2 * _WORD_BYTES)):
        word = field(buffer, np.where(lengths >= least, at, last), _WORD).astype(np.uint64)
        found = found * _MIX + np.where(lengths >= least, word, np.uint64(0))
    return found * _MIX + lengths.astype(np.uint64)


def collection_ids(buffer: memoryview, offsets: Column | Lengths) -> Column:
    """Return the collection that each frame's key begins with, -1 where that is none."""
    if not len(offsets):
        return np.zeros(0, np.int64)
    data = np.frombuffer(buffer, np.uint8)
    begins = _key_begins(buffer, offsets)
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


def _key_begins(buffer: memoryview, offsets: Column | Lengths) -> Column:
    begins = offsets.astype(np.int64) + HEADER_BYTES
    begins += field(buffer, offsets, _EXTRAS_LENGTH).astype(np.int64)
    return begins
