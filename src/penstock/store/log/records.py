"""The records of a log file: a frame or a note each, in the order of commits.

    file    a header: the magic, the bucket's uuid, the file's number
    record  crc32c u32, length u32, supersedes u64, synced u32, body
    body    a frame of the wire, which begins with its magic; or a note, JSON, which begins with `{`

The checksum covers all that follows it, and begins with what the header's checksum and the record's offset make: so a
record counts in its file and its place alone, whatever else a disk or a document's value holds. supersedes: the seqno,
in the frame's vbucket, of the change that this one replaced, 0 for none. synced: the file was on disk up to there when
the record was made, for certain: that tells what a crash can have torn from what was damaged later. Numbers are
little-endian, so that columns can be read in place; the frame is as the wire has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from penstock.store.log.segment import Column, Lengths
from penstock.wire.codec.opcodes import Magic

__all__ = [
    "FILE_HEADER",
    "RECORD_BYTES",
    "Scanned",
    "is_file_header",
    "later_record",
    "pack_file_header",
    "pack_record",
    "pack_record_head",
    "salvage",
    "scan",
    "seed_of",
    "supersedes_of",
]

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
    """uuid: 16 bytes."""
    fields = FILE_HEADER.pack(MAGIC, uuid, number, 0)[: -_CHECKSUM.size]
    return fields + _CHECKSUM.pack(crc32c(fields))


def seed_of(header: bytes) -> int:
    """Return what the checksums of a file's records begin with, but for their offsets. header: the file's."""
    seed: int = _CHECKSUM.unpack_from(header, FILE_HEADER.size - _CHECKSUM.size)[0]
    return seed


def is_file_header(data: memoryview) -> bool:
    """Tell whether a file begins with a header as it was written, of whichever log file that is."""
    if len(data) < FILE_HEADER.size or data[: len(MAGIC)] != MAGIC:
        return False
    fields = data[: FILE_HEADER.size - _CHECKSUM.size]
    return bool(_CHECKSUM.unpack_from(data, len(fields))[0] == crc32c(fields))


def pack_record(body: bytes, supersedes: int, synced: int, seed: int) -> bytes:
    """Return a whole record. seed: the file's, xor the record's offset. Runs for every change."""
    rest: bytes = _pack_head(len(body), supersedes, synced) + body
    return _pack_checksum(crc32c(rest, seed)) + rest


def pack_record_head(body: memoryview, supersedes: int, synced: int, seed: int) -> bytes:
    """Return what stands in front of a record's body. Arguments as of `pack_record`."""
    rest: bytes = _pack_head(len(body), supersedes, synced)
    return _pack_checksum(crc32c(body, crc32c(rest, seed))) + rest


class Scanned(NamedTuple):
    """What a log file holds.

    Attributes:
        offsets, lengths, supersedes: of the frames.
        notes: where the record of each note begins, and its body.
        end: of the last good record.
        later: where a good record lies behind a bad one although the bad one had been on disk before it; None if there
            is none.
    """

    offsets: Column
    lengths: Lengths
    supersedes: Column
    notes: list[tuple[int, bytes]]
    end: int
    later: int | None


def scan(data: memoryview, seed: int) -> Scanned:
    """Read records up to the first bad one, or the end. data: the file, whose header has been checked."""
    scanned = _scan(data, seed, FILE_HEADER.size)
    return scanned._replace(later=later_record(data, scanned.end, seed))


def _scan(data: memoryview, seed: int, at: int) -> Scanned:
    """Read records from an offset on, whatever comes behind the first bad one."""
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
    return Scanned(*columns, notes, at, None)


def salvage(data: memoryview, seed: int, at: int) -> Iterator[tuple[int, Scanned]]:
    """Read every good record from an offset on: yield those that lie together, and where they begin."""
    while True:
        scanned = _scan(data, seed, at)
        if scanned.end > at:
            yield at, scanned
        found = _next_record(data, scanned.end, seed, -1)
        if found is None:
            return
        at = found


def later_record(data: memoryview, bad: int, seed: int) -> int | None:
    """Return where a good record lies that says that the byte at `bad` had been on disk when it was made.

    Only what was appended since the last sync can be torn, whichever of its pages reached the disk.
    """
    return _next_record(data, bad, seed, bad)


def _next_record(data: memoryview, behind: int, seed: int, past: int) -> int | None:
    """Return where the first good record lies behind an offset that was made when more than `past` was on disk."""
    last = len(data) - RECORD_BYTES
    for start in range(behind + 1, last, _PIECE):
        for at in _plausible(data, start, min(start + _PIECE, last), past):
            checksum, length, _, _ = _RECORD.unpack_from(data, at)
            if crc32c(data[at + _CHECKSUM.size : at + RECORD_BYTES + length], seed ^ at) == checksum:
                return at
    return None


def _plausible(data: memoryview, start: int, end: int, past: int) -> list[int]:
    """Return where a record may begin that was made when more than `past` was on disk."""
    starts = np.arange(start, end)

    def column(at: int, kind: str) -> Column:
        return np.ndarray((end - start,), kind, data, start + at, (1,)).astype(np.int64)

    lengths, synced, first = column(4, "<u4"), column(16, "<u4"), column(RECORD_BYTES, "u1")
    plausible = (lengths > 0) & (starts + RECORD_BYTES + lengths <= len(data)) & (synced > past) & (synced <= starts)
    found: list[int] = starts[plausible & ((first == _FRAME) | (first == _NOTE))].tolist()
    return found


def supersedes_of(buffer: memoryview, offsets: Column | Lengths) -> Column:
    """Return what the records say in front of these frames."""
    if not len(offsets):
        return np.zeros(0, np.int64)
    back = RECORD_BYTES - _SUPERSEDES_AT
    return np.ndarray((len(buffer) - 7,), "<i8", buffer, 0, (1,))[offsets.astype(np.int64) - back]
