"""A sealed segment as a file: frames clustered by vbucket, and then their columns.

```
magic, padding to 64 bytes
frames, padding to 8 bytes
columns, each padded to 8 bytes, in the order of _COLUMNS
description: JSON with the place of each column, and checksums
length of the description u32, its crc32c u32, the magic again
```

The frames have a checksum for each MiB. The columns have one checksum together. Numbers are little-endian and aligned,
so the columns of a mapped file are arrays without a copy. A file never changes after it got its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from penstock.errors import StoreDamaged
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.inventory import ListedSegment
from penstock.store.log.segment import Rows, Segment

MAGIC = b"PSTKSEG1"
FRAMES_AT = 64
"""The offset of the frames in a segment's file, in bytes."""

_BLOCK = 1024 * 1024
_HEADER = MAGIC.ljust(FRAMES_AT, b"\0")
_END = Struct("<II8s")

_COLUMNS = {
    "starts": "<i4",
    "seqnos": "<i8",
    "supersedes": "<i8",
    "offsets": "<u4",
    "lengths": "<u4",
    "checksums": "<u4",
}
_NAME = re.compile(r"segment-(\d{10})-(\d{10})")
_DRAFT = re.compile(_NAME.pattern + r"\.\d+\.new")


class BadSegment(StoreDamaged):
    """The description or the columns of a segment are damaged, so its content is unknown.

    Attributes:
        offset: where the damage begins, in bytes from the beginning of the file.
        reason: the kind of the damage.
    """

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(f"{name}, offset {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class SegmentFile(NamedTuple):
    """The content of a segment's file.

    Attributes:
        segment: the rows and frames, mapped from the file.
        as_of: the end of the log when the segment was made: the number of the active log file, and its size in bytes.
            The log up to that end was on disk before the segment got its name.
        checksums: the crc32c of each MiB of the frames.
        name: the name of the file.
        nbytes: the size of the file.
        checksum: the crc32c of the description.
        generation: the generation of the newest inventory when the segment was made.
        uuid: the bucket's uuid in hexadecimal; empty in files of older releases.
    """

    segment: Segment
    as_of: tuple[int, int]
    checksums: npt.NDArray[np.uint32]
    name: str = ""
    nbytes: int = 0
    checksum: int = 0
    generation: int = 0
    uuid: str = ""

    @property
    def listing(self) -> ListedSegment:
        """The entry of the file in an inventory."""
        return ListedSegment(self.segment.ids, self.nbytes, self.checksum)


def make_segment_name(ids: tuple[int, int]) -> str:
    """Return the name of the segment that was made from the log files with these first and last numbers."""
    return f"segment-{ids[0]:010d}-{ids[1]:010d}"


def make_draft_name(ids: tuple[int, int], number: int) -> str:
    """Return the name that a segment's file has until the segment is valid.

    Args:
        ids: the first and the last number of the log files.
        number: the number of the draft, because several drafts may have the same ids.
    """
    return f"{make_segment_name(ids)}.{number}.new"


def is_draft(name: str) -> bool:
    """Return whether a file name is that of a draft."""
    return _DRAFT.fullmatch(name) is not None


def parse_draft_ids(name: str) -> tuple[int, int] | None:
    """Return the numbers of the first and the last log file in a draft's name; None for other names."""
    match = _DRAFT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def parse_segment_ids(name: str) -> tuple[int, int] | None:
    """Return the numbers of the first and the last log file in a segment's name; None for other names."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def write_segment(
    directory: Directory, name: str, segment: Segment, *, as_of: tuple[int, int], uuid: bytes, generation: int
) -> None:
    """Write a clustered segment to a file and sync it.

    Args:
        directory: the directory of the file.
        name: the name of the file.
        segment: the segment, with its column `supersedes`.
        as_of: the end of the log, as in SegmentFile.
        uuid: the bucket's uuid.
        generation: the generation of the newest inventory.

    Raises:
        OSError: the file could not be written. No part of it stays.
    """
    frames = segment.buffer
    columns_at = _pad_size(FRAMES_AT + len(frames))
    columns, places = _pack_columns(segment, columns_at)
    fields = {
        "ids": segment.ids,
        "uuid": uuid.hex(),
        "generation": generation,
        "frame_bytes": len(frames),
        "sealed_at": segment.sealed_at,
        "as_of": as_of,
        "tombstones": [segment.tombstone_bytes, segment.purge_at],
        "columns": places,
        "columns_crc32c": crc32c(columns),
    }
    description = json.dumps(fields).encode()
    tail = columns + description + _END.pack(len(description), crc32c(description), MAGIC)
    directory.write_file(name, (0, memoryview(_HEADER)), (FRAMES_AT, frames), (columns_at, memoryview(tail)))


def _pack_columns(segment: Segment, at: int) -> tuple[bytes, dict[str, list[int]]]:
    """Return the columns as the bytes from offset `at` of the file.

    Returns:
        The bytes; and for each column its offset in the file and its number of values.
    """
    assert segment.supersedes is not None
    frames = segment.buffer
    columns: dict[str, npt.NDArray[Any]] = {
        "starts": np.asarray(segment.starts),
        "seqnos": segment.seqnos,
        "supersedes": segment.supersedes,
        "offsets": segment.offsets,
        "lengths": segment.lengths,
        "checksums": np.array([crc32c(frames[at : at + _BLOCK]) for at in range(0, len(frames), _BLOCK)], np.uint32),
    }
    places = {}
    parts = []
    for column, kind in _COLUMNS.items():
        data = columns[column].astype(kind, copy=False).tobytes()
        places[column] = [at, len(columns[column])]
        parts.append(data.ljust(_pad_size(len(data)), b"\0"))
        at += len(parts[-1])
    return b"".join(parts), places


def load_segment(directory: Directory, name: str, vbuckets: int) -> SegmentFile:
    """Map a segment's file. This does not check the frames' checksums, see `find_bad_blocks`.

    Args:
        directory: the directory of the file.
        name: the name of the file.
        vbuckets: how many vbuckets the bucket has.

    Returns:
        The segment and its description.

    Raises:
        BadSegment: the description or the columns are damaged, or do not fit the bucket.
    """
    data = directory.map(name)
    fields = _read_description(name, data)
    columns: dict[str, npt.NDArray[Any]] = {}
    try:
        begin = fields["columns"]["starts"][0]
        end = len(data) - _END.size - fields["bytes"]
        if crc32c(data[begin:end]) != fields["columns_crc32c"]:
            raise BadSegment(name, begin, "the columns do not match their checksum")
        for column, kind in _COLUMNS.items():
            at, count = fields["columns"][column]
            columns[column] = np.frombuffer(data, kind, count, at)
        frames_end = FRAMES_AT + fields["frame_bytes"]
        frames = data[FRAMES_AT:frames_end]
        if any(data[frames_end:begin]):
            raise BadSegment(name, frames_end, "bytes other than 0 between frames and columns")
        ids = fields["ids"][0], fields["ids"][1]
        sealed_at = fields["sealed_at"]
        as_of = fields["as_of"][0], fields["as_of"][1]
        tombstone_bytes, purge_at = fields["tombstones"]
        generation, uuid = fields.get("generation", 0) + 0, fields.get("uuid", "")
    except (LookupError, TypeError, ValueError) as error:
        raise BadSegment(name, len(data), f"the description has an invalid value: {error}") from error
    if len(columns["starts"]) != vbuckets + 1:
        raise BadSegment(name, begin, f"{len(columns['starts']) - 1} vbuckets, the bucket has {vbuckets}")
    superseded = np.zeros(len(columns["seqnos"]), np.int64)
    rows = Rows(columns["seqnos"], columns["offsets"], columns["lengths"], superseded, columns["supersedes"])
    segment = Segment(frames, columns["starts"], rows, ids=ids)
    segment.tombstone_bytes, segment.purge_at = tombstone_bytes, purge_at
    segment.sealed_at, segment.is_mapped = sealed_at, True
    checksum = fields["crc32c"]
    return SegmentFile(
        segment, as_of, columns["checksums"], name, len(data), checksum, generation=generation, uuid=uuid
    )


def _read_description(name: str, data: memoryview) -> Mapping[str, Any]:
    if len(data) < FRAMES_AT + _END.size or data[:FRAMES_AT] != _HEADER:
        raise BadSegment(name, 0, f"the file has {len(data)} bytes and does not begin like a segment")
    length, checksum, magic = _END.unpack_from(data, len(data) - _END.size)
    begin = len(data) - _END.size - length
    if magic != MAGIC or not length or begin < FRAMES_AT or crc32c(data[begin : begin + length]) != checksum:
        raise BadSegment(name, max(begin, 0), "no description with the right checksum at the end")
    fields: dict[str, Any] = json.loads(bytes(data[begin : begin + length]))
    return {**fields, "bytes": length, "crc32c": checksum}


def find_bad_blocks(sealed: SegmentFile) -> list[slice]:
    """Return the parts of the frames, of a MiB each, that do not match their checksums."""
    frames = sealed.segment.buffer
    blocks = [slice(at, min(at + _BLOCK, len(frames))) for at in range(0, len(frames), _BLOCK)]
    checked = zip(blocks, sealed.checksums.tolist(), strict=True)
    return [block for block, checksum in checked if crc32c(frames[block]) != checksum]


def _pad_size(nbytes: int) -> int:
    return -(-nbytes // 8) * 8
