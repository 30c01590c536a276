"""Reads the log files of a directory up to the first damage.

Bad bytes at the end of the log are damage, or the last write that a crash interrupted. They are damage if something
proves that these bytes had been on disk. A segment, the inventory and later records of the file are such proofs: each
states how long the file was when it was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.inventory import INVENTORY
from penstock.store.disk.log_file import make_log_name, parse_log_number
from penstock.store.disk.sealed_segment import is_draft, make_segment_name, parse_draft_ids
from penstock.store.log.records import (
    ScannedRecords,
    find_later_record,
    is_file_header,
    pack_file_header,
    read_seed,
    scan_records,
)
from penstock.store.recovery.found_files import RECORDS_AT, Damage, FoundFiles, IgnoredLog, ReadLog, TornEnd, end_log


def find_promised_drafts(directory: Directory, uuid: bytes, names: Sequence[str]) -> dict[tuple[int, int], str]:
    """Return the drafts that a note in the log made segments since the bucket was opened last.

    Such a draft must be used, because later changes rely on it: they supersede no tombstone that it has dropped.

    Args:
        directory: the directory of the bucket.
        uuid: the bucket's uuid, 16 bytes.
        names: the files of the directory.

    Returns:
        The first and last log file of each draft -> its name.
    """
    if not any(map(is_draft, names)):
        return {}
    numbers = sorted(number for name in names if (number := parse_log_number(name)) is not None)
    drafts: dict[tuple[int, int], str] = {}
    for number in numbers:
        for _, text in _read_log(directory, number, uuid).scanned.notes:
            note = json.loads(text)
            if "opened" in note:
                drafts.clear()
            for draft in note.get("drafts", {}):
                if draft in names and (ids := parse_draft_ids(draft)) is not None:
                    drafts[ids] = draft
    return drafts


class _Proof(NamedTuple):
    """A proof that a log file was on disk up to an offset.

    Attributes:
        end: the offset.
        event: the write at that time, as a clause of a sentence.
    """

    end: int = 0
    event: str = ""


def _find_proofs(found: FoundFiles) -> dict[int, _Proof]:
    """Return the proof with the highest offset for each log file, by the file's number."""
    proofs: dict[int, _Proof] = {}
    for sealed in found.sealed:
        number, end = sealed.as_of
        event = f"{make_segment_name(sealed.segment.ids)} was made"
        proofs[number] = max(proofs.get(number, _Proof()), _Proof(end, event))
    for listed in found.inventory.logs if found.inventory is not None else ():
        proof = _Proof(listed.synced, f"{INVENTORY} was written")
        proofs[listed.number] = max(proofs.get(listed.number, _Proof()), proof)
    return proofs


def read_logs(
    found: FoundFiles, directory: Directory, uuid: bytes, numbers: Sequence[int], expected: int
) -> FoundFiles:
    """Read the log files up to the first damage.

    Args:
        found: the files of the directory, with all segments.
        directory: the directory of the bucket.
        uuid: the bucket's uuid, 16 bytes.
        numbers: the numbers of the log files that count, in order.
        expected: the number that the first log file must have.

    Returns:
        The files, with the log files that count and the place where a damaged log ends.
    """
    proofs = _find_proofs(found)
    last = numbers[-1] if numbers else expected - 1
    reads = (_read_log(directory, number, uuid) for number in numbers)
    for read in reads:
        missing = Damage(make_log_name(expected), None, 0, "missing") if read.number > expected else None
        found = end_log(found, missing, read) if missing else _add_log(found, read, last, proofs)
        if found.end is not None:
            found.end.ignored.extend(IgnoredLog(more.number, more.data, RECORDS_AT, more.seed) for more in reads)
            return found
        expected += 1
    if not numbers and (found.sealed or found.gaps):
        return end_log(found, Damage(make_log_name(expected), None, 0, "missing, and no log file follows the segments"))
    if proofs and max(proofs) > last:
        return end_log(
            found,
            Damage(make_log_name(last + 1), None, 0, f"missing, {_describe_proof(proofs[max(proofs)], max(proofs))}"),
        )
    return found


def _describe_proof(proof: _Proof, number: int) -> str:
    return f"but {make_log_name(number)} had {proof.end} bytes when {proof.event}"


def _read_log(directory: Directory, number: int, uuid: bytes) -> ReadLog:
    data = directory.map(make_log_name(number))
    header = pack_file_header(uuid, number)
    seed = read_seed(header)
    if data[: len(header)] == header:
        return ReadLog(number, data, scan_records(data, seed), seed)
    nothing = np.zeros(0, np.int64)
    scanned = ScannedRecords(nothing, nothing.astype(np.uint32), nothing, [], 0, find_later_record(data, 0, seed))
    return ReadLog(number, data, scanned, seed)


def _add_log(found: FoundFiles, read: ReadLog, last: int, proofs: Mapping[int, _Proof]) -> FoundFiles:
    """Return the files with one more log file, up to its first damage.

    Args:
        found: the files, with the log files before this one.
        read: the log file.
        last: the number of the newest log file.
        proofs: by the number of a log file, how long it had been.
    """
    name, end = read.name, read.scanned.end
    found.generations[name] = max(
        (json.loads(text).get("generation", 0) for _, text in read.find_identifying_notes()), default=0
    )
    proof = proofs.get(read.number, _Proof())
    may_be_torn = (
        read.number == last and read.scanned.later_offset is None and end >= proof.end and not _was_closed(found)
    )
    if not read.scanned.notes:
        return _add_unbegun_log(found, read, may_be_torn)
    if (reason := _find_mismatch(found, read)) is not None:
        return end_log(found, Damage(name, 0, len(read.data), reason), read)
    if found.logs:
        before = found.logs[-1]
        had = json.loads(read.scanned.notes[0][1])["behind"]
        if had != before.scanned.end:
            reason = f"it ends here, but had {had} bytes when {name} was begun"
            return end_log(found, Damage(before.name, before.scanned.end, 0, reason), read)
    found.logs.append(read)
    if end < len(read.data):
        return _add_torn_log(found, read, may_be_torn, proof)
    if read.number == last and end < proof.end:
        return end_log(found, Damage(name, end, 0, f"it ends here, {_describe_proof(proof, read.number)}"))
    return found


def _was_closed(found: FoundFiles) -> bool:
    return found.inventory is not None and found.inventory.is_clean


def _add_unbegun_log(found: FoundFiles, read: ReadLog, may_be_torn: bool) -> FoundFiles:
    """Return the files with a log file that lacks its first note.

    Each log file begins with a note of all vbuckets. Without it, either a crash came when the file had just been begun,
    or the file is damaged.
    """
    name, size, end = read.name, len(read.data), read.scanned.end
    # A file that had just been begun has no contents that count: the log continues in the file before, if there is one.
    if may_be_torn and (end or not is_file_header(read.data)) and (read.number == 1 or found.logs):
        found.obsolete.append(name)
        return found._replace(torn=TornEnd(name, 0, size) if size else None)
    reason = "no note of the vbuckets" if end else f"not the header of this bucket's log file {read.number}"
    return end_log(found, Damage(name, end, size - end, reason), read, end)


def _add_torn_log(found: FoundFiles, read: ReadLog, may_be_torn: bool, proof: _Proof) -> FoundFiles:
    """Return the files with a log file that ends with bytes that are not a record."""
    name, size, end = read.name, len(read.data), read.scanned.end
    if may_be_torn:
        return found._replace(torn=TornEnd(name, end, size - end))
    reason = "a record that had been on disk does not match its checksum"
    if _was_closed(found) and end >= proof.end:
        reason = f"the file had only {proof.end} bytes when the bucket was closed"
    return end_log(found, Damage(name, end, size - end, reason), read, end)


def _find_mismatch(found: FoundFiles, read: ReadLog) -> str | None:
    """Return why a log file is not the file that the inventory lists; None if it may be that file."""
    if found.inventory is None:
        return None
    listed = next((one for one in found.inventory.logs if one.number == read.number), None)
    if listed is None:
        return f"{INVENTORY} does not list it, and the bucket was closed" if found.inventory.is_clean else None
    end = read.scanned.end
    if end < listed.synced:  # the identity covers more bytes than there are; the short file is reported elsewhere
        return None
    if read.compute_identity(listed.synced) != listed.identity:
        return f"it is not the file that {INVENTORY} lists, but a file of another time"
    if found.inventory.is_clean and end > listed.synced:
        return f"{end} bytes, but it had {listed.synced} when the bucket was closed"
    return None
