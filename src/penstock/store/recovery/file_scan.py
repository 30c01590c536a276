"""Which files a bucket has, what they hold, and where they are not as they were written. Nothing is changed.

Segments come first, oldest first, then log files, each numbered on from the one before. Of a segment any part may be
bad. A log counts up to the first place where it is bad: what comes behind may depend on what was there.

The inventory says which files there must be. Without one, in a directory of an older release or where the inventory is
damaged, the files' names alone say it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.durable_log import CLEAN, HEAD, OPENED, log_name, log_number
from penstock.store.disk.inventory import (
    INVENTORY,
    BadInventory,
    Inventory,
    ListedSegment,
    extend_identity,
    read_inventory,
)
from penstock.store.disk.sealed_segment import (
    FRAMES_AT,
    BadSegment,
    Sealed,
    bad_blocks,
    draft_ids,
    is_draft,
    load,
    segment_ids,
    segment_name,
)
from penstock.store.log.records import (
    FILE_HEADER,
    Scanned,
    is_file_header,
    later_record,
    pack_file_header,
    scan,
    seed_of,
)
from penstock.store.recovery.bucket_directory import BUCKET, FORMAT_WITHOUT_INVENTORY

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

    def identifying(self) -> list[tuple[int, bytes]]:
        """Return the notes that tell one log file from another: its beginning, and each opening of the bucket."""
        return [(at, text) for at, text in self.scanned.notes if text.startswith((HEAD, OPENED))]

    def identity(self, end: int) -> int:
        """Return the identity of the file's first `end` bytes."""
        identity = 0
        for at, _ in self.identifying():
            if at < end:
                identity = extend_identity(identity, self.data, at)
        return identity


class Found(NamedTuple):
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
        generation: of the newest inventory that any file tells of.
    """

    sealed: list[Sealed]
    logs: list[LogRead]
    torn: Torn | None
    obsolete: list[str]
    bad_blocks: list[BadBlock]
    gaps: list[Gap]
    end: End | None
    others: list[Damage]
    inventory: Inventory | None
    unlisted: list[Sealed]
    made: dict[str, int]
    generation: int = 0

    @property
    def damage(self) -> list[Damage]:
        """All damage, but what is behind the end of the log."""
        found = [*self.others, *(bad.damage for bad in self.bad_blocks), *(gap.damage for gap in self.gaps)]
        return found if self.end is None else [*found, self.end.damage]

    @property
    def clean(self) -> bool:
        """Was the bucket closed? Then the log ends with the mark of that, and the inventory says the same."""
        if not self.logs or self.torn is not None or self.end is not None:
            return False
        if any(damage.file == INVENTORY for damage in self.others):
            return False
        if self.inventory is not None and not self.inventory.clean:
            return False
        scanned = self.logs[-1].scanned
        return bool(scanned.notes) and scanned.notes[-1][1] == CLEAN and _is_last(scanned)

    @property
    def unnamed(self) -> list[tuple[str, str]]:
        """Segments that a crash has left with the name of a draft, and the names that they are to have."""
        names = [(sealed.name, segment_name(sealed.segment.ids)) for sealed in self.sealed]
        return [(name, expected) for name, expected in names if name != expected]

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


def look(directory: Directory, said: Mapping[str, Any]) -> Found:
    """Read the files of a bucket. said: what `bucket.json` says."""
    damage: list[Damage] = []
    inventory = _inventory(directory, said, damage)
    found = _read_files(directory, said, inventory)
    if inventory is not None and (reason := _younger(found, inventory)):
        # A copy of an older time. What it lists may be gone for good reasons, so it is no help.
        damage.append(Damage(INVENTORY, 0, 0, f"an older copy: generation {inventory.generation}, {reason}"))
        found = _read_files(directory, said, None)
    newest = max([*found.made.values(), 0 if inventory is None else inventory.generation])
    return found._replace(others=[*damage, *found.others], generation=newest)


def complete(directory: Directory, found: Found) -> None:
    """Give segments their names that a crash has left with the name of a draft."""
    for draft, name in found.unnamed:
        directory.rename(draft, name)
    if found.unnamed:
        directory.sync_names()


def _inventory(directory: Directory, said: Mapping[str, Any], damage: list[Damage]) -> Inventory | None:
    """Return the inventory of a directory, None if none can be relied on. What is wrong with it goes to `damage`.

    With the older format none counts: a crash can have come between the first inventory and the new format, and an
    older release, which knows no inventory, can have written to the directory since.
    """
    has_older_format = said["format"] == FORMAT_WITHOUT_INVENTORY
    try:
        inventory = read_inventory(directory, bytes.fromhex(said["uuid"]))
    except FileNotFoundError:
        if not has_older_format:
            damage.append(Damage(INVENTORY, None, 0, "missing"))
        return None
    except BadInventory as error:
        if not has_older_format:
            damage.append(Damage(INVENTORY, 0, 0, str(error)))
        return None
    revision = said.get("revision", 0)
    if revision < inventory.revision:
        reason = f"an older copy: revision {revision}, expected {inventory.revision} or above"
        damage.append(Damage(BUCKET, 0, 0, reason))
    elif has_older_format:
        return None
    return inventory


def _younger(found: Found, inventory: Inventory) -> str | None:
    """Return which file is younger than the inventory can be, and why; None if none is."""
    for name, generation in found.made.items():
        if generation > inventory.generation:
            return f"and {name} was made when there was generation {generation}"
    for sealed in found.unlisted:
        if sealed.generation >= inventory.generation:
            return f"and {sealed.name}, which it does not list, was made with generation {sealed.generation}"
    return None


# Segments


class _Candidates(NamedTuple):
    """The files that may be one segment, the one with its name first. listed: what the inventory says of it."""

    ids: tuple[int, int]
    names: list[str]
    listed: ListedSegment | None


class _Arranged(NamedTuple):
    """The names of files, by what they are for. unlisted: segments that are neither listed nor left over."""

    segments: list[_Candidates]
    logs: list[int]
    obsolete: list[str]
    unlisted: list[str]


def _read_files(directory: Directory, said: Mapping[str, Any], inventory: Inventory | None) -> Found:
    names = directory.names()
    promised = _promised(directory, bytes.fromhex(said["uuid"]), names)
    if inventory is None:
        arranged = _arrange_by_names(names, promised)
    else:
        arranged = _arrange_by_inventory(names, inventory, promised)
    found = Found([], [], None, arranged.obsolete, [], [], None, [], inventory, [], {})
    expected = 1
    for one in arranged.segments:
        if one.ids[0] > expected:
            found.gaps.append(_missing(expected, one.ids[0] - 1))
        _read_segment(found, directory, said, one)
        expected = one.ids[1] + 1
    for name in arranged.unlisted:
        _read_unlisted(found, directory, said, name)
    logs = arranged.logs
    if logs and logs[0] > expected:
        found.gaps.append(_missing(expected, logs[0] - 1))
        expected = logs[0]
    return _read_logs(found, directory, bytes.fromhex(said["uuid"]), logs, expected)


def _promised(directory: Directory, uuid: bytes, names: Sequence[str]) -> dict[tuple[int, int], str]:
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


def _arrange_by_names(names: Sequence[str], promised: Mapping[tuple[int, int], str]) -> _Arranged:
    """Tell segments and log files from left-overs by their numbers alone."""
    ranges = {ids: name for name in names if (ids := segment_ids(name)) is not None}
    obsolete = [name for name in names if is_draft(name) and name not in promised.values()]
    obsolete += [ranges[ids] for ids in promised if ids in ranges]
    ranges.update(promised)
    kept: list[_Candidates] = []
    for ids in sorted(ranges, key=lambda ids: (ids[0], -ids[1])):
        if any(_is_within(ids, other.ids) for other in kept):
            obsolete.append(ranges[ids])
        else:
            kept.append(_Candidates(ids, [ranges[ids]], None))
    logs = _logs_behind(names, max((one.ids[1] for one in kept), default=0), obsolete)
    return _Arranged(kept, logs, obsolete, [])


def _arrange_by_inventory(
    names: Sequence[str], inventory: Inventory, promised: Mapping[tuple[int, int], str]
) -> _Arranged:
    """Find the files of the segments that are listed, and of those that the log has promised since."""
    newest = {ids: name for ids, name in promised.items() if not any(_is_beyond(other, ids) for other in promised)}
    drafts = {name: ids for name in names if (ids := draft_ids(name)) is not None}
    segments = [_Candidates(ids, [name], None) for ids, name in newest.items()]
    for listed in inventory.segments:
        if not any(_is_within(listed.ids, ids) for ids in newest):
            own = [name for name in names if segment_ids(name) == listed.ids]
            own += [name for name in drafts if drafts[name] == listed.ids]
            segments.append(_Candidates(listed.ids, own, listed))
    segments.sort()
    obsolete, unlisted = set(drafts) - set(newest.values()), []
    for name in names:
        ids = segment_ids(name)
        if ids is None or any(ids == one.ids and one.listed for one in segments):
            continue
        if any(_is_within(ids, one.ids) for one in segments):
            obsolete.add(name)
        else:
            unlisted.append(name)
    left_over = sorted(obsolete)
    logs = _logs_behind(names, max((one.ids[1] for one in segments), default=0), left_over)
    return _Arranged(segments, logs, left_over, unlisted)


def _is_beyond(ids: tuple[int, int], others: tuple[int, int]) -> bool:
    """Tell whether a segment stands for all log files that another one stands for, and for more."""
    return ids != others and _is_within(others, ids)


def _is_within(ids: tuple[int, int], others: tuple[int, int]) -> bool:
    return others[0] <= ids[0] and ids[1] <= others[1]


def _logs_behind(names: Sequence[str], newest: int, obsolete: list[str]) -> list[int]:
    """Return the numbers of the log files behind the newest segment; the names of the others are left over."""
    numbers = sorted(number for name in names if (number := log_number(name)) is not None)
    obsolete += [log_name(number) for number in numbers if number <= newest]
    return [number for number in numbers if number > newest]


def _missing(first: int, last: int) -> Gap:
    all_of_them = f", with all up to {log_name(last)}" if last > first else ""
    return Gap(Damage(log_name(first), None, 0, f"missing{all_of_them}, and no segment in the place"), (first, last))


def _read_segment(found: Found, directory: Directory, said: Mapping[str, Any], candidates: _Candidates) -> None:
    """Read the first of the files that is the segment, or note why none is."""
    why = Damage(segment_name(candidates.ids), None, 0, f"missing, and {INVENTORY} lists it")
    for name in reversed(candidates.names):
        try:
            sealed = _load(directory, said, name, candidates.ids)
        except BadSegment as error:
            size = len(directory.map(name))
            why = Damage(name, error.offset, size - error.offset, error.reason)
            continue
        if candidates.listed in (None, sealed.listed):
            for used in (name, segment_name(candidates.ids)):  # a draft takes the place of the file with its name
                if used in found.obsolete:
                    found.obsolete.remove(used)
            _take_segment(found, sealed)
            return
        if name == segment_name(candidates.ids):
            found.unlisted.append(sealed)
            why = Damage(name, 0, sealed.nbytes, f"it is not the file that {INVENTORY} lists")
    found.gaps.append(Gap(why, candidates.ids))


def _load(directory: Directory, said: Mapping[str, Any], name: str, ids: tuple[int, int]) -> Sealed:
    """Load a segment of this bucket. Raises BadSegment."""
    sealed = load(directory, name, said["vbuckets"])
    if sealed.segment.ids != ids:
        raise BadSegment(name, 0, f"it says that it is {segment_name(sealed.segment.ids)}")
    if sealed.uuid not in ("", said["uuid"]):
        raise BadSegment(name, 0, f"it is of the bucket with uuid {sealed.uuid}, not {said['uuid']}")
    return sealed


def _take_segment(found: Found, sealed: Sealed) -> None:
    for block in bad_blocks(sealed):
        nbytes = block.stop - block.start
        damage = Damage(sealed.name, FRAMES_AT + block.start, nbytes, f"{nbytes} bytes are not as their checksum says")
        found.bad_blocks.append(BadBlock(damage, len(found.sealed), block))
    found.sealed.append(sealed)
    found.made[sealed.name] = sealed.generation


def _read_unlisted(found: Found, directory: Directory, said: Mapping[str, Any], name: str) -> None:
    """Take note of a segment that ought not to be there; a repair puts it aside."""
    with suppress(BadSegment):
        found.unlisted.append(_load(directory, said, name, segment_ids(name) or (0, 0)))
    found.obsolete.append(name)
    found.others.append(Damage(name, 0, len(directory.map(name)), f"{INVENTORY} does not list it"))


# Log files


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


def _read_logs(found: Found, directory: Directory, uuid: bytes, numbers: Sequence[int], expected: int) -> Found:
    """Take the log files with these numbers, of which the first is to be `expected`, up to where they are bad."""
    proofs = _proofs(found)
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
    name, size, end = read.name, len(read.data), read.scanned.end
    found.made[name] = max((json.loads(text).get("generation", 0) for _, text in read.identifying()), default=0)
    proof = proofs.get(read.number, _Proof())
    closed = found.inventory is not None and found.inventory.clean
    may_be_torn = read.number == last and read.scanned.later is None and end >= proof.end and not closed
    if not read.scanned.notes:
        # If it had just been begun, nothing counts that is in it, and the file before, if there is one, goes on.
        if may_be_torn and (end or not is_file_header(read.data)) and (read.number == 1 or found.logs):
            found.obsolete.append(name)
            return found._replace(torn=Torn(name, 0, size) if size else None)
        expected = "no note of the vbuckets" if end else f"not the header of this bucket's log file {read.number}"
        return _end(found, Damage(name, end, size - end, expected), read, end)
    if (reason := _foreign(found, read)) is not None:
        return _end(found, Damage(name, 0, size, reason), read)
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
        if closed and end >= proof.end:
            reason = f"more than there was when the bucket was closed, {proof.end} bytes"
        return _end(found, Damage(name, end, size - end, reason), read, end)
    if read.number == last and end < proof.end:
        return _end(found, Damage(name, end, 0, f"it ends here, {_had(proof, read.number)}"))
    return found


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
