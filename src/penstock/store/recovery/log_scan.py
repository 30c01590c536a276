"""The log files of a directory are read, up to the first place where the log is bad.

That a file had been on disk up to some place is proven by what was written later: a segment that was made then, the
inventory, or a record of the file itself. What lies behind the last such place may have been torn by a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.inventory import INVENTORY
from penstock.store.disk.log_file import log_name, log_number
from penstock.store.disk.sealed_segment import draft_ids, is_draft, segment_name
from penstock.store.log.records import Scanned, is_file_header, later_record, pack_file_header, scan, seed_of
from penstock.store.recovery.found_files import RECORDS_AT, Behind, Damage, Found, LogRead, Torn, end_log

__all__ = ["promised_drafts", "read_logs"]


def promised_drafts(directory: Directory, uuid: bytes, names: Sequence[str]) -> dict[tuple[int, int], str]:
    """Return the drafts that the log says are segments since the bucket was opened last, by their numbers.

    Changes behind such a note rely on it: they supersede no tombstone that the segment has dropped.
    """
    if not any(map(is_draft, names)):
        return {}
    numbers = sorted(number for name in names if (number := log_number(name)) is not None)
    drafts: dict[tuple[int, int], str] = {}
    for number in numbers:
        for _, text in _read_log(directory, number, uuid).scanned.notes:
            said = json.loads(text)
            if "opened" in said:
                drafts.clear()
            for draft in said.get("drafts", {}):
                if draft in names and (ids := draft_ids(draft)) is not None:
                    drafts[ids] = draft
    return drafts


class _Proof(NamedTuple):
    """A log file had been on disk up to `end` when something was written."""

    end: int = 0
    event: str = ""


def _proofs(found: Found) -> dict[int, _Proof]:
    """Return the strongest proof for each log file that there is one for, by its number."""
    proofs: dict[int, _Proof] = {}
    for sealed in found.sealed:
        number, end = sealed.as_of
        event = f"{segment_name(sealed.segment.ids)} was made"
        proofs[number] = max(proofs.get(number, _Proof()), _Proof(end, event))
    for listed in found.inventory.logs if found.inventory is not None else ():
        proof = _Proof(listed.synced, f"{INVENTORY} was written")
        proofs[listed.number] = max(proofs.get(listed.number, _Proof()), proof)
    return proofs


def read_logs(found: Found, directory: Directory, uuid: bytes, numbers: Sequence[int], expected: int) -> Found:
    """Take the log files with these numbers, of which the first is to be `expected`, up to where they are bad."""
    proofs = _proofs(found)
    last = numbers[-1] if numbers else expected - 1
    reads = (_read_log(directory, number, uuid) for number in numbers)
    for read in reads:
        missing = Damage(log_name(expected), None, 0, "missing") if read.number > expected else None
        found = end_log(found, missing, read) if missing else _take(found, read, last, proofs)
        if found.end is not None:
            found.end.behind.extend(Behind(more.number, more.data, RECORDS_AT, more.seed) for more in reads)
            return found
        expected += 1
    if not numbers and (found.sealed or found.gaps):
        return end_log(found, Damage(log_name(expected), None, 0, "missing, and nothing behind the segments"))
    if proofs and max(proofs) > last:
        return end_log(found, Damage(log_name(last + 1), None, 0, f"missing, {_had(proofs[max(proofs)], max(proofs))}"))
    return found


def _had(proof: _Proof, number: int) -> str:
    return f"where {log_name(number)} had {proof.end} bytes when {proof.event}"


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
    name, end = read.name, read.scanned.end
    found.made[name] = max((json.loads(text).get("generation", 0) for _, text in read.identifying()), default=0)
    proof = proofs.get(read.number, _Proof())
    may_be_torn = read.number == last and read.scanned.later is None and end >= proof.end and not _was_closed(found)
    if not read.scanned.notes:
        return _take_unbegun(found, read, may_be_torn)
    if (reason := _foreign(found, read)) is not None:
        return end_log(found, Damage(name, 0, len(read.data), reason), read)
    if found.logs:
        before = found.logs[-1]
        had = json.loads(read.scanned.notes[0][1])["behind"]
        if had != before.scanned.end:
            reason = f"it ends here, where it had {had} bytes when {name} was begun"
            return end_log(found, Damage(before.name, before.scanned.end, 0, reason), read)
    found.logs.append(read)
    if end < len(read.data):
        return _take_torn(found, read, may_be_torn, proof)
    if read.number == last and end < proof.end:
        return end_log(found, Damage(name, end, 0, f"it ends here, {_had(proof, read.number)}"))
    return found


def _was_closed(found: Found) -> bool:
    return found.inventory is not None and found.inventory.clean


def _take_unbegun(found: Found, read: LogRead, may_be_torn: bool) -> Found:
    """Take a log file without the note that each begins with."""
    name, size, end = read.name, len(read.data), read.scanned.end
    # If it had just been begun, nothing counts that is in it, and the file before, if there is one, goes on.
    if may_be_torn and (end or not is_file_header(read.data)) and (read.number == 1 or found.logs):
        found.obsolete.append(name)
        return found._replace(torn=Torn(name, 0, size) if size else None)
    expected = "no note of the vbuckets" if end else f"not the header of this bucket's log file {read.number}"
    return end_log(found, Damage(name, end, size - end, expected), read, end)


def _take_torn(found: Found, read: LogRead, may_be_torn: bool, proof: _Proof) -> Found:
    """Take a log file that ends with bytes that are no record."""
    name, size, end = read.name, len(read.data), read.scanned.end
    if may_be_torn:
        return found._replace(torn=Torn(name, end, size - end))
    reason = "not a record as its checksum says, and it had been on disk as one"
    if _was_closed(found) and end >= proof.end:
        reason = f"more than there was when the bucket was closed, {proof.end} bytes"
    return end_log(found, Damage(name, end, size - end, reason), read, end)


def _foreign(found: Found, read: LogRead) -> str | None:
    """Return why a log file is not the one that the inventory lists, None if it may be."""
    if found.inventory is None:
        return None
    listed = next((one for one in found.inventory.logs if one.number == read.number), None)
    if listed is None:
        return f"{INVENTORY} does not list it, and the bucket was closed" if found.inventory.clean else None
    end = read.scanned.end
    if end < listed.synced:  # that is another damage; its beginning may be what it was
        return None
    if read.identity(listed.synced) != listed.identity:
        return f"it is not the file that {INVENTORY} lists, but one of another time"
    if found.inventory.clean and end > listed.synced:
        return f"{end} bytes, where it had {listed.synced} when the bucket was closed"
    return None
