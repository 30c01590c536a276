"""The result of a scan of a bucket's directory: its files and their damage."""

from __future__ import annotations

import json
from typing import NamedTuple

from penstock.store.disk.inventory import INVENTORY, Inventory, extend_identity
from penstock.store.disk.log_file import make_log_name
from penstock.store.disk.log_notes import CLEAN, HEAD, OPENED
from penstock.store.disk.sealed_segment import SegmentFile, make_segment_name
from penstock.store.log.records import FILE_HEADER, ScannedRecords

RECORDS_AT = FILE_HEADER.size
"""The offset of the first record in a log file."""


class Damage(NamedTuple):
    """A file that is missing, or that does not have the bytes that were written.

    Attributes:
        file: the name of the file.
        offset: where the wrong bytes begin; None: the file is missing.
        nbytes: how many bytes from the offset on are wrong; 0 if they are missing.
        reason: the damage in words.
    """

    file: str
    offset: int | None
    nbytes: int
    reason: str

    def __str__(self) -> str:
        place = self.file if self.offset is None else f"{self.file}, offset {self.offset}"
        return f"{place}: {self.reason}"


class BadBlock(NamedTuple):
    """A part of a segment's frames that does not match its checksum.

    Attributes:
        damage: the same part as bytes of the file.
        place: the position of the segment in FoundFiles.sealed.
        block: the bytes of the part within the frames.
    """

    damage: Damage
    place: int
    block: slice


class FileGap(NamedTuple):
    """Log files whose changes are missing: there are no such files, and no valid segment that replaces them.

    Attributes:
        damage: the missing file, or the invalid segment.
        ids: the numbers of the first and the last of the log files.
    """

    damage: Damage
    ids: tuple[int, int]


class IgnoredLog(NamedTuple):
    """The part of a log file that does not count.

    Attributes:
        number: the number of the log file.
        data: the whole file.
        start: the offset from which the file does not count.
        seed: the seed of its records' checksums.
    """

    number: int
    data: memoryview
    start: int
    seed: int


class LogEnd(NamedTuple):
    """The place where a damaged log ends.

    Attributes:
        damage: the first damage of the log.
        ignored: the parts of log files behind the damage.
    """

    damage: Damage
    ignored: list[IgnoredLog]


class TornEnd(NamedTuple):
    """An incomplete last write of a crash: bytes at the end of a log file that are not a record.

    Attributes:
        name: the name of the log file.
        offset: where these bytes begin.
        nbytes: how many they are.
    """

    name: str
    offset: int
    nbytes: int


class ReadLog(NamedTuple):
    """A log file and its records.

    Attributes:
        number: the number of the log file.
        data: the whole file.
        scanned: the records up to the first invalid one.
        seed: the seed of the records' checksums.
    """

    number: int
    data: memoryview
    scanned: ScannedRecords
    seed: int

    @property
    def name(self) -> str:
        """The name of the log file."""
        return make_log_name(self.number)

    def find_identifying_notes(self) -> list[tuple[int, bytes]]:
        """Return the notes that distinguish log files: the first one, and one for each opening of the bucket.

        Returns:
            The offset and the text of each note.
        """
        return [(at, text) for at, text in self.scanned.notes if text.startswith((HEAD, OPENED))]

    def compute_identity(self, end: int) -> int:
        """Return the identity of the file's first `end` bytes."""
        identity = 0
        for at, _ in self.find_identifying_notes():
            if at < end:
                identity = extend_identity(identity, self.data, at)
        return identity


class FoundFiles(NamedTuple):
    """The files of a bucket, and their damage.

    Attributes:
        sealed: segments, also those with bad blocks, oldest first.
        logs: log files that count, oldest first.
        torn: the incomplete last write of a crash; None if the last log file ends with a record.
        obsolete: names of left-over files.
        bad_blocks: bad parts of segments.
        gaps: log files whose changes are missing.
        end: the place where a damaged log ends; None if the log is not damaged.
        other_damage: damage that loses no changes.
        inventory: lists the files that must exist; None if there is no valid inventory.
        unlisted: segments that the inventory does not list, and that are not left over.
        generations: by file, the generation of the newest inventory when the file was made, or when the bucket was
            opened last with it.
        generation: the generation of the newest inventory that any file names.
    """

    sealed: list[SegmentFile]
    logs: list[ReadLog]
    torn: TornEnd | None
    obsolete: list[str]
    bad_blocks: list[BadBlock]
    gaps: list[FileGap]
    end: LogEnd | None
    other_damage: list[Damage]
    inventory: Inventory | None
    unlisted: list[SegmentFile]
    generations: dict[str, int]
    generation: int = 0

    @property
    def damage(self) -> list[Damage]:
        """All damage, except damage behind the end of the log."""
        found = [*self.other_damage, *(bad.damage for bad in self.bad_blocks), *(gap.damage for gap in self.gaps)]
        return found if self.end is None else [*found, self.end.damage]

    @property
    def is_clean(self) -> bool:
        """Whether the bucket was closed: the log ends with the note of a clean stop, and the inventory agrees."""
        if not self.logs or self.torn is not None or self.end is not None:
            return False
        if any(damage.file == INVENTORY for damage in self.other_damage):
            return False
        if self.inventory is not None and not self.inventory.is_clean:
            return False
        scanned = self.logs[-1].scanned
        return bool(scanned.notes) and scanned.notes[-1][1] == CLEAN and _is_last(scanned)

    @property
    def may_lack_limits(self) -> bool:
        """Whether the log may have lost the note about the frames that a compaction dropped.

        A compaction writes its note before the next compaction begins. So only the newest segments may lack theirs.
        """
        if not self.logs:
            return self.end is not None
        is_uncertain = self.end is not None or self.inventory is None
        if not is_uncertain or not self.sealed:
            return False
        newest = max(sealed.as_of for sealed in self.sealed)
        later = [text for read in self.logs for at, text in read.scanned.notes if (read.number, at) >= newest]
        if any(text.startswith((OPENED, CLEAN)) for text in later):  # the bucket was opened or closed with them
            return False
        noted = {name for text in later for name in json.loads(text).get("drafts", {}).values()}
        return any(one.as_of == newest and make_segment_name(one.segment.ids) not in noted for one in self.sealed)

    @property
    def unnamed(self) -> list[tuple[str, str]]:
        """The segments that a crash left under the name of a draft, each with its final name."""
        names = [(sealed.name, make_segment_name(sealed.segment.ids)) for sealed in self.sealed]
        return [(name, expected) for name, expected in names if name != expected]

    @property
    def summary(self) -> str:
        """A sentence about the files."""
        frames = sum(len(sealed.segment.seqnos) for sealed in self.sealed)
        frames += sum(len(read.scanned.offsets) for read in self.logs)
        end = "" if self.is_clean else " after a stop that was not clean"
        torn = (
            f"; {self.torn.name}: {self.torn.nbytes} bytes from offset {self.torn.offset} on were cut off"
            if self.torn
            else ""
        )
        return f"{frames} changes in {len(self.sealed)} segments and {len(self.logs)} log files{end}{torn}"


def _is_last(scanned: ScannedRecords) -> bool:
    """Return whether no frame follows the last note."""
    return not len(scanned.offsets) or int(scanned.offsets[-1]) < scanned.notes[-1][0]


def end_log(found: FoundFiles, damage: Damage, read: ReadLog | None = None, start: int = RECORDS_AT) -> FoundFiles:
    """Return the files with the log ended by a damage.

    Args:
        found: the files, with the log files that count.
        damage: the first damage of the log.
        read: the first log file that does not count; None: there is none.
        start: the offset in that file from which it does not count.

    Returns:
        The files. The caller adds later log files to `end.ignored`.
    """
    behind = [] if read is None else [IgnoredLog(read.number, read.data, start, read.seed)]
    return found._replace(torn=None, end=LogEnd(damage, behind))
