"""Which files a bucket has, what they hold, and where they are not as they were written. Nothing is changed.

Segments come first, oldest first, then log files, each numbered on from the one before. Of a segment any part may be
bad. A log counts up to the first place where it is bad: what comes behind may depend on what was there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.store.durable import CLEAN, log_name, log_number
from penstock.store.files import Directory
from penstock.store.record import FILE_HEADER, Scanned, is_file_header, later_record, pack_file_header, scan, seed_of
from penstock.store.sealed import (
    FRAMES_AT,
    BadSegment,
    Sealed,
    bad_blocks,
    is_draft,
    load,
    segment_ids,
    segment_name,
)

__all__ = ["BadBlock", "Behind", "Damage", "End", "Found", "Gap", "LogRead", "Torn", "complete", "look"]

_RECORDS_AT = FILE_HEADER.size


class Damage(NamedTuple):
    """A file that is not as it was written. offset: where that begins; None: it is missing. nbytes: how many bytes from
    there on cannot be relied on; 0 where they are missing.
    """

    file: str
    offset: int | None
    nbytes: int
    reason: str

    def __str__(self) -> str:
        place = self.file if self.offset is None else f"{self.file}, offset {self.offset}"
        return f"{place}: {self.reason}"


class BadBlock(NamedTuple):
    """Frames of a segment that are bad. place: of the segment, among those found. block: a part of its frames."""

    damage: Damage
    place: int
    block: slice


class Gap(NamedTuple):
    """Numbers of log files of which nothing is left, neither a segment nor themselves."""

    damage: Damage
    ids: tuple[int, int]


class Behind(NamedTuple):
    """A log file from where on it does not count. seed: of its records' checksums."""

    number: int
    data: memoryview
    start: int
    seed: int


class End(NamedTuple):
    """Where the log is bad, and what is there of it behind that."""

    damage: Damage
    behind: list[Behind]


class Torn(NamedTuple):
    """What a log file ends with that is no record. offset: where it begins. nbytes: how many bytes it is."""

    name: str
    offset: int
    nbytes: int


class LogRead(NamedTuple):
    """A log file and what it holds."""

    number: int
    data: memoryview
    scanned: Scanned
    seed: int

    @property
    def name(self) -> str:
        return log_name(self.number)


class Found(NamedTuple):
    """The files of a bucket. torn: the end of the last log file, None if it ends well. obsolete: names of left-overs.

    bad_blocks, gaps, end: what is damaged. sealed: segments, also those with bad blocks. logs: those that count.
    promised: drafts that a note in the log says are segments, and their names then; `complete` renames them.
    """

    sealed: list[Sealed]
    logs: list[LogRead]
    torn: Torn | None
    obsolete: list[str]
    bad_blocks: list[BadBlock]
    gaps: list[Gap]
    end: End | None
    promised: Mapping[str, str]

    @property
    def damage(self) -> list[Damage]:
        """All damage, but what is behind the end of the log."""
        found = [bad.damage for bad in self.bad_blocks] + [gap.damage for gap in self.gaps]
        return found if self.end is None else [*found, self.end.damage]

    @property
    def clean(self) -> bool:
        """Does the last log file end with the mark of a clean stop?"""
        if not self.logs or self.torn is not None or self.end is not None:
            return False
        scanned = self.logs[-1].scanned
        return bool(scanned.notes) and scanned.notes[-1][1] == CLEAN and _is_last(scanned)

    @property
    def summary(self) -> str:
        """What was found, in words."""
        frames = sum(len(sealed.segment.seqnos) for sealed in self.sealed)
        frames += sum(len(read.scanned.offsets) for read in self.logs)
        end = "" if self.clean else " after a stop that was not clean"
        torn = (
            f"; {self.torn.name}: {self.torn.nbytes} bytes from offset {self.torn.offset} on were cut off"
            if self.torn
            else ""
        )
        return f"{frames} changes in {len(self.sealed)} segments and {len(self.logs)} log files{end}{torn}"


def _is_last(scanned: Scanned) -> bool:
    return not len(scanned.offsets) or int(scanned.offsets[-1]) < scanned.notes[-1][0]


def look(directory: Directory, uuid: bytes, vbuckets: int) -> Found:
    """Read the files of a bucket."""
    names = directory.names()
    promised = _promised(directory, uuid, names)
    drafts = {name: draft for draft, name in promised.items()}
    segments, logs, obsolete = _arranged(
        [name for name in names if name not in promised and name not in drafts], drafts
    )
    found = Found([], [], None, obsolete, [], [], None, promised)
    expected = 1
    for ids, name in sorted(segments.items()):
        if ids[0] > expected:
            found.gaps.append(_missing(expected, ids[0] - 1))
        _read_segment(found, directory, drafts.get(name, name), ids, vbuckets)
        expected = ids[1] + 1
    if logs and logs[0] > expected:
        found.gaps.append(_missing(expected, logs[0] - 1))
        expected = logs[0]
    return _read_logs(found, directory, uuid, logs, expected)


def complete(directory: Directory, found: Found) -> None:
    """Give drafts the names that the log has promised them."""
    for draft, name in found.promised.items():
        directory.rename(draft, name)
    if found.promised:
        directory.sync_names()


def _promised(directory: Directory, uuid: bytes, names: Sequence[str]) -> dict[str, str]:
    """Return the drafts that the log says are segments since the bucket was opened last, and their names.

    Changes behind such a note rely on it: they supersede no tombstone that the segment has dropped.
    """
    if not any(map(is_draft, names)):
        return {}
    numbers = sorted(number for name in names if (number := log_number(name)) is not None)
    drafts: dict[str, str] = {}
    for number in numbers:
        for _, text in _read_log(directory, number, uuid).scanned.notes:
            said = json.loads(text)
            if "opened" in said:
                drafts.clear()
            else:
                drafts |= {name: draft for draft, name in said.get("drafts", {}).items() if draft in names}
    return {draft: name for name, draft in drafts.items()}


def _arranged(
    names: Sequence[str], promised: Iterable[str]
) -> tuple[Mapping[tuple[int, int], str], list[int], list[str]]:
    """Return the segments by their numbers, the numbers of the log files behind them, and the names of left-overs."""
    ranges = {ids: name for name in [*names, *promised] if (ids := segment_ids(name)) is not None}
    obsolete = [name for name in names if is_draft(name)]
    kept: dict[tuple[int, int], str] = {}
    for ids in sorted(ranges, key=lambda ids: (ids[0], -ids[1])):
        if any(first <= ids[0] and ids[1] <= last for first, last in kept):
            obsolete.append(ranges[ids])
        else:
            kept[ids] = ranges[ids]
    newest = max((last for _, last in kept), default=0)
    numbers = sorted(number for name in names if (number := log_number(name)) is not None)
    obsolete += [log_name(number) for number in numbers if number <= newest]
    return kept, [number for number in numbers if number > newest], obsolete


def _missing(first: int, last: int) -> Gap:
    all_of_them = f", with all up to {log_name(last)}" if last > first else ""
    return Gap(Damage(log_name(first), None, 0, f"missing{all_of_them}, and no segment in the place"), (first, last))


def _read_segment(found: Found, directory: Directory, name: str, ids: tuple[int, int], vbuckets: int) -> None:
    try:
        sealed = load(directory, name, vbuckets)
        if sealed.segment.ids != ids:
            raise BadSegment(name, 0, f"it says that it is {segment_name(sealed.segment.ids)}")
    except BadSegment as error:
        size = len(directory.map(name))
        found.gaps.append(Gap(Damage(name, error.offset, size - error.offset, error.reason), ids))
        return
    for block in bad_blocks(sealed):
        nbytes = block.stop - block.start
        damage = Damage(name, FRAMES_AT + block.start, nbytes, f"{nbytes} bytes are not as their checksum says")
        found.bad_blocks.append(BadBlock(damage, len(found.sealed), block))
    found.sealed.append(sealed)


class _Proof(NamedTuple):
    """A log file had been on disk up to `end` when a segment was made."""

    end: int = 0
    segment: str = ""


def _proofs(sealed: Sequence[Sealed]) -> dict[int, _Proof]:
    """Return the strongest proof for each log file that there is one for, by its number."""
    proofs: dict[int, _Proof] = {}
    for one in sealed:
        number, end = one.as_of
        proofs[number] = max(proofs.get(number, _Proof()), _Proof(end, segment_name(one.segment.ids)))
    return proofs


def _read_logs(found: Found, directory: Directory, uuid: bytes, numbers: Sequence[int], expected: int) -> Found:
    """Take the log files with these numbers, of which the first is to be `expected`, up to where they are bad."""
    proofs = _proofs(found.sealed)
    last = numbers[-1] if numbers else expected - 1
    reads = (_read_log(directory, number, uuid) for number in numbers)
    for read in reads:
        missing = Damage(log_name(expected), None, 0, "missing") if read.number > expected else None
        found = _end(found, missing, read) if missing else _take(found, read, last, proofs)
        if found.end is not None:
            found.end.behind.extend(Behind(more.number, more.data, _RECORDS_AT, more.seed) for more in reads)
            return found
        expected += 1
    if not numbers and (found.sealed or found.gaps):
        return _end(found, Damage(log_name(expected), None, 0, "missing, and nothing behind the segments"))
    if proofs and max(proofs) > last:
        return _end(found, Damage(log_name(last + 1), None, 0, f"missing, {_had(proofs[max(proofs)], max(proofs))}"))
    return found


def _end(found: Found, damage: Damage, read: LogRead | None = None, start: int = _RECORDS_AT) -> Found:
    """Let the log end with a damage. read: the first log file that does not count, from `start` on."""
    behind = [] if read is None else [Behind(read.number, read.data, start, read.seed)]
    return found._replace(torn=None, end=End(damage, behind))


def _had(proof: _Proof, number: int) -> str:
    return f"where {log_name(number)} had {proof.end} bytes when {proof.segment} was made"


def _read_log(directory: Directory, number: int, uuid: bytes) -> LogRead:
    data = directory.map(log_name(number))
    header = pack_file_header(uuid, number)
    seed = seed_of(header)
    if data[: len(header)] == header:
        return LogRead(number, data, scan(data, seed), seed)
    nothing = np.zeros(0, np.int64)
    scanned = Scanned(nothing, nothing.astype(np.uint32), nothing, [], 0, later_record(data, 0, seed))
    return LogRead(number, data, scanned, seed)


def _take(found: Found, read: LogRead, last: int, proofs: Mapping[int, _Proof]) -> Found:
    """Let a log file count, up to where it is bad. last: the number of the last one."""
    name, size, end = read.name, len(read.data), read.scanned.end
    proof = proofs.get(read.number, _Proof())
    may_be_torn = read.number == last and read.scanned.later is None and end >= proof.end
    if not read.scanned.notes:
        # If it had just been begun, nothing counts that is in it, and the file before, if there is one, goes on.
        if may_be_torn and (end or not is_file_header(read.data)) and (read.number == 1 or found.logs):
            found.obsolete.append(name)
            return found._replace(torn=Torn(name, 0, size) if size else None)
        expected = "no note of the vbuckets" if end else f"not the header of this bucket's log file {read.number}"
        return _end(found, Damage(name, end, size - end, expected), read, end)
    if found.logs:
        before = found.logs[-1]
        had = json.loads(read.scanned.notes[0][1])["behind"]
        if had != before.scanned.end:
            reason = f"it ends here, where it had {had} bytes when {name} was begun"
            return _end(found, Damage(before.name, before.scanned.end, 0, reason), read)
    found.logs.append(read)
    if end < size and may_be_torn:
        return found._replace(torn=Torn(name, end, size - end))
    if end < size:
        reason = "not a record as its checksum says, and it had been on disk as one"
        return _end(found, Damage(name, end, size - end, reason), read, end)
    if read.number == last and end < proof.end:
        return _end(found, Damage(name, end, 0, f"it ends here, {_had(proof, read.number)}"))
    return found
