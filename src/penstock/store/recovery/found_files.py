"""What was found in a bucket's directory: its files, and where they are not as they were written."""

from __future__ import annotations

from typing import NamedTuple

from penstock.store.disk.inventory import INVENTORY, Inventory, extend_identity
from penstock.store.disk.log_file import make_log_name
from penstock.store.disk.log_notes import CLEAN, HEAD, OPENED
from penstock.store.disk.sealed_segment import SegmentFile, make_segment_name
from penstock.store.log.records import FILE_HEADER, ScannedRecords

__all__ = [
    "RECORDS_AT",
    "BadBlock",
    "Damage",
    "FileGap",
    "FoundFiles",
    "IgnoredLog",
    "LogEnd",
    "ReadLog",
    "TornEnd",
    "end_log",
]

RECORDS_AT = FILE_HEADER.size
"""Where a log file's records begin."""


class Damage(NamedTuple):
    """A file that is not as it was written.

    Attributes:
        offset: where that begins; None: the file is missing.
        nbytes: how many bytes from there on cannot be relied on; 0 where they are missing.
    """

    file: str
    offset: int | None
    nbytes: int
    reason: str

    def __str__(self) -> str:
        place = self.file if self.offset is None else f"{self.file}, offset {self.offset}"
        return f"{place}: {self.reason}"


class BadBlock(NamedTuple):
    """Frames of a segment that are bad.

    Attributes:
        place: of the segment, among those found.
        block: a part of its frames.
    """

    damage: Damage
    place: int
    block: slice


class FileGap(NamedTuple):
    """Numbers of log files of which nothing is left, neither a segment nor themselves."""

    damage: Damage
    ids: tuple[int, int]


class IgnoredLog(NamedTuple):
    """A log file from where on it does not count. seed: of its records' checksums."""

    number: int
    data: memoryview
    start: int
    seed: int


class LogEnd(NamedTuple):
    """Where the log is bad, and what is there of it behind that."""

    damage: Damage
    ignored: list[IgnoredLog]


class TornEnd(NamedTuple):
    """The end of a log file that is no record: nbytes from an offset on."""

    name: str
    offset: int
    nbytes: int


class ReadLog(NamedTuple):
    """A log file and what it holds."""

    number: int
    data: memoryview
    scanned: ScannedRecords
    seed: int

    @property
    def name(self) -> str:
        return make_log_name(self.number)

    def find_identifying_notes(self) -> list[tuple[int, bytes]]:
        """Return the notes that tell one log file from another: its beginning, and each opening of the bucket."""
        return [(at, text) for at, text in self.scanned.notes if text.startswith((HEAD, OPENED))]

    def compute_identity(self, end: int) -> int:
        """Return the identity of the file's first `end` bytes."""
        identity = 0
        for at, _ in self.find_identifying_notes():
            if at < end:
                identity = extend_identity(identity, self.data, at)
        return identity


class FoundFiles(NamedTuple):
    """The files of a bucket.

    Attributes:
        sealed: segments, also those with bad blocks.
        logs: log files that count.
        torn: the end of the last log file, None if it ends well.
        obsolete: names of left-overs.
        bad_blocks, gaps, end: damaged files of the log.
        others: damage that takes nothing away from the log.
        inventory: what the directory must have; None if it has no inventory, or one that cannot be relied on.
        unlisted: segments that the inventory does not list, and that are not left over.
        made: which inventory was the newest when each file was made, or the bucket was last opened with it.
        generation: of the newest inventory that any file names.
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
        """All damage, but what is behind the end of the log."""
        found = [*self.other_damage, *(bad.damage for bad in self.bad_blocks), *(gap.damage for gap in self.gaps)]
        return found if self.end is None else [*found, self.end.damage]

    @property
    def is_clean(self) -> bool:
        """Whether the bucket was closed: the log ends with the mark of a clean stop, and the inventory agrees."""
        if not self.logs or self.torn is not None or self.end is not None:
            return False
        if any(damage.file == INVENTORY for damage in self.other_damage):
            return False
        if self.inventory is not None and not self.inventory.is_clean:
            return False
        scanned = self.logs[-1].scanned
        return bool(scanned.notes) and scanned.notes[-1][1] == CLEAN and _is_last(scanned)

    @property
    def unnamed(self) -> list[tuple[str, str]]:
        """Segments that a crash has left with the name of a draft, and the names that they are to have."""
        names = [(sealed.name, make_segment_name(sealed.segment.ids)) for sealed in self.sealed]
        return [(name, expected) for name, expected in names if name != expected]

    @property
    def summary(self) -> str:
        """What was found, in words."""
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
    return not len(scanned.offsets) or int(scanned.offsets[-1]) < scanned.notes[-1][0]


def end_log(found: FoundFiles, damage: Damage, read: ReadLog | None = None, start: int = RECORDS_AT) -> FoundFiles:
    """Let the log end with a damage. read: the first log file that does not count, from `start` on."""
    behind = [] if read is None else [IgnoredLog(read.number, read.data, start, read.seed)]
    return found._replace(torn=None, end=LogEnd(damage, behind))
