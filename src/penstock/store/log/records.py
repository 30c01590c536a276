"""The records of a log file: a frame or a note each, in the order of commits.

    file    a header: the magic, the bucket's uuid, the file's number.
    record  crc32c u32, length u32, supersedes u64, synced u32, body.
    body    a frame of the wire, which begins with its magic; or a note, JSON, which begins with `{`.

The checksum covers all bytes behind it. It is seeded with the header's checksum and the record's offset, so a record is
valid only in its own file and place. Bytes of a document's value cannot pass for a record.

supersedes is the seqno, in the frame's vbucket, of the change that this one replaced; 0 for none. synced is the length
of the file that was certainly on disk when the record was made. It distinguishes a crash's torn end from later damage.
Numbers are little-endian, so that columns are read in place; the frame is as on the wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from penstock.store.log.segment import Column, Lengths
from penstock.wire.codec.opcodes import Magic

MAGIC = b"PSTKLOG1"
FILE_HEADER = Struct("<8s16sQI")  # magic, uuid, number, crc32c of those

_CHECKSUM = Struct("<I")
_pack_checksum = _CHECKSUM.pack
_pack_head = Struct("<IQI").pack  # length, supersedes, synced
_RECORD = Struct("<IIQI")
RECORD_BYTES = _RECORD.size
_SUPERSEDES_AT = 8

_FRAME = int(Magic.REQUEST)
_NOTE = ord("{")

_PIECE = 1024 * 1024


def pack_file_header(uuid: bytes, number: int) -> bytes:
    """Return the header of a log file.

    Args:
        uuid: the bucket's uuid, 16 bytes.
        number: the number of the file.

    Returns:
        The header, with its checksum.
    """
    fields = FILE_HEADER.pack(MAGIC, uuid, number, 0)[: -_CHECKSUM.size]
    return fields + _CHECKSUM.pack(crc32c(fields))


def read_seed(header: bytes) -> int:
    """Return the seed of the checksums of a file's records, before the offset is mixed in.

    Args:
        header: the file's header.
    """
    seed: int = _CHECKSUM.unpack_from(header, FILE_HEADER.size - _CHECKSUM.size)[0]
    return seed


def is_file_header(data: memoryview) -> bool:
    """Return whether a file begins with a valid header, of any log file."""
    if len(data) < FILE_HEADER.size or data[: len(MAGIC)] != MAGIC:
        return False
    fields = data[: FILE_HEADER.size - _CHECKSUM.size]
    return bool(_CHECKSUM.unpack_from(data, len(fields))[0] == crc32c(fields))


def pack_record(body: bytes, supersedes: int, synced: int, seed: int) -> bytes:
    """Return a whole record. This runs for every change.

    Args:
        body: a frame or a note.
        supersedes: as in the module's description.
        synced: as in the module's description.
        seed: the file's seed, xor the record's offset.
    """
    rest: bytes = _pack_head(len(body), supersedes, synced) + body
    return _pack_checksum(crc32c(rest, seed)) + rest


def pack_record_head(body: memoryview, supersedes: int, synced: int, seed: int) -> bytes:
    """Return the bytes in front of a record's body. The arguments are those of `pack_record`."""
    rest: bytes = _pack_head(len(body), supersedes, synced)
    return _pack_checksum(crc32c(body, crc32c(rest, seed))) + rest


class ScannedRecords(NamedTuple):
    """The records of a log file.

    Attributes:
        offsets: where the frames begin.
        lengths: the lengths of the frames.
        supersedes: for each frame the seqno that it supersedes.
        notes: for each note the offset of its record, and its body.
        end: the end of the last valid record.
        later_offset: the offset of a valid record which proves that the invalid record in front of it had been on disk;
            None if there is none.
    """

    offsets: Column
    lengths: Lengths
    supersedes: Column
    notes: list[tuple[int, bytes]]
    end: int
    later_offset: int | None


def scan_records(data: memoryview, seed: int) -> ScannedRecords:
    """Read records up to the first invalid one, or the end.

    Args:
        data: the file, whose header has been checked.
        seed: the file's seed.

    Returns:
        The records.
    """
    scanned = _scan_from(data, seed, FILE_HEADER.size)
    return scanned._replace(later_offset=find_later_record(data, scanned.end, seed))


def _scan_from(data: memoryview, seed: int, at: int) -> ScannedRecords:
    """Read records from an offset up to the first invalid one.

    Returns:
        The records, without `later_offset`.
    """
    size = len(data)
    offsets: list[int] = []
    lengths: list[int] = []
    supersedes: list[int] = []
    notes: list[tuple[int, bytes]] = []
    unpack, checksum_bytes = _RECORD.unpack_from, _CHECKSUM.size
    while at + RECORD_BYTES < size:
        checksum, length, replaced, _ = unpack(data, at)
        body = at + RECORD_BYTES
        end = body + length
        if end > size or not length or crc32c(data[at + checksum_bytes : end], seed ^ at) != checksum:
            break
        if data[body] == _FRAME:
            offsets.append(body)
            lengths.append(length)
            supersedes.append(replaced)
        else:
            notes.append((at, bytes(data[body:end])))
        at = end
    columns = np.array(offsets, np.int64), np.array(lengths, np.uint32), np.array(supersedes, np.int64)
    return ScannedRecords(*columns, notes, at, None)


def salvage_records(data: memoryview, seed: int, at: int) -> Iterator[tuple[int, ScannedRecords]]:
    """Read every valid record from an offset on.

    Yields:
        The offset of each run of valid records, and the records.
    """
    while True:
        scanned = _scan_from(data, seed, at)
        if scanned.end > at:
            yield at, scanned
        found = _find_next_record(data, scanned.end, seed, -1)
        if found is None:
            return
        at = found


def find_later_record(data: memoryview, bad: int, seed: int) -> int | None:
    """Return the offset of a valid record which states that the byte at `bad` was on disk before; None for none.

    A crash can tear only the bytes that were appended since the last sync, in any of their pages.
    """
    return _find_next_record(data, bad, seed, bad)


def _find_next_record(data: memoryview, behind: int, seed: int, past: int) -> int | None:
    """Return the offset of the first valid record behind an offset that was made when more than `past` was on disk."""
    last = len(data) - RECORD_BYTES
    for start in range(behind + 1, last, _PIECE):
        for at in _find_plausible_offsets(data, start, min(start + _PIECE, last), past):
            checksum, length, _, _ = _RECORD.unpack_from(data, at)
            if crc32c(data[at + _CHECKSUM.size : at + RECORD_BYTES + length], seed ^ at) == checksum:
                return at
    return None


def _find_plausible_offsets(data: memoryview, start: int, end: int, past: int) -> list[int]:
    """Return where a record may begin that was made when more than `past` was on disk."""
    starts = np.arange(start, end)

    def column(at: int, kind: str) -> Column:
        return np.ndarray((end - start,), kind, data, start + at, (1,)).astype(np.int64)

    lengths, synced, first = column(4, "<u4"), column(16, "<u4"), column(RECORD_BYTES, "u1")
    plausible = (lengths > 0) & (starts + RECORD_BYTES + lengths <= len(data)) & (synced > past) & (synced <= starts)
    found: list[int] = starts[plausible & ((first == _FRAME) | (first == _NOTE))].tolist()
    return found


def read_supersedes(buffer: memoryview, offsets: Column | Lengths) -> Column:
    """Return the superseded seqnos in the records of these frames."""
    if not len(offsets):
        return np.zeros(0, np.int64)
    back = RECORD_BYTES - _SUPERSEDES_AT
    return np.ndarray((len(buffer) - 7,), "<i8", buffer, 0, (1,))[offsets.astype(np.int64) - back]
