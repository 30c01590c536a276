"""The change log of a bucket on disk.

Changes are packed into the active log file's buffer in the order of commits, as records; `commit` writes what has
gathered and syncs it. A log file that is full is sealed: the next one begins with a note of how things stand with every
vbucket, so that the log can be read from there, and a compaction clusters its frames in a segment of their own.

On disk there are therefore segments, oldest first, then log files, each numbered on from the one before. The numbers of
a segment are those of the log files that it was made from; one whose numbers lie within another's is a left-over.

One thread owns the log; `commit` and Compaction.run may be called beside it, from one other thread each.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import ENOENT
from typing import NamedTuple

import numpy as np

from penstock.errors import TemporaryFailure
from penstock.store.definition.bucket_settings import Settings
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.inventory import Inventory, ListedLog, ListedSegment, extend_identity, write_inventory
from penstock.store.disk.sealed_segment import draft_name, load, save, segment_name
from penstock.store.log.change_log import Log, LoggedVbucket
from penstock.store.log.compaction import Compaction
from penstock.store.log.long_frame import Frame
from penstock.store.log.records import RECORD_BYTES, pack_file_header, pack_record, pack_record_head, seed_of
from penstock.store.log.rewrite import Choice, PurgeRequest, Rewritten, superseding
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column, Rows, Segment, new_buffer

__all__ = ["CLEAN", "HEAD", "OPENED", "DurableLog", "LogFile", "log_name", "log_number"]

_NAME = re.compile(r"log-(\d{10})")
_NANOSECONDS = 10**9

CLEAN = b'{"clean":true}'
HEAD = b'{"head":'
OPENED = b'{"opened":'
_MARK_BYTES = 128


def log_name(number: int) -> str:
    return f"log-{number:010d}"


def log_number(name: str) -> int | None:
    """Return the number in a log file's name, None of another name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


class LogFile:
    """A log file that is being written. buffer: what it holds, up to `end`. seed: of its records' checksums. written,
    synced: how much of that is in the file, and on disk for certain. head_end: the end of the note it begins with.
    identity: as the inventory lists it. has_name: tells whether the file that is open still has its name.
    is_listed: the inventory lists the file.
    """

    __slots__ = (
        "buffer",
        "descriptor",
        "end",
        "has_name",
        "head_end",
        "identity",
        "is_listed",
        "number",
        "seed",
        "synced",
        "written",
    )

    def __init__(self, number: int, buffer: memoryview, seed: int = 0, end: int = 0) -> None:
        self.number = number
        self.buffer = buffer
        self.seed = seed
        self.end = self.written = self.synced = end
        self.head_end = self.identity = 0
        self.descriptor: int | None = None
        self.has_name: Callable[[], bool] = lambda: True
        self.is_listed = False


class _Installed(NamedTuple):
    """A new segment whose file has yet to get its name, and the names of the files that go then.

    listed: what the inventory is to say of it. content: of the file.
    sources: what it stands for. They go with this, on the thread that commits: the system takes its time to free a
    file that is gone when it is mapped no more.
    """

    draft: str
    name: str
    replaced: set[str]
    sources: Sequence[Segment]
    listed: ListedSegment
    content: memoryview


class DurableLog(Log):
    """The log in a directory. uuid: the bucket's, 16 bytes. broken: a sync has failed,
    or files are gone, so nobody knows what is on disk.

    inventory: the one in the directory. revision: of `bucket.json`, as the inventory is to say.
    """

    durable = True

    def __init__(
        self,
        indexes: Sequence[RowIndex],
        directory: Directory,
        settings: Settings,
        *,
        uuid: bytes,
        clock: Callable[[], int],
    ) -> None:
        self.directory = directory
        self.uuid = uuid
        self.broken = False
        self._appended = 0  # records, written by the owner's thread alone
        self._taken = 0  # of them, by commits: written by the thread that commits
        self._committed = 0  # of them, by commits that have ended well: likewise
        self.sealed_at: dict[int, int] = {}  # by the last number of a segment: when it was sealed, ns
        self._installed: deque[_Installed] = deque()
        self._drafts = 0
        self._as_of = 0, 0  # where the log ended when the newest compaction was chosen
        self.unsynced: list[LogFile] = []
        self.inventory = Inventory()
        self.revision = 0
        self._closed_logs: list[ListedLog] = []  # since the inventory was written
        self._drafted: dict[str, ListedSegment] = {}  # segments that have no name yet, by draft
        self.file = LogFile(0, memoryview(b""))
        super().__init__(indexes, settings.segment_bytes, settings=settings, clock=clock)

    @property
    def number(self) -> int:
        return self.file.number

    @property
    def uncommitted(self) -> int:
        return self._appended - self._taken

    @property
    def unpersisted(self) -> int:
        return self._appended - self._committed

    # What vbuckets write

    def append(self, frame: Frame, supersedes: int) -> int:
        return self._write(frame, supersedes) + RECORD_BYTES

    def _write(self, body: Frame, supersedes: int) -> int:
        """Write a record for which there is room and return its offset in the active log file."""
        file = self.file
        start = self.end
        end = start + RECORD_BYTES + len(body)
        if isinstance(body, bytes):
            self.buffer[start:end] = pack_record(body, supersedes, file.synced, file.seed ^ start)
        else:
            written = self.buffer[start + RECORD_BYTES : end]
            body.write_to(written)
            head = pack_record_head(written, supersedes, file.synced, file.seed ^ start)
            self.buffer[start : start + RECORD_BYTES] = head
        self.end = file.end = end  # only now: a commit may look at any time
        self._appended += 1
        return start

    def make_room(self, nbytes: int, *, frees: bool = False) -> None:
        super().make_room(nbytes + RECORD_BYTES, frees=frees)

    def check_behind(self) -> None:
        unwritten = sum(len(file.buffer) for file in self.unsynced[:-1])  # also files with notes alone
        if max(self.waiting_bytes, unwritten) > self._most_behind:
            raise TemporaryFailure("too many changes wait for the disk: it is too slow, or persistence is stopped")

    def seal_dead(self) -> None:
        """Do nothing: dead frames of the active log file take as much memory as live ones, and go with them."""

    def make_room_for_note(self, history: LoggedVbucket) -> None:
        self.check()
        self.make_space(2 * len(_text(history.described())))

    def note(self, history: LoggedVbucket, cut: int | None = None) -> None:
        super().note(history, cut)
        if cut is not None:
            index = history.index
            index.cuts = [(number, seqno) for number, seqno in index.cuts if seqno < cut] + [(self.file.number, cut)]
        said = history.described() if cut is None else {**history.described(), "cut": cut}
        text = _text(said)
        self.make_space(len(text))
        self._write(text, 0)

    def note_cas(self, vbucket: int, cas: int) -> None:
        text = _text({"cas": [vbucket, cas]})
        self.check()
        if self.end + RECORD_BYTES + len(text) > len(self.buffer):
            self.check_behind()
        self.make_space(len(text))
        self._write(text, 0)

    def make_space(self, nbytes: int) -> None:
        """See to it that a record of nbytes fits, whatever the disk says."""
        if self.end + RECORD_BYTES + nbytes > len(self.buffer):
            self.roll(nbytes)

    def mark_opened(self) -> None:
        """Write that the bucket is open, so that a clean stop before this one is not the last word."""
        self.make_space(_MARK_BYTES)
        self._identify(self._write(_text({"opened": True, **self._moment()}), 0))

    def roll(self, nbytes: int) -> None:
        """Seal the active log file, if there is anything in it, and begin the next one, with room for nbytes more."""
        active = self.active()
        if active is not None:
            self.list_sealed(active)
            self.sealed_at[self.file.number] = self._clock()
        elif self.file.number:
            self._empty_segment()
        self.begin_file(self.file.number + 1, nbytes)

    def begin_file(self, number: int, nbytes: int) -> None:
        """Begin a log file with how things stand with every vbucket, and the size of the log file before."""
        if not self._installed:  # otherwise files are there of which some are older than the oldest segment
            oldest = self.sealed[0].ids[1] if self.sealed else number
            for index in self.indexes:
                index.cuts = [cut for cut in index.cuts if cut[0] > oldest]
        described = [history.described() for history in self.histories]
        head = _text({"head": described, "behind": self.file.end, **self._moment()})
        header = pack_file_header(self.uuid, number)
        needed = len(header) + len(head) + nbytes + 2 * RECORD_BYTES
        self.begin(new_buffer(max(self.segment_bytes, needed)))
        self.file = LogFile(number, self.buffer, seed_of(header))
        self.buffer[: len(header)] = header
        self.end = self.file.end = len(header)
        self._identify(self._write(head, 0))
        self.file.head_end = self.end
        self.unsynced.append(self.file)  # only now: a commit may look at any time

    def _moment(self) -> dict[str, int]:
        """Return what tells this log file, and this opening of the bucket, from all others."""
        return {"at": self._clock(), "generation": self.inventory.generation}

    def _identify(self, at: int) -> None:
        """Let a note be part of the active log file's identity. at: where its record begins."""
        self.file.identity = extend_identity(self.file.identity, self.buffer, at)

    def go_on(self, sealed: list[Segment], active: Segment, end: int) -> None:
        """Append to a log file that is there, behind its first `end` bytes; active: what it holds.

        The inventory lists that file last.
        """
        self.sealed = sealed
        for segment in sealed:
            self.sealed_at.setdefault(segment.ids[1], self._clock())
            if not segment.clustered:
                self.directory.close(self._sync_again(log_name(segment.ids[0]), len(segment.buffer)))
        number = active.ids[0]
        self.begin(new_buffer(max(self.segment_bytes, end)))
        self.buffer[:end] = active.buffer[:end]
        self.end = end
        self.file = LogFile(number, self.buffer, seed_of(pack_file_header(self.uuid, number)), end)
        self.file.descriptor = self._sync_again(log_name(number), end)
        self.file.has_name = self.directory.watch(self.file.descriptor, log_name(number))
        self.file.identity = self.inventory.logs[-1].identity
        self.file.is_listed = True
        self.unsynced.append(self.file)
        fate = active.fate
        for index in self.indexes:
            rows = slice(active.starts[index.vbucket], active.starts[index.vbucket + 1])
            index.fill_tail(active, rows, int(active.lengths[rows][fate[rows] > 0].sum()))

    def _sync_again(self, name: str, size: int) -> int:
        """Sync a file that was found: whoever wrote it may have been stopped before that. Returns its descriptor."""
        descriptor = self.directory.reopen(name, size)
        self.directory.sync(descriptor)
        return descriptor

    def _raise_limit(self, nbytes: int) -> None:
        if self.quota.nbytes is None:
            nbytes = len(self.buffer)
        super()._raise_limit(nbytes)
        self.limit = min(self.limit, len(self.buffer) - RECORD_BYTES)
        if self.fault is not None:  # whether before, or on another thread just now
            self.limit = 0

    def _empty_segment(self) -> None:
        """Let a log file without a change that counts be clustered like others: their numbers have no gaps."""
        starts = np.zeros(len(self.indexes) + 1, np.int32)
        nothing = np.zeros(0, np.int64)
        lengths = nothing.astype(np.uint32)
        number = self.file.number
        rows = Rows(nothing, lengths, lengths, nothing, nothing)
        self.sealed.append(Segment(memoryview(b""), starts, rows, clustered=False, ids=(number, number)))
        self.sealed_at[number] = self._clock()

    # Committing

    def commit(self) -> None:
        """Write and sync all that was appended before, unless `fault` says afterwards that it could not be done."""
        if self.broken:
            return
        before, self._taken = self._taken, self._appended
        installed = len(self._installed)  # those whose notes are on disk when all that was appended by now is
        try:
            for file in tuple(self.unsynced):
                self._commit_file(file)
            self._rename(installed)
        except OSError as error:
            self._taken = before
            self._refuse(error)
            return
        self._committed = self._taken
        self.fault = None

    def close(self) -> None:
        """Commit, with the mark of a clean stop; then let others have the directory."""
        self.commit()
        if self.fault is None:
            self.make_space(_MARK_BYTES)
            self._write(CLEAN, 0)
            self.commit()
            if self.fault is None:
                self.relist(clean=True)
        self.let_go()

    def relist(self, *, clean: bool = False) -> None:
        """Write the inventory, unless `fault` says afterwards that it could not be done. clean: all has been closed."""
        try:
            self._write_inventory(self.inventory._replace(clean=clean))
        except OSError as error:
            self._refuse(error)

    def _refuse(self, error: OSError) -> None:
        if not self.broken:
            self._fail(f"the disk does not take what is to be written: {error.strerror or error}")

    def let_go(self) -> None:
        """Let others have the directory, whatever is not on disk."""
        for file in self.unsynced:
            if file.descriptor is not None:
                self.directory.close(file.descriptor)
        self.unsynced = []
        self.directory.unlock()

    def _commit_file(self, file: LogFile) -> None:
        end = file.end
        if file.descriptor is None:
            file.descriptor = self.directory.create(log_name(file.number))
            file.has_name = self.directory.watch(file.descriptor, log_name(file.number))
            self._sync(self.directory.sync_names)
        while file.written < end:
            file.written += self.directory.write(file.descriptor, file.buffer[file.written : end], file.written)
        if file.synced < end:
            self._sync(self.directory.sync, file.descriptor)
            if not file.has_name():
                self._give_up(log_name(file.number))
            file.synced = end
        if not file.is_listed:
            self._write_inventory(self.inventory)
            file.is_listed = True
        if file is not self.file and file.synced == file.end:
            self._closed_logs.append(ListedLog(file.number, file.synced, file.identity))
            self.directory.close(file.descriptor)
            self.unsynced.remove(file)

    def _write_inventory(self, inventory: Inventory) -> None:
        """Bring to disk which files there must be from now on, with all that is known of log files."""
        open_logs = [ListedLog(file.number, file.synced, file.identity) for file in self.unsynced if file.synced]
        replaced = max((one.ids[1] for one in inventory.segments), default=0)
        logs = [one for one in (*self._closed_logs, *open_logs) if one.number > replaced]
        inventory = inventory.with_logs(logs)
        inventory = inventory._replace(generation=self.inventory.generation + 1, revision=self.revision)
        write_inventory(self.directory, self.uuid, inventory)
        self._sync(self.directory.sync_names)
        self.inventory = inventory
        self._closed_logs.clear()

    def _rename(self, count: int) -> None:
        """Let the first new segments count, now that what the log says about them is on disk; then name their files.

        A draft that is there after a crash is therefore never older than the inventory.
        """
        for _ in range(count):
            new = self._installed[0]
            self._keep_draft(new)
            inventory = self.inventory.with_segment(new.listed)
            if inventory != self.inventory:
                self._write_inventory(inventory)
            self.directory.rename(new.draft, new.name)
            self._sync(self.directory.sync_names)
            self._installed.popleft()
            for name in new.replaced:
                self.directory.remove(name)

    def _keep_draft(self, new: _Installed) -> None:
        """Write a draft again that somebody has deleted: its content is still mapped, and the log needs no other."""
        if new.draft not in self.directory.names():
            self.directory.put(new.draft, (0, new.content))
            self._sync(self.directory.sync_names)

    def _sync(self, sync: Callable[..., None], *arguments: int) -> None:
        try:
            sync(*arguments)
        except OSError as error:
            self.broken = True
            self._fail(
                f"a sync has failed ({error.strerror or error}): nobody knows what is on disk, so nothing is stored "
                "until the bucket is opened anew"
            )
            raise

    def _give_up(self, name: str) -> None:
        """Raise OSError for good: the log file that is written is no longer the file that an opening would find."""
        self.broken = True
        self._fail(
            f"{self.directory.path / name} was deleted, moved or replaced while the bucket was open: what was "
            "stored since then is lost, and nothing is stored until the bucket is opened anew"
        )
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), name)

    def _fail(self, why: str) -> None:
        self.fault = why
        self.limit = 0  # so that the next change asks for room, and is refused

    def persisted(self, index: RowIndex) -> int:
        row = bisect_left(index.offsets_at, self.file.synced)
        if row:
            return index.seqnos_at[row - 1]
        unsynced = {file.number: file.synced for file in tuple(self.unsynced)}
        for segment in reversed(index.segments):
            start, end = segment.starts[index.vbucket], segment.ends[index.vbucket]
            synced = None if segment.clustered else unsynced.get(segment.ids[1])
            row = end if synced is None else bisect_left(segment.offsets_at, synced, start, end)
            if row > start:
                return segment.seqnos_at[row - 1]
        return 0

    # Compaction

    def compaction(self, everything: bool, purge: PurgeRequest | None = None) -> Compaction | None:
        compaction = super().compaction(everything, purge)
        if compaction is not None:
            self._as_of = self.file.number, self.end
        return compaction

    def unready(self) -> set[int]:
        return {file.number for file in self.unsynced}

    def floors(self) -> Column:
        """What is superseded by a change on disk that is older than the retention may be dropped."""
        window = self._window(self._clock())
        floors = [min(self.persisted(index), self._before(index, window)) for index in self.indexes]
        return np.array(floors, np.int64)

    def retained(self, choice: Choice) -> int:
        settings = self.settings
        is_kept = settings.retention_seconds != 0 and settings.retention_bytes != 0
        return super().retained(choice) + (choice.recent if is_kept else 0)

    def _window(self, now: int) -> int:
        """Return the number of the first log file whose changes keep what they superseded."""
        seconds, nbytes = self.settings.retention_seconds, self.settings.retention_bytes
        if seconds == 0 or nbytes == 0:
            return self.file.number + 1
        first, size = self.file.number, self.end
        for segment in reversed(self.sealed):
            if nbytes is not None and size > nbytes:
                break
            if seconds is not None and self.sealed_at[segment.ids[1]] < now - seconds * _NANOSECONDS:
                break
            size += segment.size
            first = segment.ids[0]
        return first

    def _before(self, index: RowIndex, number: int) -> int:
        """Return the last seqno of a vbucket in front of a log file."""
        for segment, first in zip(index.segments, index.firsts, strict=True):
            if segment.ids[0] >= number:
                return first - 1
        if index.seqnos_at and self.file.number >= number:
            return index.seqnos_at[0] - 1
        return index.last_seqno

    def held(self, sources: Sequence[Segment]) -> Column:
        first = self.sealed.index(sources[0])
        return superseding(self.sealed[:first])

    def keep(self, rewritten: Rewritten) -> Rewritten:
        segment = rewritten.segment
        draft = draft_name(segment.ids, self._drafts)
        self._drafts += 1
        save(
            self.directory,
            draft,
            segment,
            sealed_at=self.sealed_at[segment.ids[1]],
            as_of=self._as_of,
            uuid=self.uuid,
            generation=self.inventory.generation,
        )
        self.directory.sync_names()  # before the log promises that it has a name, and the inventory lists it
        sealed = load(self.directory, draft, len(self.indexes))
        sealed.segment.held = segment.held
        self._drafted[draft] = sealed.listed
        return rewritten._replace(segment=sealed.segment, draft=draft)

    def discard(self, rewritten: Rewritten | None) -> None:
        super().discard(rewritten)
        if rewritten is not None:
            self._drafted.pop(rewritten.draft, None)
            with suppress(OSError):  # what stays goes when the bucket is opened the next time
                self.directory.remove(rewritten.draft)

    def install(self, sources: Sequence[Segment], rewritten: Rewritten) -> None:
        super().install(sources, rewritten)
        segment, choice = rewritten.segment, rewritten.choice
        raised = {*np.flatnonzero(choice.passed).tolist(), *(purged.vbucket for purged in rewritten.purged)}
        indexes = [self.indexes[vbucket] for vbucket in sorted(raised)]
        floors = [[i.vbucket, i.lowest_snapshot_end, i.purge_seqno, i.purged_rev_seqno] for i in indexes]
        name = segment_name(segment.ids)
        if floors:
            drafts = {one.draft: one.name for one in tuple(self._installed)}  # no earlier one may stay behind
            drafts[rewritten.draft] = name
            said = _text({"floors": floors, "drafts": drafts})
            self.make_space(len(said))
            self._write(said, 0)
        names = {segment_name(source.ids) if source.clustered else log_name(source.ids[0]) for source in sources}
        listed = self._drafted.pop(rewritten.draft)
        content = memoryview(
            segment.buffer.obj
        )  # the buffer is a part of the mapped file, also where there is no frame
        self._installed.append(_Installed(rewritten.draft, name, names - {name}, sources, listed, content))
        self._appended += 1  # a commit is to give the file its name, also if one has just taken the note
        for source in sources[:-1]:
            self.sealed_at.pop(source.ids[1], None)


def _text(said: object) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()
