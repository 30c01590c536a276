"""Files of new segments: drafts, which get their names after the log's note about them is on disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.disk_faults import DiskFaults
from penstock.store.disk.inventory import ListedSegment
from penstock.store.disk.inventory_writer import InventoryWriter
from penstock.store.disk.log_file import make_log_name
from penstock.store.disk.log_notes import pack_note
from penstock.store.disk.pending_files import PendingFiles
from penstock.store.disk.sealed_segment import load_segment, make_draft_name, make_segment_name, write_segment
from penstock.store.log.log_segments import LogSegments
from penstock.store.log.rewrite import RewrittenSegment, find_superseding_changes
from penstock.store.log.segment import Column, Segment


class _Installed(NamedTuple):
    """A new segment whose file is still a draft.

    Attributes:
        draft: the present name of the file.
        name: the name that the file will get.
        replaced: the names of the files that are removed then.
        sources: the segments that the new segment replaces. This object keeps them alive, so that the thread that
            commits unmaps them. The system needs a long time to free a removed file after it was unmapped.
        listed: the entry of the file in an inventory.
        content: the bytes of the file.
    """

    draft: str
    name: str
    replaced: set[str]
    sources: Sequence[Segment]
    listed: ListedSegment
    content: memoryview


class SegmentDrafts:
    """Stores rewritten segments in files: the SegmentStorage of a log on disk.

    A file is a draft until the log's note about it is on disk. The commit that writes the note also names the file.
    """

    keeps_empty_segments = rewrites_in_order = True

    def __init__(
        self,
        directory: Directory,
        uuid: bytes,
        *,
        segments: LogSegments,
        pending: PendingFiles,
        inventory: InventoryWriter,
        faults: DiskFaults,
        append_note: Callable[[bytes], None],
    ) -> None:
        self._segments = segments
        self._pending = pending
        self._inventory = inventory
        self._directory = directory
        self._uuid = uuid
        self._faults = faults
        self._append_note = append_note
        self._installed: deque[_Installed] = deque()
        self._count = 0
        self._as_of = 0, 0  # the end of the log when the newest rewrite began
        self._listed: dict[str, ListedSegment] = {}  # segments that are not installed yet, by draft

    @property
    def unnamed_count(self) -> int:
        """How many installed segments have files that are still drafts."""
        return len(self._installed)

    def begin_rewrite(self) -> None:
        """Remember where the log ends, when a rewrite begins."""
        self._as_of = self._pending.active.number, self._pending.active.end

    def find_protected_changes(self, sources: Sequence[Segment]) -> Column:
        """Return the ids of the changes that supersede a frame which is still in an older segment."""
        sealed = self._segments.sealed
        return find_superseding_changes(sealed[: sealed.index(sources[0])])

    def store(self, rewritten: RewrittenSegment) -> RewrittenSegment:
        """Write the new segment to a draft.

        Returns:
            The segment in the mapped draft, and the name of the draft.

        Raises:
            OSError: the draft could not be written.
        """
        segment = rewritten.segment
        draft = make_draft_name(segment.ids, self._count)
        self._count += 1
        write_segment(
            self._directory,
            draft,
            segment,
            as_of=self._as_of,
            uuid=self._uuid,
            generation=self._inventory.newest.generation,
        )
        self._directory.sync_names()  # before the log has a note of the draft, and before the inventory lists it
        sealed = load_segment(self._directory, draft, len(self._segments.indexes))
        sealed.segment.held_bytes = segment.held_bytes
        self._listed[draft] = sealed.listing
        return rewritten._replace(segment=sealed.segment, draft=draft)

    def discard(self, rewritten: RewrittenSegment | None) -> None:
        """Remove the draft of a segment that will not be used."""
        if rewritten is not None:
            self._listed.pop(rewritten.draft, None)
            with suppress(OSError):  # the next opening of the bucket removes a draft that stays
                self._directory.remove(rewritten.draft)

    def install(self, sources: Sequence[Segment], rewritten: RewrittenSegment) -> None:
        """Replace the sources by the new segment. The next commit names its file and removes theirs."""
        segment = rewritten.segment
        name = make_segment_name(segment.ids)
        self._write_floors_note(rewritten, name)
        names = {
            make_segment_name(source.ids) if source.is_clustered else make_log_name(source.ids[0]) for source in sources
        }
        listed = self._listed.pop(rewritten.draft)
        content = memoryview(segment.buffer.obj)  # the whole mapped file, not only the frames
        self._installed.append(_Installed(rewritten.draft, name, names - {name}, sources, listed, content))
        self._pending.active.appended += 1  # a commit must name the file, even if one has just taken the note

    def _write_floors_note(self, rewritten: RewrittenSegment, name: str) -> None:
        """If frames were dropped, write a note of the vbuckets' new limits and that the draft is now a segment."""
        passed = np.flatnonzero(rewritten.choice.passed).tolist()
        raised = {*passed, *(purged.vbucket for purged in rewritten.purged)}
        indexes = [self._segments.indexes[vbucket] for vbucket in sorted(raised)]
        if indexes:
            floors = [
                [i.vbucket, i.lowest_snapshot_end, i.purge_seqno, i.purged_rev_seqno, i.history_floor] for i in indexes
            ]
            drafts = {one.draft: one.name for one in tuple(self._installed)}  # earlier drafts must count as well
            drafts[rewritten.draft] = name
            self._append_note(pack_note({"floors": floors, "drafts": drafts}))

    def name_files(self, count: int) -> None:
        """Add the first new segments to the inventory, then name their files and remove those that they replace.

        The log's notes about these segments must be on disk. After a crash, a draft is therefore never older than the
        inventory.

        Args:
            count: how many segments.

        Raises:
            OSError: the inventory could not be written, or a file could not be renamed.
        """
        for _ in range(count):
            new = self._installed[0]
            self._restore_draft(new)
            self._inventory.add_segment(new.listed)
            self._directory.rename(new.draft, new.name)
            self._faults.run_sync(self._directory.sync_names)
            self._installed.popleft()
            for name in new.replaced:
                self._directory.remove(name)

    def _restore_draft(self, new: _Installed) -> None:
        """Write a draft again if another program has deleted it. The content is still mapped and therefore complete."""
        if new.draft not in self._directory.list_names():
            self._directory.write_file(new.draft, (0, new.content))
            self._faults.run_sync(self._directory.sync_names)
